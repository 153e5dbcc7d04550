"""uvicorn without its own signal handling: the node decides when to stop."""

import asyncio
import socket

import uvicorn
from fastapi import FastAPI

from millrace.errors import ConfigError
from millrace.node.config import Address

_GOODBYE_S = 1.0


class HttpDoor:
    def __init__(self, app: FastAPI, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address.host, address.port))
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"cannot listen on {address}: {error.strerror or error}; another port: --http HOST:PORT"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._server.startup(sockets=[self._socket])
        self._loop_task = asyncio.create_task(self._server.main_loop())

    async def stop(self) -> None:
        if self._loop_task is None:
            self._socket.close()
            return
        # Whoever waits for a message was told that the node stops; the answers may leave first.
        answering = set(self._server.server_state.tasks)
        if answering:
            await asyncio.wait(answering, timeout=_GOODBYE_S)
        self._server.should_exit = True
        self._server.force_exit = True
        await self._loop_task
        await self._server.shutdown(sockets=[self._socket])
