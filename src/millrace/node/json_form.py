"""What every form in JSON refuses, whichever door reads it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

_MEMBERS_MAX = 100
# With a sign they have 64.
_NUMBER_BITS_MAX = 63


class Form(BaseModel):
    """A member that nobody knows is a mistake, not a decoration. Each mistake is an object with its place, so
    a form with more members than any has is refused as a whole. A number that no log could hold is refused
    whatever it stands for."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if len(value) > _MEMBERS_MAX:
            raise ValueError(f"{len(value)} members; the form has {len(cls.model_fields)}")
        for name, one in value.items():
            if isinstance(one, int) and one.bit_length() > _NUMBER_BITS_MAX:
                raise ValueError(f"{name} is too large a number")
        return value
