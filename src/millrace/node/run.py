"""A node as a process: event loop, signals, the line that says it is ready."""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from millrace.errors import ConfigError
from millrace.kernels import ACCELERATED
from millrace.node import log_lines as logs
from millrace.node.config import Config
from millrace.node.doors import descriptors
from millrace.node.loading import uncollected
from millrace.node.server import Server
from millrace.node.surroundings import SYSTEM

log = logging.getLogger("millrace.node")


# A node that is alone all of a sudden has so long to stop in good order.
_GOODBYE_S = 10.0
# Numbers of glibc's mallopt, and what they are set to.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES, _PAD_BYTES, _MAPPED_FROM_BYTES = 64 << 20, 16 << 20, 32 << 20


def _keep_freed_memory() -> None:
    """Let the allocator keep chunk-sized buffers instead of giving each back to the system.

    A node makes and drops buffers of 64 KiB to 1 MiB all the time. By default glibc maps and unmaps each of
    the larger ones, and the page faults cost several times what is done with the bytes (bulk QoS 0: 0.8 us of
    CPU per message against 0.17). Another C library keeps its own ways.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_TOP_PAD, _PAD_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


def end_with_input() -> None:
    """Stop once nobody holds the other end of the standard input: whoever started this node is gone, perhaps
    without a word. A thread of its own waits for that, so that a loop that hangs ends as well."""
    threading.Thread(target=_wait_for_end, name="input", daemon=True).start()


def _wait_for_end() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GOODBYE_S)
    os._exit(1)


def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError where the node cannot start."""
    logs.configure(config.log.level, config.log.format, config.node.id)
    _keep_freed_memory()
    descriptors.raise_limit()
    loop_factory = None
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        log.warning("uvloop is not installed: running on asyncio, at about half the speed")
    if not ACCELERATED:
        log.warning("the C kernels are not built: running on their Python twins")
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(config, announce))


async def _serve(config: Config, announce: Callable[[str], None]) -> None:
    server = Server(config, surroundings=replace(SYSTEM, loading=uncollected))
    held = server.descriptors
    log.info("%d descriptors, %d of them for connections as well", held.limit, held.open_to_clients)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, _reload, server)
    # A node may wait long for a majority of the others: it can be told to stop meanwhile.
    starting = asyncio.create_task(server.start())
    asked = asyncio.create_task(stopping.wait())
    failed = asyncio.create_task(server.stopping.wait())
    await asyncio.wait((starting, asked, failed), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("stopping before it served")
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if server.failure is not None:
            raise server.failure
        return
    await starting
    # What exists now stays: the collector need not look at it again, which keeps its pauses short. What was
    # loaded is frozen already, so that this takes no time.
    gc.collect()
    gc.freeze()
    doors = " ".join(f"{name}={port}" for name, port in server.ports.items())
    announce(f"millrace {config.node.id} ready: {doors}")
    await asyncio.wait((failed, asked), return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping")
    failed.cancel()
    asked.cancel()
    await server.stop()
    if server.failure is not None:
        raise server.failure


def _reload(server: Server) -> None:
    try:
        server.reload()
    except ConfigError as error:
        log.error("not reloaded, the old users and rules stay in force: %s", error)


def announce_on_stdout(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
