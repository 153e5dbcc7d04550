"""Server-sent events for the tests: a connection whose events are taken one by one."""

import http.client
import json
from types import TracebackType
from typing import Any

_TIMEOUT_S = 20.0


class SentEvents:
    """A stream of events. `take` waits for the next one of a name and passes over the others."""

    def __init__(self, port: int, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", path, headers=named)
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}

    def __enter__(self) -> "SentEvents":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        # The socket itself: a response that is not read to its end keeps it open otherwise.
        self._response.close()
        self._connection.close()

    def comment(self) -> str:
        """The first line, which must be a comment."""
        line = self._response.readline().decode().strip()
        assert line.startswith(":"), line
        return line

    def next(self) -> tuple[str, Any]:
        name = ""
        while True:
            line = self._response.readline().decode()
            if not line:
                raise EOFError("the stream ended")
            line = line.rstrip("\n")
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))

    def take(self, wanted: str) -> Any:
        while True:
            name, data = self.next()
            if name == wanted:
                return data
