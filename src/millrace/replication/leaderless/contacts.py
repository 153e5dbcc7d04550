"""Which peers of a leaderless node are there: whom it can talk with, for whom it waits, who counts on it.

A peer is *live* while each hears the other. One that is not, but was a short while ago or has only just
become known, is *awaited*: slow is not cut off. After `silent_ticks`, or `closed_ticks` without a link, it is
cut off and left out of what the others divide among themselves.

Being left out is seen by the others first. So a node holds a *lease* from each peer: pulses are numbered by
their sender's time, a peer says in its own pulses which one it heard last, and until `silent_ticks` after
that one was sent it cannot have left the sender out. The lease ends earlier, by more than clocks differ.

There are two counts of ticks. Silence of others is counted in ticks that this node was given: one that stood
still must not blame them. Leases are counted in ticks that went by, slept through or not.
"""

from dataclasses import dataclass

from millrace.replication.leaderless.messages import NOWHERE, Heard, Origin, Positions, Pulse


@dataclass(slots=True)
class Peer:
    """What is known of another member."""

    reached_tick: int
    """When it last said that it hears this node; at first, when it became known."""
    boot: int | None = None
    pulse: int = 0
    heard_tick: int | None = None
    hears_me: bool = False
    mutual: int = 0
    """Its last pulse that said so."""
    closed: tuple[int, int] | None = None
    """Since when the link is closed, in both counts."""
    confirmed: int = 0
    """This node's last pulse of which the peer said that it heard it and was heard."""
    confirmed_min: int = 0
    """Those up to here were sent over an older link."""
    # How far it has this node's log, and what it holds.
    positions: Positions | None = None
    acked: int = 0
    sent: int = 0
    progress_tick: int = 0


class Contacts:
    def __init__(
        self, node: str, boot: int, members: tuple[str, ...], *, silent_ticks: int, closed_ticks: int
    ) -> None:
        self._node = node
        self._boot = boot
        self._silent_ticks, self._closed_ticks = silent_ticks, closed_ticks
        self.now = self.elapsed = 0
        self.peers: dict[str, Peer] = {}
        self.live: frozenset[str] = frozenset()
        self.awaited: frozenset[str] = frozenset()
        self.leased: frozenset[str] = frozenset()
        """With the node itself."""
        self.set_members(members)

    def set_members(self, members: tuple[str, ...]) -> None:
        for name in members:
            if name != self._node:
                self.peers.setdefault(name, Peer(reached_tick=self.now))
        for gone in sorted(self.peers.keys() - set(members)):
            del self.peers[gone]
        self.review()

    def tick(self) -> None:
        self.now += 1
        self.elapsed += 1
        self.review()

    def slept(self, ticks: int) -> None:
        self.elapsed += ticks
        self.review()

    def review(self) -> None:
        peers = self.peers.items()
        self.live = frozenset(name for name, peer in peers if peer.hears_me and self.is_heard(peer))
        self.awaited = frozenset(
            name for name, peer in peers if name not in self.live and not self._is_cut_off(peer)
        )
        self.leased = frozenset({self._node, *(name for name, peer in peers if self._is_leased(peer))})

    def is_heard(self, peer: Peer) -> bool:
        return peer.heard_tick is not None and self.now - peer.heard_tick <= self._silent_ticks

    def _is_cut_off(self, peer: Peer) -> bool:
        if peer.closed is not None and self.now - peer.closed[0] > self._closed_ticks:
            return True
        return self.now - peer.reached_tick > self._silent_ticks

    def is_held(self, origin: Origin, entry: int) -> bool:
        """Whether a peer that can be talked with holds this entry."""
        positions = (self.peers[name].positions or {} for name in self.live)
        return any(held.get(origin, NOWHERE).entry >= entry for held in positions)

    def _is_leased(self, peer: Peer) -> bool:
        if peer.closed is not None and self.elapsed - peer.closed[1] > self._closed_ticks // 2:
            return False
        is_fresh = self.elapsed - peer.confirmed <= self._silent_ticks * 2 // 3
        return is_fresh and peer.confirmed > peer.confirmed_min

    # ---------------------------------------------------------------------------------------- events

    def link_closed(self, name: str) -> None:
        peer = self.peers.get(name)
        if peer is not None:
            peer.heard_tick = None
            peer.closed = peer.closed or (self.now, self.elapsed)
            self.review()

    def link_opened(self, peer: Peer) -> None:
        if peer.closed is not None:
            # It may have left this node out meanwhile: what it said before counts no longer.
            peer.closed, peer.reached_tick, peer.confirmed_min = None, self.now, self.elapsed
            self.review()

    def heard(self, peer: Peer, body: Pulse) -> None:
        self.link_opened(peer)
        if not self.is_heard(peer):
            # It comes, or comes back: it gets the time to hear this node too.
            peer.reached_tick = self.now
        peer.heard_tick = self.now
        peer.hears_me = False
        for heard in body.hears:
            if heard.node == self._node and heard.boot == self._boot:
                peer.hears_me, peer.reached_tick, peer.mutual = True, self.now, body.number
                peer.confirmed = max(peer.confirmed, heard.number)
        self.review()

    def heard_now(self) -> tuple[Heard, ...]:
        """For a pulse."""
        return tuple(
            Heard(name, peer.boot, peer.mutual)
            for name, peer in sorted(self.peers.items())
            if peer.boot is not None and self.is_heard(peer)
        )
