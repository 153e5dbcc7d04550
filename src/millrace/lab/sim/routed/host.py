"""One simulated node of a routed stream: the broker and the driver of production, and clients that remember.

Everything between a client's packet and the frame on a link is the code that runs in a node: routes, runs,
retained store, the driver `node/peers/interest.py` and its machine. Only sockets and time are not real.
"""

from collections.abc import Callable
from random import Random

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Run
from millrace.broker.sessions.connect_request import ConnectRequest
from millrace.broker.sessions.session import Session
from millrace.broker.topics.trees import split_share
from millrace.kernels import skip
from millrace.lab.sim.routed.links import RoutedLinks
from millrace.lab.sim.surroundings.clock import US_PER_S, Clock
from millrace.lab.sim.violation import Violation
from millrace.limits import Limits
from millrace.node.peers.interest import Interest
from millrace.node.peers.messages import NodeMessage, RelayedRun
from millrace.replication.contract import PeerBody, ReplicaId
from millrace.replication.routed.machine import RoutedOptions
from millrace.replication.routed.messages import Stamp
from millrace.replication.routed.retained import RetainedOptions
from millrace.types import Subscription
from millrace.wire.mqtt.codec import encode_publish

TICK_US = US_PER_S // 20
_FLUSH_US_MAX = 500
_LIMITS = Limits()
OPTIONS = RoutedOptions(
    filters_per_message_max=2,
    retained=RetainedOptions(entries_per_message_max=2, entries_per_step_max=4, value_bytes_per_step_max=64),
)


class RoutedClient:
    """A client of one node for as long as its connection lasts."""

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self.session = session
        # Live messages by their text, and what came because it was retained.
        self.got: dict[str, int] = {}
        self.retained: dict[str, str] = {}
        self.next_id = 1

    @property
    def filters(self) -> list[str]:
        return list(self.session.subscriptions)


class RoutedHost:
    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        links: RoutedLinks,
        rng: Random,
        skew_ms: int,
        on_write: Callable[[str, str, str, Stamp], None],
    ) -> None:
        self.name = name
        self._clock = clock
        self._links = links
        self._rng = rng
        self._skew_ms = skew_ms
        self._on_write = on_write
        self.life = 0
        self.is_up = False
        self.clients: dict[str, RoutedClient] = {}
        self.broker: Broker
        self.interest: Interest
        self._is_awake = False

    # ------------------------------------------------------------------------------------- life

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.clients = {}
        self._is_awake = False
        self.broker = Broker(_LIMITS, AccessRules(()))
        self.interest = Interest(self.broker, now_ms=self._now_ms, wake=self.wake)
        self.interest.open(
            self.name,
            self,
            random=Random(self._rng.getrandbits(64)),
            wall_us=lambda: self._clock.now_us + self._skew_ms * 1000 + 1_000_000 * US_PER_S,
            options=OPTIONS,
        )
        self._clock.after(self._rng.randrange(TICK_US), self._tick, self.life)

    def crash(self) -> None:
        self.is_up = False
        self.clients = {}

    def _now_ms(self) -> int:
        return self._clock.now_us // 1000

    def _tick(self, life: int) -> None:
        if self.is_up and life == self.life:
            self.interest.tick()
            self.flush()
            self._clock.after(TICK_US, self._tick, life)

    def wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._clock.after(self._rng.randrange(1, _FLUSH_US_MAX), self._woken, self.life)

    def _woken(self, life: int) -> None:
        if self.is_up and life == self.life:
            self._is_awake = False
            self.flush()

    def flush(self) -> None:
        """The end of a turn of the loop: tell and forward, then hand out what gathered for clients."""
        self.interest.flush()
        outbound = self.broker.outbound
        for _ in range(10):
            dirty, outbound.dirty = outbound.dirty, []
            for session in dirty:
                session.dirty = False
                data, session.out = b"".join(session.out), []
                client = self.clients.get(session.client_id)
                if client is not None and client.session is session:
                    self._take(client, data)
            if not outbound.dirty:
                break
        self._check_counts()

    # ------------------------------------------------------------------------------------- links

    def send(self, replica: str, message: NodeMessage) -> bool:
        """Implements `Sender`."""
        return self._links.send(self, replica, message)

    def link_opened(self, peer: str) -> None:
        self.interest.link_opened(peer)

    def link_closed(self, peer: str) -> None:
        self.interest.link_closed(peer)

    def receive(self, peer: str, message: NodeMessage) -> None:
        if isinstance(message, RelayedRun):
            self.interest.on_relayed(peer, 0, message)
        elif isinstance(message, PeerBody):
            self.interest.on_peer(peer, 0, message)
        self.wake()

    # ----------------------------------------------------------------------------------- clients

    def connect(self, name: str) -> RoutedClient:
        """A clean session; one that was here before under this name ends."""
        request = ConnectRequest(
            client_id=name,
            clean_start=True,
            expiry_s=0,
            v5=False,
            window=100,
            packet_bytes_max=0,
            alias_max=0,
            principal=self.broker.rules.principal(None, name),
            will=None,
        )
        session, _, _ = self.broker.connect(request, self, self._now_ms())
        client = self.clients[name] = RoutedClient(name, session)
        self.broker.resume(session, self._now_ms())
        self.wake()
        return client

    def disconnect(self, name: str) -> None:
        client = self.clients.pop(name)
        self.broker.disconnect(client.session, self._now_ms(), will=True)
        self.wake()

    def subscribe(self, client: RoutedClient, filter: str, qos: int) -> None:
        subscription = Subscription(filter=filter, qos=qos)
        reason, is_new = self.broker.subscribe(client.session, subscription)
        self.broker.subscribed(client.session, [(subscription, reason, is_new)], self._now_ms())
        self.wake()

    def unsubscribe(self, client: RoutedClient, filter: str) -> None:
        self.broker.unsubscribe(client.session, filter)
        self.wake()

    def publish(self, client: RoutedClient, topic: str, text: str, qos: int, *, retain: bool = False) -> None:
        """`text` names the message, also the one with an empty payload that deletes a retained one."""
        payload = b"" if retain and text.startswith("x") else text.encode()
        client.next_id = client.next_id % 60_000 + 1
        packet = encode_publish(topic.encode(), payload, 0x30 | qos << 1, client.next_id if qos else 0, b"")
        session, now_ms = client.session, self._now_ms()
        if retain:
            run = Run(packet, 1, qos, False, True)
            self.broker.inbound.accept(session, topic, run, client.next_id, now_ms)
            self.flush()
            stamp = self.interest.machine.retained.stamp(topic)
            assert stamp is not None, "a deletion has one too"
            self._on_write(self.name, topic, text, stamp)
        else:
            route = self.broker.resolve(session, topic)
            self.broker.publish_runs(session, 0x30 | qos << 1, route, packet, 1, now_ms, 0)
            self.wake()
        if qos == 2:
            self.broker.on_pubrel(session, client.next_id, 1)

    def _take(self, client: RoutedClient, data: bytes) -> None:
        """What the node sent this client: remember it, and answer."""
        at = 0
        while at < len(data):
            first = data[at]
            if first & 0xF0 != 0x30:
                length = data[at + 1]
                if first == 0x62:
                    packet_id = int.from_bytes(data[at + 2 : at + 4], "big")
                    self.broker.on_acks(client.session, 0x70, packet_id, 1, self._now_ms())
                at += 2 + length
                continue
            end = skip(data, 1, at)
            self._take_publish(client, data[at:end])
            at = end

    def _take_publish(self, client: RoutedClient, packet: bytes) -> None:
        body = 1
        while packet[body] > 127:
            body += 1
        body += 1
        size = packet[body] << 8 | packet[body + 1]
        topic = packet[body + 2 : body + 2 + size].decode()
        at = body + 2 + size
        qos = packet[0] >> 1 & 3
        if qos:
            packet_id = int.from_bytes(packet[at : at + 2], "big")
            at += 2
            self.broker.on_acks(client.session, 0x40 if qos == 1 else 0x50, packet_id, 1, self._now_ms())
        text = packet[at:].decode()
        if packet[0] & 1:
            client.retained[topic] = text
            return
        client.got[text] = client.got.get(text, 0) + 1
        if text and client.got[text] > 1:
            raise Violation("one copy", f"{client.name} at {self.name} got {text} on {topic} twice")

    # ------------------------------------------------------------------------------------ checks

    def held(self) -> dict[str, int]:
        """Subscriptions of the clients here by filter, counted from the clients."""
        counts: dict[str, int] = {}
        for client in self.clients.values():
            for filter in client.filters:
                if not split_share(filter)[1].startswith("$"):
                    counts[filter] = counts.get(filter, 0) + 1
        return counts

    def _check_counts(self) -> None:
        counted = self.interest.machine.counts()
        if counted != self.held():
            raise Violation("counts", f"{self.name} counts {counted}, its clients hold {self.held()}")

    def known_of(self, peer: str) -> set[str] | None:
        return self.interest.machine.known_of(ReplicaId(peer))

    def kept(self) -> dict[str, str]:
        """Retained messages as the broker has them."""
        return {topic: _text(run) for topic, run in self.broker.retained.match("#", self._now_ms())}


def _text(run: Run) -> str:
    data = run.data
    body = 2 if data[1] < 128 else 3
    at = body + 2 + (data[body] << 8 | data[body + 1]) + (2 if run.qos else 0)
    return data[at:].decode()
