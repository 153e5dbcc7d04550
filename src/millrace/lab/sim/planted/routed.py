"""Bugs of the routed machine: of announced filters, of retained messages, and of the node around it."""

from millrace.kernels import fitting_filters
from millrace.lab.sim.planted.bug import Bugs, Method, Plant
from millrace.lab.sim.routed.host import RoutedHost
from millrace.node.peers.messages import NodeMessage, RelayedRun
from millrace.replication.contract import PeerBody, ReplicaId, Send
from millrace.replication.routed.machine import Routed, RoutedEffect, Wanted, _Peer
from millrace.replication.routed.messages import Change, Digest, Filters, Stamp, Value
from millrace.replication.routed.retained import Clock, RetainedStamps

ROUTED_BUGS = Bugs()

_COUNTER_BITS = 16


@ROUTED_BUGS.bug("an unsubscribe does not lower the count, so a filter is never withdrawn")
def count_not_decreased(plant: Plant) -> None:
    def unsubscribed(self: Routed, filter: str) -> bool:
        if self._counts[filter] > 1:
            self._counts[filter] -= 1
        return False

    plant.instead(Routed, "_unsubscribed", unsubscribed)


@ROUTED_BUGS.bug("a filter is withdrawn while others still hold it")
def first_unsubscribe_withdraws(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def unsubscribed(self: Routed, filter: str) -> bool:
            original(self, filter)
            return True

        return unsubscribed

    plant.around(Routed, "_unsubscribed", make)


@ROUTED_BUGS.bug("what an earlier connection still brings is believed")
def stale_announcement_wins(plant: Plant) -> None:
    def is_late(self: Routed, peer: _Peer, session: int) -> bool:
        return False

    plant.instead(Routed, "_is_late", is_late)


@ROUTED_BUGS.bug("all filters of a node are added to what was known instead of replacing it")
def full_state_merged(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def adopt(self: Routed, sender: ReplicaId, peer: _Peer, body: Filters) -> list[RoutedEffect]:
            for filter in sorted(peer.table.all()):
                peer.staged.add(filter)
            return list(original(self, sender, peer, body))

        return adopt

    plant.around(Routed, "_adopt", make)


@ROUTED_BUGS.bug("the first part of all filters replaces what was known")
def part_counts_as_whole(plant: Plant) -> None:
    def is_complete(self: Routed, peer: _Peer, body: Filters) -> bool:
        return True

    plant.instead(Routed, "_is_complete", is_complete)


@ROUTED_BUGS.bug("a change is applied though one before it was lost")
def gap_ignored(plant: Plant) -> None:
    def is_gap(self: Routed, peer: _Peer, body: Change) -> bool:
        return False

    plant.instead(Routed, "_is_gap", is_gap)


@ROUTED_BUGS.bug("a lost last change is never noticed")
def digest_ignored(plant: Plant) -> None:
    def ask_if_missed(self: Routed, sender: ReplicaId, peer: _Peer, body: Digest) -> list[Send]:
        return []

    plant.instead(Routed, "_ask_if_missed", ask_if_missed)


@ROUTED_BUGS.bug("a link that opens again is not asked for its filters")
def no_hello_on_open(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def open_link(self: Routed, name: ReplicaId) -> list[Send]:
            peer = self._peers.get(name)
            if peer is None or peer.version < 0:
                return list(original(self, name))
            peer.told, peer.acknowledged = 0, -1
            return self.retained.opened(name)

        return open_link

    def close_link(self: Routed, name: ReplicaId) -> list[RoutedEffect]:
        self.retained.closed(name)
        return []

    plant.around(Routed, "_open", make)
    plant.instead(Routed, "_close", close_link)


@ROUTED_BUGS.bug("a node with two matching filters is sent two copies")
def one_copy_per_filter(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def wanted_by(self: Routed, topic: str) -> Wanted:
            nodes, groups = original(self, topic)
            asked = fitting_filters(topic, self._shapes)
            copies = (
                name
                for name in nodes
                for filter in asked
                if filter in self._peers[ReplicaId(name)].table.filters
            )
            return tuple(copies), groups

        return wanted_by

    plant.around(Routed, "wanted_by", make)


@ROUTED_BUGS.bug("a retained message from another node is sent on to the rest")
def retained_passed_on(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_message(self: Routed, sender: ReplicaId, body: PeerBody) -> list[RoutedEffect]:
            effects: list[RoutedEffect] = original(self, sender, body)
            if isinstance(body, Value) and body.is_live and body.node != self._replica:
                effects += [Send(to=name, body=body) for name in self._peers if name != sender]
            return effects

        return on_message

    plant.around(Routed, "_on_message", make)


@ROUTED_BUGS.bug("of two writes at the same time the one heard last wins, not the higher node id")
def retained_tie(plant: Plant) -> None:
    def wins(self: RetainedStamps, stamp: Stamp, known: Stamp | None) -> bool:
        return known is None or stamp[0] >= known[0]

    plant.instead(RetainedStamps, "_wins", wins)


@ROUTED_BUGS.bug("the value heard last wins, whatever its stamp")
def retained_last_heard(plant: Plant) -> None:
    def wins(self: RetainedStamps, stamp: Stamp, known: Stamp | None) -> bool:
        return known is None or stamp != known

    plant.instead(RetainedStamps, "_wins", wins)


@ROUTED_BUGS.bug("a write is stamped by the wall clock alone, below what the node has seen")
def clock_not_merged(plant: Plant) -> None:
    def next_time(self: Clock, wall_ms: int) -> int:
        return wall_ms << _COUNTER_BITS

    plant.instead(Clock, "next", next_time)


@ROUTED_BUGS.bug("a deletion leaves no stamp, so an older value comes back")
def tombstone_forgotten(plant: Plant) -> None:
    def bury(self: RetainedStamps, bucket: int, topic: str, stamp: Stamp) -> None:
        """What is gone needs no memory."""

    plant.instead(RetainedStamps, "_bury", bury)


@ROUTED_BUGS.bug("a node passes on to others what it was sent (a loop)")
def driver_passes_on(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def receive(self: RoutedHost, peer: str, message: NodeMessage) -> None:
            original(self, peer, message)
            if isinstance(message, RelayedRun):
                for other in self.interest.machine.status().peers:
                    if other != peer:
                        self.send(other, message)

        return receive

    plant.around(RoutedHost, "receive", make)
