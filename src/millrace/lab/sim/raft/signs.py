"""Signs of life between processes, as the links of nodes give them, for groups that rest.

Every process that runs says to each other one, several times in an election's time, that it is there. Whoever
misses several from one, and hears nothing else of it either, is told of its silence.
"""

from collections.abc import Mapping

from millrace.lab.sim.raft.process import Process
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.network import Network
from millrace.replication.contract import PeerBody, ReplicaId, Silence

_EVERY_US = 250_000
_MISSED = 3


class Sign(PeerBody, frozen=True):
    """I am here."""


_SIGN = Sign()


class Signs:
    def __init__(self, clock: Clock, network: Network, processes: Mapping[ReplicaId, Process]) -> None:
        self._clock = clock
        self._network = network
        self._processes = processes
        self._missed: dict[tuple[ReplicaId, ReplicaId], int] = {}
        self.given = 0
        self._clock.after(_EVERY_US, self._pass)

    def heard(self, listener: ReplicaId, speaker: ReplicaId) -> None:
        self._missed[listener, speaker] = 0

    def _pass(self) -> None:
        self._clock.after(_EVERY_US, self._pass)
        for name, process in list(self._processes.items()):
            # A process that was itself stopped blames nobody.
            if not process.is_up or process.is_paused:
                continue
            for other in self._processes:
                if other == name:
                    continue
                self.given += 1
                self._network.send(name, other, _SIGN)
                missed = self._missed[name, other] = self._missed.get((name, other), 0) + 1
                if missed == _MISSED:
                    process.handle(Silence(peer=other))
