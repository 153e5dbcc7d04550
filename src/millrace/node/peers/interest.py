"""Routed replication at a node: what clients of other nodes want, and retained messages that no log keeps.

`replication/routed/machine.py` decides; this does what its effects say and is its eyes. Once per turn of the
loop it tells the machine which subscriptions came and went, stamps the retained messages that were published
here, and sends the runs that others want, neighbours together (`joined_runs.py`). A run goes once to each
node that wants it, as the bytes that came in; that node gives it to its own clients only and passes nothing
on [E2]. Between nodes nothing is acknowledged: the publisher's node answers the publisher, the subscriber's
node sees to the subscriber [E6]."""

import logging
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from msgspec.structs import asdict

from millrace.broker.machine import Broker
from millrace.broker.messages.inbound import topic_of
from millrace.broker.messages.message import Run, expiry_of, payload_is_empty
from millrace.driver.effects import EffectDriver
from millrace.errors import MalformedPacket
from millrace.kernels import skip
from millrace.node.peers.joined_runs import joined_runs
from millrace.node.peers.messages import NodeMessage, RelayedRun
from millrace.replication.contract import LinkClosed, LinkOpened, PeerBody, PeerMessage, ReplicaId, Tick
from millrace.replication.routed.machine import (
    Forgotten,
    InterestChanged,
    Noted,
    Published,
    RetainedCarriedOver,
    Routed,
    RoutedEffect,
    RoutedEvent,
    RoutedOptions,
)
from millrace.replication.routed.retained import Deliver, Keep

log = logging.getLogger("millrace.interest")

# About half a second.
_KNOWN_TICKS_MAX = 10
# The form of a retained value, in the first byte before its packet.
_QOS, _V5 = 0x03, 0x04


class Sender(Protocol):
    """The messenger, as far as it is needed here."""

    def send(self, replica: str, message: NodeMessage) -> bool: ...


class Interest:
    """Implements `RetainedView`. `open` once, when the node knows who it is; until then changes gather."""

    def __init__(self, broker: Broker, *, now_ms: Callable[[], int], wake: Callable[[], None]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._wake = wake
        self._wall_us: Callable[[], int] = lambda: 0
        self._messenger: Sender | None = None
        self._machine: Routed | None = None
        self._driver: EffectDriver[RoutedEvent, RoutedEffect]
        self._expired: list[str] = []
        self._ticks = 0
        # Who waits until others know our filters: up to which version, and until when.
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()

    def open(
        self,
        replica: str,
        messenger: Sender,
        *,
        random: Random,
        wall_us: Callable[[], int],
        options: RoutedOptions | None = None,
    ) -> None:
        self._messenger = messenger
        self._wall_us = wall_us
        machine = Routed(
            ReplicaId(replica),
            rng=Random(random.getrandbits(64)),
            view=self,
            options=options,
        )
        self._machine = machine
        self._driver = EffectDriver(
            machine,
            network=self,
            runners={InterestChanged: self._reroute, Keep: self._keep, Deliver: self._deliver},
        )
        self._broker.router.interest = machine

    @property
    def machine(self) -> Routed:
        assert self._machine is not None, "opened before the first link"
        return self._machine

    def status(self) -> dict[str, Any]:
        """Filters announced, filters known of each linked node, retained messages no log keeps."""
        return {} if self._machine is None else asdict(self._machine.status())

    # ---------------------------------------------------------------------------- once in a while

    def flush(self) -> None:
        """Tell what changed and pass on what others want. Called once per turn of the loop."""
        broker = self._broker
        if self._machine is None:
            return
        changes = broker.take_interest_changes()
        if changes:
            self._driver.step(Noted(changes=tuple(changes)))
        inbound = broker.inbound
        for topic, run in inbound.take_retained():
            self._stamp(topic, run)
        for peer, relayed, count in joined_runs(inbound.take_relays()):
            self._forward(peer, relayed, count)

    def note_expired(self, topics: list[str]) -> None:
        """The retained messages of these topics are gone because their time has passed."""
        if self._machine is not None:
            self._expired += topics

    def tick(self) -> None:
        """Twenty times a second."""
        if self._machine is None:
            return
        if self._expired:
            gone = tuple(topic for topic in self._expired if self._broker.retained.get(topic) is None)
            self._expired.clear()
            self._driver.step(Forgotten(topics=gone))
        self._driver.step(Tick())
        self._ticks += 1
        self._answer()

    def when_known(self, then: Callable[[], None]) -> None:
        """Call back once every linked node sends what clients here want, as of now, or after a while: a node
        that does not answer keeps nobody waiting for long."""
        self.flush()
        if self._machine is None:
            then()
            return
        self._waiting.append((self._machine.version, self._ticks + _KNOWN_TICKS_MAX, then))
        self._answer()

    def _answer(self) -> None:
        while self._waiting and self._machine is not None:
            version, until, then = self._waiting[0]
            if self._machine.known_version < version and self._ticks < until:
                return
            self._waiting.popleft()
            then()
            self._wake()

    def streams_changed(self) -> list[tuple[str, Run, str]]:
        """Another log may keep a topic now, or none: what is retained goes with it. Returns the messages
        that a log has to keep from now on, each with the node that took it in."""
        if self._machine is None:
            return []
        broker, now_ms = self._broker, self._now_ms()
        find = broker.router.intakes.find
        fresh = [topic for topic, _ in broker.retained.match("#", now_ms) if find(topic) is None]
        self._driver.step(RetainedCarriedOver(topics=tuple(sorted(fresh))))
        stamps = self._machine.retained.stamps()
        moved = sorted(topic for topic in stamps if find(topic) is not None)
        self._driver.step(Forgotten(topics=tuple(moved)))
        found = [(topic, broker.retained.get(topic)) for topic in moved]
        return [(topic, run, stamps[topic][1]) for topic, run in found if run is not None]

    def _forward(self, peer: str, relayed: RelayedRun, count: int) -> None:
        if self._messenger is None or not self._messenger.send(peer, relayed):
            self._broker.stats.dropped_relay += count

    def _stamp(self, topic: str, run: Run) -> None:
        value = None if payload_is_empty(run) else self._encode(run)
        wall_ms = self._wall_us() // 1000
        self._driver.step(Published(topic=topic, value=value, wall_ms=wall_ms))
        if value is None:
            # Clients elsewhere get the deletion as the message it is; a stamp alone has no bytes.
            relayed = RelayedRun(run.qos, run.v5, run.retain, "", run.data)
            for peer in self._broker.router.interest.wanted_by(topic)[0]:
                self._forward(peer, relayed, run.count)

    # ---------------------------------------------------------------------------------------- links

    def link_opened(self, peer: str) -> None:
        if self._machine is not None:
            self._driver.step(LinkOpened(peer=ReplicaId(peer)))

    def link_closed(self, peer: str) -> None:
        if self._machine is not None:
            self._driver.step(LinkClosed(peer=ReplicaId(peer)))
            self._answer()

    def on_peer(self, peer: str, _: int, body: PeerBody) -> None:
        """A message of another node's machine."""
        if self._machine is not None:
            self._driver.step(PeerMessage(sender=ReplicaId(peer), body=body))
            self._answer()

    def on_relayed(self, peer: str, _: int, relayed: RelayedRun) -> None:
        """What was published at another node and is wanted here."""
        inbound = self._broker.inbound
        form = (relayed.qos, relayed.v5, relayed.retain, self._now_ms())
        try:
            if relayed.group:
                group = self._broker.groups.get(relayed.group)
                if group is not None:
                    inbound.relayed_to_group(group, relayed.packets, *form)
            else:
                inbound.relayed(relayed.packets, *form)
        except (ValueError, IndexError) as error:
            raise MalformedPacket(f"packets that cannot be read: {error}") from None
        self._wake()

    # -------------------------------------------------------------------------------------- effects

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        if self._messenger is not None:
            self._messenger.send(to, body)

    def _reroute(self, effect: InterestChanged) -> None:
        if effect.filters is None:
            self._broker.router.forget_all()
            return
        self._broker.router.changed(effect.filters)

    def _keep(self, effect: Keep) -> None:
        broker, topic, value = self._broker, effect.topic, effect.value
        if broker.router.intakes.find(topic) is not None:
            # Either that node has not heard yet that a log keeps this topic, and the log's word counts; or
            # this one has not heard that none does any more: then it is found missing, and comes again.
            self._driver.step(Forgotten(topics=(topic,)))
            return
        if value is None:
            broker.retained.delete(topic)
        elif not broker.retained.store(topic, self._decode(topic, value)):
            log.warning("no room for a retained message of another node: %s", topic)

    def _deliver(self, effect: Deliver) -> None:
        if effect.value is not None:
            run = self._decode(effect.topic, effect.value)
            self._broker.inbound.relayed_retained(effect.topic, run, self._now_ms())
            self._wake()

    # --------------------------------------------------------------------------------------- values

    def value(self, topic: str) -> bytes | None:
        run = self._broker.retained.get(topic)
        if run is None or (run.expires_ms is not None and run.expires_ms <= self._now_ms()):
            return None
        return self._encode(run)

    def _encode(self, run: Run) -> bytes:
        return bytes((run.qos | (_V5 if run.v5 else 0),)) + run.aged(self._now_ms())

    def _decode(self, topic: str, value: bytes) -> Run:
        try:
            packet, qos, v5 = value[1:], value[0] & _QOS, bool(value[0] & _V5)
            if topic_of(packet) != topic or skip(packet, 1) != len(packet):
                raise ValueError("another topic, or more than one message")
            expiry_s = expiry_of(packet) if v5 else None
        except (ValueError, IndexError) as error:
            raise MalformedPacket(f"a retained message that cannot be read: {error}") from None
        expires_ms = None if expiry_s is None else self._now_ms() + expiry_s * 1000
        return Run(packet, 1, qos, v5, True, expires_ms)
