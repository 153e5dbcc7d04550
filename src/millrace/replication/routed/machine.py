"""Routed replication: messages go once to the nodes whose clients want them, and nothing is stored elsewhere.

It follows no paper: its rules are the requirements E1 to E9. What it shares with published systems is the
full state after every reconnect, then numbered changes (as link-state routing does), and for retained
messages the hybrid logical clock (Kulkarni and others, OPODIS 2014) with comparison by buckets
(`retained.py`).

One machine per node. It counts its clients' subscriptions per filter, announces a filter with its first one
and withdraws it with its last [E3], and knows what every linked node announced. The node
that takes a message in asks `wanted_by` once per route and sends the message to those nodes; they give it to
their own clients only [E2]. Delivery is not this machine's: it has no part in the path of a message except
for retained ones, which every node must know (`retained.py`).

How what is known stays right
-----------------------------
Links lose what they cannot take, break, and are made again while the old one still brings something. So:
- Who wants to know says `Hello` with a number of its own when a link opens; the answer is all filters under
  that number, then every change, with versions that count up. Whatever carries another number is late and is
  passed over: nothing from an earlier connection or an earlier life of a node can bring back a filter that
  was withdrawn since.
- All filters replace what was known of that node, once their last part is here [E7]. Until then the earlier
  knowledge serves.
- A gap in the versions is answered by a new `Hello`. A `Digest` once a second shows a gap at the end, and
  whether the other side knows our number at all.
- Whoever heard a change says so (`Known`): a subscription may be confirmed to its client once every node that
  can be reached sends what it takes in.
- What a node announced is forgotten when its link closes: it cannot be reached, and groups must choose among
  those that can.

The driver steps `Tick` twenty times a second and runs effects in order. There is nothing to persist: duties 3
to 6 of the contract are void. There are no roles, and so no table of transitions: what is known of a peer is
complete or it is not, and a new question makes it incomplete at any time.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import TypeAlias, assert_never

from msgspec import Struct, field

from millrace.errors import ProtocolError
from millrace.kernels import fitting_filters
from millrace.replication.contract import (
    LinkClosed,
    LinkOpened,
    PeerBody,
    PeerMessage,
    ReplicaId,
    Send,
    Tick,
)
from millrace.replication.routed.filter_table import FilterTable
from millrace.replication.routed.messages import (
    Change,
    Digest,
    Filters,
    Hello,
    Known,
    Stamps,
    Summary,
    Value,
    Want,
)
from millrace.replication.routed.retained import (
    Deliver,
    Keep,
    RetainedOptions,
    RetainedStamps,
    RetainedView,
)


class RoutedOptions(Struct, frozen=True, kw_only=True):
    filters_per_message_max: int = 2_000
    filter_bytes_per_message_max: int = 256 * 1024
    filters_per_node_max: int = 1_000_000
    """A node announces no more than this, and believes no node that does."""
    digest_ticks: int = 20
    compare_digests: int = 3
    """Retained messages are compared again after so many digests that differ."""
    retained: RetainedOptions = field(default_factory=RetainedOptions)


class Noted(Struct, frozen=True, kw_only=True):
    """Subscriptions that clients of this node made (True) and gave up (False), in order."""

    changes: tuple[tuple[str, bool], ...]


class Published(Struct, frozen=True, kw_only=True):
    """A client of this node published a retained message (None: deleted it) that no log keeps."""

    topic: str
    value: bytes | None
    wall_ms: int


class RetainedCarriedOver(Struct, frozen=True, kw_only=True):
    """Retained messages of a log whose stream is routed from now on."""

    topics: tuple[str, ...]


class Forgotten(Struct, frozen=True, kw_only=True):
    """Retained messages that expired, or that a log keeps from now on."""

    topics: tuple[str, ...]


RoutedEvent: TypeAlias = (
    Tick | PeerMessage | LinkOpened | LinkClosed | Noted | Published | RetainedCarriedOver | Forgotten
)


class InterestChanged(Struct, frozen=True, kw_only=True):
    """Routes of topics that these filters take are out of date; None: all routes."""

    filters: tuple[str, ...] | None


RoutedEffect: TypeAlias = Send | InterestChanged | Keep | Deliver

Wanted: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]
"""Nodes with clients that want a topic, and groups with the nodes that have a member of each."""


class RoutedStatus(Struct, frozen=True, kw_only=True):
    """A picture for people and checkers."""

    announced: int
    unannounced: int
    version: int
    peers: dict[str, int]
    """Filters known of each linked node; -1 where its answer is not complete."""
    retained: int
    tombstones: int


class _Peer:
    __slots__ = (
        "acknowledged",
        "asked",
        "differing",
        "hello_ticks",
        "parts",
        "parts_version",
        "staged",
        "table",
        "told",
        "version",
    )

    def __init__(self) -> None:
        # The number we gave it, and the one it gave us (0: none yet).
        self.asked = 0
        self.told = 0
        # Our filters up to this version are known there.
        self.acknowledged = -1
        # Of its filters, as far as they are known; -1: not at all.
        self.version = -1
        self.table = FilterTable()
        self.stage(-1)
        self.hello_ticks = 0
        self.differing = 0

    def stage(self, version: int) -> None:
        """Begin to gather all its filters as of this version; -1: none are gathered."""
        self.parts_version = version
        self.parts: set[int] = set()
        self.staged = FilterTable()


class Routed:
    def __init__(
        self,
        replica: ReplicaId,
        *,
        rng: Random,
        view: RetainedView,
        options: RoutedOptions | None = None,
    ) -> None:
        self._replica = replica
        self._options = options or RoutedOptions()
        # Subscriptions of clients here by filter; those that are not announced for want of room.
        self._counts: dict[str, int] = {}
        self._unannounced: set[str] = set()
        self._version = 0
        # Numbers of one life must not be those of another.
        self._number = rng.getrandbits(48) << 14
        self._peers: dict[ReplicaId, _Peer] = {}
        self._shapes: tuple[str, ...] = ()
        self._ticks = 0
        self.retained = RetainedStamps(replica, self._number >> 14, view, self._options.retained)

    # ------------------------------------------------------------------------------------- events

    def step(self, event: RoutedEvent) -> list[RoutedEffect]:
        """Raises RemoteError, with nothing changed, for a message that no correct peer sends."""
        match event:
            case PeerMessage():
                return self._on_message(event.sender, event.body)
            case Noted():
                return [*self._note(event.changes)]
            case Published():
                return self._publish(event)
            case Tick():
                return [*self._tick()]
            case LinkOpened():
                return [*self._open(event.peer)]
            case LinkClosed():
                return self._close(event.peer)
            case RetainedCarriedOver():
                self.retained.inherit(event.topics)
                return []
            case Forgotten():
                self.retained.forget(event.topics)
                return []
            case _:
                assert_never(event)

    def wanted_by(self, topic: str) -> Wanted:
        """Who is sent a message of this topic. Asked once per route; changes nothing."""
        if not self._peers or topic.startswith("$"):
            # [E8]: what a node says of itself stays with it.
            return (), ()
        asked = fitting_filters(topic, self._shapes)
        nodes: list[str] = []
        groups: dict[str, list[str]] = {}
        for name, peer in self._peers.items():
            table = peer.table
            if not table.filters.isdisjoint(asked):
                nodes.append(name)
            if table.groups:
                for filter in asked:
                    for key in table.groups.get(filter, ()):
                        groups.setdefault(key, []).append(name)
        return tuple(sorted(nodes)), tuple((key, tuple(sorted(groups[key]))) for key in sorted(groups))

    def status(self) -> RoutedStatus:
        return RoutedStatus(
            announced=len(self._counts) - len(self._unannounced),
            unannounced=len(self._unannounced),
            version=self._version,
            peers={name: len(p.table) if p.version >= 0 else -1 for name, p in sorted(self._peers.items())},
            retained=self.retained.count,
            tombstones=self.retained.tombstones,
        )

    @property
    def version(self) -> int:
        """Of the filters of this node's clients."""
        return self._version

    @property
    def known_version(self) -> int:
        """Up to which every linked node knows them; -1 where one knows nothing yet."""
        return min((peer.acknowledged for peer in self._peers.values()), default=self._version)

    def counts(self) -> dict[str, int]:
        """Subscriptions of this node's clients by filter."""
        return dict(self._counts)

    def known_of(self, peer: ReplicaId) -> set[str] | None:
        """The filters that a node announced; None where they are not all here."""
        known = self._peers.get(peer)
        return None if known is None or known.version < 0 else known.table.all()

    # ------------------------------------------------------------------------ what clients here want

    def _note(self, changes: Iterable[tuple[str, bool]]) -> list[Send]:
        """The first subscription announces a filter [E3], the last one to go withdraws it. What comes and
        goes in one step is not spoken of."""
        counts, unannounced, most = self._counts, self._unannounced, self._options.filters_per_node_max
        news: dict[str, bool] = {}
        # Of each filter, and in a loop: there may be a million.
        for filter, is_added in changes:
            if not is_added:
                if self._unsubscribed(filter) and not news.pop(filter, False):
                    news[filter] = False
                continue
            count = counts.get(filter, 0)
            counts[filter] = count + 1
            if count and filter not in unannounced:
                continue
            is_room = not unannounced and len(counts) <= most
            if (is_room or self._may_announce(filter)) and news.pop(filter, True):
                news[filter] = True
        return self._tell(news) if news else []

    def _unsubscribed(self, filter: str) -> bool:
        """Whether that was the last subscription to a filter that was announced."""
        count = self._counts.get(filter, 0)
        assert count, f"{filter} is given up and nobody holds it"
        if count > 1:
            self._counts[filter] = count - 1
            return False
        del self._counts[filter]
        if filter not in self._unannounced:
            return True
        self._unannounced.discard(filter)
        return False

    def _may_announce(self, filter: str) -> bool:
        """Of a filter that is counted: whether there is room to announce it."""
        unannounced = self._unannounced
        others = len(self._counts) - len(unannounced) - (filter not in unannounced)
        if others < self._options.filters_per_node_max:
            unannounced.discard(filter)
            return True
        unannounced.add(filter)
        return False

    def _tell(self, news: dict[str, bool]) -> list[Send]:
        """Filters that are announced (True) or withdrawn, to everybody who asked."""
        told = [(name, peer) for name, peer in self._peers.items() if peer.told]
        if not told:
            self._version += 1
            return []
        sends: list[Send] = []
        for piece in self._pieces(sorted(news, key=news.__getitem__, reverse=True)):
            self._version += 1
            added = tuple(filter for filter in piece if news[filter])
            withdrawn = tuple(filter for filter in piece if not news[filter])
            for name, peer in told:
                body = Change(session=peer.told, version=self._version, added=added, withdrawn=withdrawn)
                sends.append(Send(to=name, body=body))
        return sends

    def _pieces(self, filters: list[str]) -> Iterator[list[str]]:
        """Cut so that no message grows without bound."""
        piece: list[str] = []
        size = 0
        for filter in filters:
            if piece and (
                len(piece) >= self._options.filters_per_message_max
                or size + len(filter) > self._options.filter_bytes_per_message_max
            ):
                yield piece
                piece, size = [], 0
            piece.append(filter)
            size += len(filter)
        if piece:
            yield piece

    def _on_hello(self, sender: ReplicaId, peer: _Peer, body: Hello) -> list[RoutedEffect]:
        if body.session <= 0:
            raise ProtocolError("a hello without a number")
        peer.told = body.session
        peer.acknowledged = -1
        self.retained.clock.saw(body.time)
        pieces = list(self._pieces(sorted(self._counts.keys() - self._unannounced))) or [[]]
        return [
            Send(
                to=sender,
                body=Filters(
                    session=body.session,
                    version=self._version,
                    part=part,
                    parts=len(pieces),
                    filters=tuple(filters),
                ),
            )
            for part, filters in enumerate(pieces)
        ]

    # ----------------------------------------------------------------------------- what others want

    def _on_filters(self, sender: ReplicaId, peer: _Peer, body: Filters) -> list[RoutedEffect]:
        parts_max = self._options.filters_per_node_max
        if not 0 <= body.part < body.parts <= parts_max or body.version < 0:
            raise ProtocolError(f"part {body.part} of {body.parts} of the filters of a node")
        if self._is_late(peer, body.session) or body.version < max(peer.version, peer.parts_version):
            return []
        is_new = body.version > peer.parts_version
        held = 0 if is_new else len(peer.staged)
        if held + len(body.filters) > self._options.filters_per_node_max:
            raise ProtocolError(f"more than {self._options.filters_per_node_max} filters of one node")
        if is_new:
            peer.stage(body.version)
        peer.parts.add(body.part)
        # Part by part: one step for all of them would hold up everybody else.
        for filter in body.filters:
            peer.staged.add(filter)
        return self._adopt(sender, peer, body) if self._is_complete(peer, body) else []

    def _is_complete(self, peer: _Peer, body: Filters) -> bool:
        return len(peer.parts) >= body.parts

    def _adopt(self, sender: ReplicaId, peer: _Peer, body: Filters) -> list[RoutedEffect]:
        """What was gathered takes the place of what was known [E7]."""
        table = peer.staged
        peer.stage(-1)
        peer.version = body.version
        known = Known(session=body.session, version=body.version)
        return [*self._replace(peer, table), Send(to=sender, body=known)]

    def _replace(self, peer: _Peer, table: FilterTable) -> list[RoutedEffect]:
        old, peer.table = peer.table, table
        self._survey()
        # Looking for the routes of so many costs more than finding all routes again.
        many = self._options.filters_per_message_max
        if abs(len(old) - len(table)) > many:
            return [InterestChanged(filters=None)]
        changed = old.all() ^ table.all()
        if not changed:
            return []
        is_many = len(changed) > many
        return [InterestChanged(filters=None if is_many else tuple(sorted(changed)))]

    def _on_change(self, sender: ReplicaId, peer: _Peer, body: Change) -> list[RoutedEffect]:
        if self._is_late(peer, body.session) or peer.version < 0 or body.version <= peer.version:
            return []
        if self._is_gap(peer, body):
            return [*self._ask(sender, peer)]
        if len(peer.table) + len(body.added) > self._options.filters_per_node_max:
            raise ProtocolError(f"more than {self._options.filters_per_node_max} filters of one node")
        peer.version = body.version
        shapes = len(peer.table.shapes)
        changed = [filter for filter in body.added if peer.table.add(filter)]
        changed += [filter for filter in body.withdrawn if peer.table.discard(filter)]
        if len(peer.table.shapes) != shapes or not set(peer.table.shapes) <= set(self._shapes):
            self._survey()
        known = Send(to=sender, body=Known(session=body.session, version=body.version))
        return [InterestChanged(filters=tuple(changed)), known] if changed else [known]

    def _is_gap(self, peer: _Peer, body: Change) -> bool:
        return body.version > peer.version + 1

    def _on_known(self, peer: _Peer, body: Known) -> list[RoutedEffect]:
        if body.session == peer.told:
            peer.acknowledged = max(peer.acknowledged, body.version)
        return []

    def _survey(self) -> None:
        """The shapes of all filters, in an order that does not depend on who came first."""
        shapes: set[str] = set()
        for peer in self._peers.values():
            shapes.update(peer.table.shapes)
        self._shapes = tuple(sorted(shapes))

    def _is_late(self, peer: _Peer, session: int) -> bool:
        return session != peer.asked

    def _ask(self, name: ReplicaId, peer: _Peer) -> list[Send]:
        """All filters anew, under a new number; what is known serves until they are here."""
        self._number += 1
        peer.asked = self._number
        peer.version = -1
        peer.stage(-1)
        peer.hello_ticks = self._ticks
        return [Send(to=name, body=self._hello(peer))]

    def _hello(self, peer: _Peer) -> Hello:
        return Hello(session=peer.asked, time=self.retained.clock.last)

    # -------------------------------------------------------------------------------------- retained

    def _publish(self, event: Published) -> list[RoutedEffect]:
        body = self.retained.write(event.topic, event.value, event.wall_ms)
        kept = Keep(topic=event.topic, value=event.value)
        return [kept, *(Send(to=name, body=body) for name in self._peers)]

    # ----------------------------------------------------------------------------------------- links

    def _open(self, name: ReplicaId) -> list[Send]:
        peer = self._peers.setdefault(name, _Peer())
        # It may have begun anew and know nothing of what it told us to call it by.
        peer.told = 0
        peer.acknowledged = -1
        return [*self._ask(name, peer), *self.retained.opened(name)]

    def _close(self, name: ReplicaId) -> list[RoutedEffect]:
        self.retained.closed(name)
        peer = self._peers.pop(name, None)
        return [] if peer is None else self._replace(peer, FilterTable())

    def _tick(self) -> list[Send]:
        self._ticks += 1
        sends = self.retained.tick()
        if self._ticks % self._options.digest_ticks:
            return sends
        for name, peer in self._peers.items():
            if peer.told:
                digest = Digest(session=peer.told, version=self._version, retained=self.retained.checksum)
                sends.append(Send(to=name, body=digest))
            if peer.version < 0:
                sends += self._ask_again(name, peer)
        return sends

    def _on_digest(self, sender: ReplicaId, peer: _Peer, body: Digest) -> list[RoutedEffect]:
        if body.retained == self.retained.checksum:
            peer.differing = 0
        else:
            peer.differing += 1
        sends: list[Send] = []
        if peer.differing >= self._options.compare_digests:
            peer.differing = 0
            sends += self.retained.compare(sender)
        return [*sends, *self._ask_if_missed(sender, peer, body)]

    def _ask_if_missed(self, sender: ReplicaId, peer: _Peer, body: Digest) -> list[Send]:
        """The last change, or our question, may have been lost."""
        if body.session != peer.asked:
            return self._ask_again(sender, peer)
        return self._ask(sender, peer) if body.version > peer.version >= 0 else []

    def _ask_again(self, name: ReplicaId, peer: _Peer) -> list[Send]:
        """The same question, unless it was put a moment ago."""
        if self._ticks - peer.hello_ticks < self._options.digest_ticks:
            return []
        peer.hello_ticks = self._ticks
        return [Send(to=name, body=self._hello(peer))]

    def _on_message(self, sender: ReplicaId, body: PeerBody) -> list[RoutedEffect]:
        peer = self._peers.get(sender)
        match body:
            case Value():
                # Also where the link is gone meanwhile: a stamp is as good late as early. It is not passed
                # on: whoever published it told every node itself.
                return [*self.retained.on_value(body)]
            case Hello() | Filters() | Change() | Known() | Digest() | Summary() | Stamps() | Want():
                if peer is None:
                    return []
            case _:
                raise ProtocolError(f"a message of another protocol: {type(body).__name__}")
        match body:
            case Hello():
                return self._on_hello(sender, peer, body)
            case Filters():
                return self._on_filters(sender, peer, body)
            case Change():
                return self._on_change(sender, peer, body)
            case Known():
                return self._on_known(peer, body)
            case Digest():
                return self._on_digest(sender, peer, body)
            case Summary():
                return [*self.retained.on_summary(sender, body)]
            case Stamps():
                return [*self.retained.on_stamps(sender, body)]
            case Want():
                return [*self.retained.on_want(sender, body)]
