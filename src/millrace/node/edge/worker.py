"""A process that runs one edge function: frames in on standard input, frames out on standard output.

A frame is a length of four bytes and msgpack: [topic, payload] in, ["ok", [[topic, payload], ...]] or
["error", text] out. Nothing is unpickled, so a payload from the network stays bytes whatever it holds. The
function's own prints go to standard error.
"""

import asyncio
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

from millrace.limits import EDGE_RESULTS_MAX


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Modules lie where the node was started, as for any program.
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001  the user's module may raise anything
        _put(sink, ["error", f"{sys.argv[1]} cannot be loaded: {type(error).__name__}: {error}"])
        return
    _put(sink, ["ok", []])
    loop = asyncio.new_event_loop()
    while (frame := _take(source)) is not None:
        topic, payload = msgspec.msgpack.decode(frame)
        try:
            answer: list[Any] = ["ok", _call(function, topic, payload, loop)]
        except Exception as error:  # noqa: BLE001  so may the user's function
            traceback.print_exc()
            # What cannot be encoded, a lone surrogate, must not cost the process.
            text = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
            answer = ["error", text]
        _put(sink, answer)


def _call(
    function: Callable[[str, bytes], Any], topic: str, payload: bytes, loop: asyncio.AbstractEventLoop
) -> list[list[Any]]:
    result = function(topic, payload)
    if inspect.isawaitable(result):
        result = loop.run_until_complete(_awaited(result))
    rows = messages(topic, result)
    if len(rows) > EDGE_RESULTS_MAX:
        raise ValueError(f"{len(rows)} messages from one; {EDGE_RESULTS_MAX} is the most")
    return rows


async def _awaited(result: Any) -> Any:
    return await result


def messages(topic: str, result: Any) -> list[list[Any]]:
    """What a function may return: nothing, a payload, (topic, payload), or a list of these."""
    if result is None:
        return []
    if isinstance(result, list):
        return [row for one in result for row in messages(topic, one)]
    if isinstance(result, tuple):
        if len(result) != 2 or not isinstance(result[0], str):
            raise TypeError("a message is (topic, payload)")
        topic, result = result
    if isinstance(result, str):
        result = result.encode()
    if not isinstance(result, bytes | bytearray | memoryview):
        raise TypeError(f"a payload is bytes or text, not {type(result).__name__}")
    return [[topic, bytes(result)]]


def _take(source: BinaryIO) -> bytes | None:
    head = source.read(4)
    return source.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def _put(sink: BinaryIO, answer: list[Any]) -> None:
    frame = msgspec.msgpack.encode(answer)
    sink.write(len(frame).to_bytes(4, "big") + frame)
    sink.flush()


if __name__ == "__main__":
    main()
