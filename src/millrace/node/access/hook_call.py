"""The other side of the authentication hook: runs in a process of its own, see `hook.py`."""

import asyncio
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

_loaded: dict[str, Callable[[dict[str, Any]], Any]] = {}


def call(hook: str, packed: bytes) -> bytes:
    """Call `module:function` with one login; what it returns comes back as it is, if it is plain data."""
    function = _loaded.get(hook)
    if function is None:
        module, _, name = hook.partition(":")
        function = _loaded[hook] = getattr(import_module(module), name)
    result = function(msgspec.msgpack.decode(packed))
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
    return msgspec.msgpack.encode(result)


async def _awaited(result: Any) -> Any:
    return await result
