"""Frames for a node without a link go through one that has a link with both [rule 38].

With every sign of life a node says whom it hears. Where two nodes do not reach each other, each hands what it
has for the other to a node that said it hears it, which passes it on, once and no further. What groups with
a log say to each other goes this way, and blocks for leaders, requests and answers. Leaderless and routed
messages do not: those machines get what they lack from any node that has it.

A relay is no link. It is used only while there is none, begins and ends for the groups as a link does, and
what goes through it may be lost as on a link that breaks. A link that has fallen silent is given up as soon
as there is a relay, so that at any time there is one way to a node and order is kept on it.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from millrace.errors import ProtocolError
from millrace.limits import FRAME_BYTES_MAX
from millrace.node.peers.messages import Relayed, SignOfLife
from millrace.node.peers.registry import RELAYED_TAGS, encode
from millrace.wire.peer import FRAME_HEAD_BYTES, Frames, tag_of

log = logging.getLogger("millrace.links")

# Of what a relayed frame has around it: two ids, lengths and the frame's own head.
_AROUND_BYTES = 1_024
# A hint where to send: so much of an id keeps a sign of life small.
_ID_CHARACTERS = 8
_SILENT_TICKS = 6


class LinkTable(Protocol):
    """The links as a relay needs them."""

    def is_linked(self, replica: str) -> bool: ...

    def is_heard_directly(self, replica: str) -> bool: ...

    def peers(self) -> list[str]: ...

    def wanted(self) -> Iterable[str]: ...

    def send_directly(self, replica: str, frame: bytes | bytearray) -> bool: ...


class Relays:
    """The ways around links that are missing. `tick` is called with every sign of life."""

    def __init__(
        self,
        replica: str,
        links: LinkTable,
        *,
        receive: Callable[[str, int, int, bytes], None],
        on_open: Callable[[str], None],
        on_close: Callable[[str], None],
    ) -> None:
        self._replica = replica
        self._links = links
        self._receive = receive
        self._on_open = on_open
        self._on_close = on_close
        # Linked node -> the beginnings of the ids of those it hears.
        self._said: dict[str, frozenset[str]] = {}
        # Nodes without a link that were heard through others -> ticks since.
        self._quiet_ticks: dict[str, int] = {}

    # ------------------------------------------------------------------------------------ knowledge

    def sign(self) -> SignOfLife:
        """What this node tells everybody."""
        links = self._links
        return SignOfLife(tuple(r[:_ID_CHARACTERS] for r in links.peers() if links.is_heard_directly(r)))

    def on_sign(self, replica: str, number: int, sign: SignOfLife) -> None:
        self._said[replica] = frozenset(sign.heard)

    def via(self, replica: str) -> str | None:
        """A node that hears that one and this one; None where there is none."""
        start = replica[:_ID_CHARACTERS]
        mine = self._replica[:_ID_CHARACTERS]
        links = self._links
        for peer, heard in sorted(self._said.items()):
            if start in heard and mine in heard and peer != replica and links.is_heard_directly(peer):
                return peer
        return None

    def is_heard(self, replica: str) -> bool:
        return self._quiet_ticks.get(replica, _SILENT_TICKS) < _SILENT_TICKS

    # ----------------------------------------------------------------------------------------- time

    def tick(self) -> None:
        """Give a sign of life to those without a link, and see who gives none any more."""
        links = self._links
        linked = set(links.peers())
        for gone in self._said.keys() - linked:
            del self._said[gone]
        for replica in list(self._quiet_ticks):
            self._quiet_ticks[replica] += 1
            if replica in linked:
                del self._quiet_ticks[replica]
            elif self._quiet_ticks[replica] >= _SILENT_TICKS:
                del self._quiet_ticks[replica]
                log.info("%s is not heard through others any more", replica[:_ID_CHARACTERS])
                self._on_close(replica)
        sign = encode(SignOfLife())
        for replica in links.wanted():
            if replica not in linked:
                self.send(replica, sign)

    # ------------------------------------------------------------------------------------- messages

    def send(self, replica: str, frame: bytes | bytearray) -> bool:
        """Send a frame through another node; False where it was dropped."""
        if tag_of(frame) not in RELAYED_TAGS or len(frame) + _AROUND_BYTES > FRAME_BYTES_MAX:
            return False
        via = self.via(replica)
        if via is None:
            return False
        return self._links.send_directly(via, encode(Relayed(self._replica, replica, bytes(frame))))

    def on_relayed(self, replica: str, number: int, relayed: Relayed) -> None:
        """Pass it on, or take it. Raises RemoteError: the link that brought it must be closed."""
        if relayed.to != self._replica:
            # Only from the one that says it is its own, and only to one that knows what this is.
            if replica == relayed.origin and relayed.to in self._said:
                self._links.send_directly(relayed.to, encode(relayed))
            return
        origin = relayed.origin
        if origin not in self._links.wanted():
            return
        if not self._links.is_linked(origin):
            if origin not in self._quiet_ticks:
                log.info("%s is heard through others", origin[:_ID_CHARACTERS])
                self._quiet_ticks[origin] = 0
                self._on_open(origin)
            self._quiet_ticks[origin] = 0
        for tag, about, body in Frames().receive(relayed.frame):
            if tag not in RELAYED_TAGS or len(body) + FRAME_HEAD_BYTES != len(relayed.frame):
                raise ProtocolError("a relayed frame that is not one")
            if tag != _SIGN_TAG:
                self._receive(origin, tag, about, body)


_SIGN_TAG = tag_of(encode(SignOfLife()))
