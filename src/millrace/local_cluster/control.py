"""How the commands speak with the supervisor of a local cluster: a socket in the cluster's directory.

A request is one line of JSON, {"do": "restart", "node": "n2"}, and so is the answer, {"said": ...} or
{"error": ...}. Only the owner of the directory can reach the socket.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from millrace.errors import LocalError

SOCKET_FILE = "control"
_LINE_BYTES_MAX = 64 * 1024
# A node may take a minute to start, and so may the answer.
_ANSWER_S = 120.0

Handler = Callable[[str, str], Awaitable[str]]
"""Does what is asked with the node that is named, and returns a sentence; LocalError says why not."""


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """The socket's path in a form that the kernel takes: it allows about a hundred characters."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        through = Path(f"/proc/self/fd/{descriptor}")
        yield str((through if through.exists() else directory) / SOCKET_FILE)
    finally:
        os.close(descriptor)


def ask(directory: Path, do: str, node: str = "") -> str:
    """The supervisor's answer, a sentence. LocalError if it refuses or does not answer."""
    try:
        with socket.socket(socket.AF_UNIX) as connection, _short(directory) as path:
            connection.settimeout(_ANSWER_S)
            connection.connect(path)
            connection.sendall(json.dumps({"do": do, "node": node}).encode() + b"\n")
            line = connection.makefile("rb").readline(_LINE_BYTES_MAX)
    except OSError as error:
        raise LocalError(f"the cluster in {directory} does not answer: {error.strerror or error}") from None
    if not line:
        raise LocalError(f"the cluster in {directory} ended before it answered")
    answer = json.loads(line)
    if "error" in answer:
        raise LocalError(answer["error"])
    return str(answer["said"])


async def serve(directory: Path, handler: Handler) -> asyncio.Server:
    """Answer requests until the server is closed."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            try:
                answer = {"said": await handler(str(request["do"]), str(request.get("node", "")))}
            except LocalError as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ValueError, KeyError, ConnectionError):
            # Not one of our commands, or one that was interrupted.
            pass
        finally:
            writer.close()

    (directory / SOCKET_FILE).unlink(missing_ok=True)
    before = os.umask(0o077)
    try:
        with _short(directory) as path:
            return await asyncio.start_unix_server(on_connection, path, limit=_LINE_BYTES_MAX)
    finally:
        os.umask(before)
