"""Bugs of what stands around a routed machine, planted by name (see `planted/bug.py`)."""

from millrace.lab.sim.planted.bug import Bugs, Method, Plant
from millrace.lab.sim.routed.host import RoutedHost
from millrace.node.peers.interest import KIND_PUBLISH

DRIVER_BUGS = Bugs()


@DRIVER_BUGS.bug("a node passes on to others what it was sent (a loop)")
def driver_passes_on(plant: Plant) -> None:
    def around(right: Method) -> Method:
        def receive(self: RoutedHost, peer: str, kind: int, body: bytes) -> None:
            right(self, peer, kind, body)
            if kind == KIND_PUBLISH:
                for other in self.interest.machine.status().peers:
                    if other != peer:
                        self.send(other, kind, 0, body)

        return receive

    plant.around(RoutedHost, "receive", around)
