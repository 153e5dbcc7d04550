"""A program: how long the first HTTP requests of a node keep its event loop waiting for the interpreter.

It runs in a process of its own, because a module is loaded once. A turn of the loop with work for some
clients makes a system call for each of them and may lose the interpreter each time; whoever has it then has
it for up to the switch interval. So such turns are made here as long as the application loads, and it is
counted what the other threads used of the processor within one turn. That is CPU time: what other processes
take from the machine is no matter.
"""

import socket
import sys
import threading
import time
from dataclasses import replace

from e2e.http_calls import call
from loop_watch import LoopWatch
from millrace.node.loading import uncollected
from millrace.testing import ThreadedBroker

CLIENTS = 10


class Turns:
    """Turns of a loop, one after the other."""

    def __init__(self, broker: ThreadedBroker) -> None:
        self._loop = broker._broker.server._loop
        self._main = threading.get_ident()
        self._is_over = False
        self._before_s = 0.0
        self.waits_s: list[float] = []
        self.switch_s = 1.0
        self._sockets = socket.socketpair()
        self._loop.call_soon_threadsafe(self._turn)

    def _others_s(self) -> float:
        """CPU time of all threads but this one and the one that asks for HTTP."""
        total_s = 0.0
        for thread in threading.enumerate():
            ident = thread.ident
            if ident is not None and ident not in (threading.get_ident(), self._main):
                total_s += time.clock_gettime(time.pthread_getcpuclockid(ident))
        return total_s

    def _turn(self) -> None:
        for _ in range(CLIENTS):
            self._sockets[0].send(b"x" * 1_000)
            self._sockets[1].recv(1_000)
        others_s = self._others_s()
        # A thread that ended takes its time along.
        self.waits_s.append(max(0.0, others_s - self._before_s))
        self._before_s = others_s
        self.switch_s = min(self.switch_s, sys.getswitchinterval())
        if not self._is_over:
            self._loop.call_soon(self._turn)

    def end(self) -> None:
        self._is_over = True


def main() -> None:
    with ThreadedBroker(listeners__http="127.0.0.1:0") as broker:
        assert "fastapi" not in sys.modules
        server = broker._broker.server
        # As `millrace start` does; a node inside another program leaves that program's collector alone.
        server._surroundings = replace(server._surroundings, loading=uncollected)
        turns = Turns(broker)
        with LoopWatch(broker) as watch:
            for path in ("/status", "/nothing", "/openapi.json", "/metrics"):
                call(broker.ports["http"], "GET", path)
        turns.end()
        print(max(turns.waits_s[1:]), watch.longest_s, turns.switch_s, sys.getswitchinterval())


if __name__ == "__main__":
    main()
