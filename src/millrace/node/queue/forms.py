"""The form of a request of the queue, as every door reads it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from millrace.node.json_form import Form

Topic = Annotated[str, Field(min_length=1, max_length=65_535)]


class QueueRequest(Form):
    """One of the four requests of the queue, named by `type` and `method`."""

    type: Literal["topic", "message"]
    method: Literal["PUT", "GET"]
    topic: Topic | None = None
    message: str | None = None

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> "QueueRequest":
        if self.topic is None and (self.type, self.method) != ("topic", "GET"):
            raise ValueError("give topic")
        if self.message is None and (self.type, self.method) == ("message", "PUT"):
            raise ValueError("give message")
        return self
