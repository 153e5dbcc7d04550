"""A broker inside your own program: `async with millrace.Broker() as broker: ...`."""

import tempfile
from types import TracebackType
from typing import Any

from millrace.node import config as settings
from millrace.node.server import Server


class Broker:
    """Listens on a free port of this machine unless told otherwise.

    Keyword arguments are settings with `__` for the dot: `Broker(limits__connections_max=10)`. An explicit
    `config` is used as it is. Without `node__data` the broker keeps its files in a directory of its own and
    removes it at the end.
    """

    def __init__(self, config: settings.Config | None = None, **overrides: Any) -> None:
        if config is not None and overrides:
            raise TypeError("give a config or single settings, not both")
        self._given = config
        self._overrides = {name.replace("__", ".", 1): value for name, value in overrides.items()}
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.server: Server

    async def __aenter__(self) -> "Broker":
        config = self._given
        if config is None:
            values: dict[str, Any] = {
                "listeners.mqtt": "127.0.0.1:0",
                "listeners.http": "",
                **self._overrides,
            }
            if "node.data" not in values:
                self._directory = tempfile.TemporaryDirectory(prefix="millrace-")
                values["node.data"] = self._directory.name
            config = settings.load(None, {}, [f"{key}={_text(value)}" for key, value in values.items()])
        self.server = Server(config)
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop()
        if self._directory is not None:
            self._directory.cleanup()

    @property
    def host(self) -> str:
        address = self.server.config.listeners.mqtt
        return address.host if address is not None else "127.0.0.1"

    @property
    def port(self) -> int:
        """The MQTT port."""
        return self.server.ports["mqtt"]

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
