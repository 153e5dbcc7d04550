"""Plain HTTP for the tests: what is sent and what comes back, without a library's opinion."""

import http.client
import json
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    port: int, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
) -> Answer:
    """One request; `body` goes as JSON, `raw` as it is. Names of headers are given with underscores."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            raw = json.dumps(body).encode()
            named.setdefault("Content-Type", "application/json")
        connection.request(method, path, raw, named)
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read())
    finally:
        connection.close()


class MqttDoor:
    """The HTTP door of one broker."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        return call(self.port, method, path, body, **more)

    def put(self, topic: str, *messages: str, **more: Any) -> None:
        answer = self("PUT", "/message", {"topic": topic, "messages": list(messages), **more})
        assert answer.json == {"success": True}, answer

    def get(self, topic: str, **more: Any) -> Any:
        return self("GET", "/message", {"topic": topic, **more}).json

    def queue(self, topic: str, **more: Any) -> None:
        assert self("PUT", "/topic", {"topic": topic, **more}).json == {"success": True}
