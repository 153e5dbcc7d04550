"""Random lives of clients against a simple model of what they must get.

Clients with kept sessions connect, subscribe, publish at every QoS, acknowledge some of what they got, in any
order, lose their connections and come back with other windows and versions. The model keeps one list per
session: what was published while it was subscribed. At the end everybody is connected and answers everything,
and then, for each session:

- nothing at QoS 1 or 2 is missing, and nothing came that was not asked for,
- QoS 2 came once, QoS 1 again only with the DUP flag,
- messages of one topic and QoS came in the order in which they were published,
- no packet id was used twice at a time, and no more messages were open than the client allowed.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.types import Message, Subscription
from millrace.wire.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Unsubscribe
from unit.node.house import Client, House

NAMES = ("a", "b", "c")
TOPICS = ("x", "y/1", "y/2")
FILTERS = {"x": ("x",), "y/+": ("y/1", "y/2"), "#": TOPICS, "y/1": ("y/1",)}


@dataclass
class Peer:
    """A client of the model: what it holds, what it is owed, what it got."""

    name: str
    client: Client | None = None
    window: int = 65_535
    subscriptions: dict[str, int] = field(default_factory=dict)
    # (number, topic, qos) in the order of publishing.
    owed: list[tuple[int, str, int]] = field(default_factory=list)
    got: list[tuple[int, str, int]] = field(default_factory=list)
    # Of this connection: messages and releases that are not answered.
    messages: list[Publish] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    # Of the session: QoS 2 ids that were received and not released.
    held: set[int] = field(default_factory=set)
    # QoS 2 publishes of its own that are not released, by id.
    unreleased: dict[int, Message] = field(default_factory=dict)
    next_id: int = 0

    def forget(self) -> None:
        for things in (self.subscriptions, self.owed, self.got, self.held, self.unreleased):
            things.clear()
        self.lose()

    def lose(self) -> None:
        self.client = None
        self.messages.clear()
        self.releases.clear()

    def packet_id(self) -> int:
        self.next_id = self.next_id % 65_535 + 1
        while self.next_id in self.unreleased:
            self.next_id += 1
        return self.next_id

    def wants(self, topic: str) -> int | None:
        """The QoS at which it is subscribed to this topic, None where it is not."""
        return max((qos for f, qos in self.subscriptions.items() if topic in FILTERS[f]), default=None)

    def read(self) -> None:
        """Take what came, as a correct receiver of MQTT does."""
        if self.client is None:
            return
        for packet in self.client.read():
            if isinstance(packet, Pubrel):
                self.held.discard(packet.packet_id)
                self.releases.append(packet.packet_id)
            elif isinstance(packet, Publish):
                self._take(packet)

    def _take(self, packet: Publish) -> None:
        message, packet_id = packet.message, packet.packet_id
        fact = (int(message.payload), message.topic, message.qos)
        if packet_id is None:
            self.got.append(fact)
            return
        open_ids = [m.packet_id for m in self.messages] + self.releases
        assert packet_id not in open_ids, f"id {packet_id} is open and was given again"
        self.messages.append(packet)
        assert len(self.messages) + len(self.releases) <= self.window, "the window is exceeded"
        if message.qos == 1:
            assert packet.dup or fact not in self.got, f"{fact} came twice without DUP"
            self.got.append(fact)
        elif packet_id not in self.held:
            assert fact not in self.got, f"{fact} came twice at QoS 2"
            self.held.add(packet_id)
            self.got.append(fact)


class Lives(RuleBasedStateMachine):
    @initialize(keeps_records=st.booleans(), filters=st.tuples(*[st.sampled_from(tuple(FILTERS))] * 3))
    def open(self, keeps_records: bool, filters: tuple[str, ...]) -> None:
        """Everybody is there and wants something: what follows has somebody to happen to."""
        self.house = House(keeps_records=keeps_records)
        self.peers = {name: Peer(name) for name in NAMES}
        self.number = 0
        for name, filter in zip(NAMES, filters, strict=True):
            self.connect(name=name, window=65_535, v5=True, clean=False)
            self.subscribe(name=name, filter=filter, qos=2)

    # Comings and goings

    @rule(
        name=st.sampled_from(NAMES),
        window=st.sampled_from((1, 2, 5, 65_535)),
        v5=st.booleans(),
        clean=st.integers(0, 9).map(lambda n: n == 0),
    )
    def connect(self, name: str, window: int, v5: bool, clean: bool) -> None:
        """Also on top of a live connection, which is then taken over."""
        peer = self.peers[name]
        if clean:
            peer.forget()
        peer.lose()
        # 3.1.1 has no word for a window; the broker's own is used.
        peer.window = window if v5 else 65_535
        fields = {"receive_maximum": window} if v5 else {}
        if clean:
            # A start without the old session that is kept from now on: two steps before MQTT 5.
            self.house.connect(name, v5=v5).drop()
        peer.client = self.house.connect(name, v5=v5, resume=True, **fields)
        assert peer.client.connack.session_present == bool(peer.subscriptions or self._known(peer))
        peer.read()

    def _known(self, peer: Peer) -> bool:
        return peer.client is not None and peer.client.connack.session_present

    @rule(name=st.sampled_from(NAMES), politely=st.booleans())
    def leave(self, name: str, politely: bool) -> None:
        peer = self.peers[name]
        if peer.client is not None:
            peer.read()
            if politely:
                peer.client.disconnect()
            else:
                peer.client.drop()
            peer.lose()

    # Subscriptions

    @rule(name=st.sampled_from(NAMES), filter=st.sampled_from(tuple(FILTERS)), qos=st.integers(0, 2))
    def subscribe(self, name: str, filter: str, qos: int) -> None:
        peer = self.peers[name]
        if peer.client is not None:
            subscription = Subscription(filter=filter, qos=qos)
            peer.client.send(Subscribe(packet_id=peer.packet_id(), subscriptions=(subscription,)))
            peer.subscriptions[filter] = qos
            peer.read()

    @rule(name=st.sampled_from(NAMES), filter=st.sampled_from(tuple(FILTERS)))
    def unsubscribe(self, name: str, filter: str) -> None:
        peer = self.peers[name]
        if peer.client is not None:
            peer.client.send(Unsubscribe(packet_id=peer.packet_id(), filters=(filter,)))
            peer.subscriptions.pop(filter, None)
            peer.read()

    # Messages

    @rule(
        name=st.sampled_from(NAMES),
        topic=st.sampled_from(TOPICS),
        qos=st.integers(0, 2),
        count=st.sampled_from((1, 1, 2, 7)),
    )
    def publish(self, name: str, topic: str, qos: int, count: int) -> None:
        """One or several in one chunk."""
        publisher = self.peers[name]
        if publisher.client is None:
            return
        packets = []
        for _ in range(count):
            self.number += 1
            message = Message(topic=topic, payload=b"%d" % self.number, qos=qos)
            packet_id = publisher.packet_id() if qos else None
            packets.append(Publish(message=message, packet_id=packet_id))
            if qos == 2 and packet_id is not None:
                publisher.unreleased[packet_id] = message
            for peer in self.peers.values():
                wanted = peer.wants(topic)
                if wanted is None:
                    continue
                level = min(qos, wanted)
                if level or peer.client is not None:
                    peer.owed.append((self.number, topic, level))
        publisher.client.send(*packets)
        self._read_all()

    @rule(name=st.sampled_from(NAMES), release=st.booleans())
    def repeat_or_release(self, name: str, release: bool) -> None:
        """The publisher's side of QoS 2: send again what was not released, or release it."""
        peer = self.peers[name]
        if peer.client is None or not peer.unreleased:
            return
        packet_id = next(iter(peer.unreleased))
        if release:
            del peer.unreleased[packet_id]
            peer.client.send(Pubrel(packet_id=packet_id))
        else:
            peer.client.send(Publish(message=peer.unreleased[packet_id], packet_id=packet_id, dup=True))
        self._read_all()

    @rule(name=st.sampled_from(NAMES), choice=st.integers(0, 20), count=st.integers(1, 5))
    def answer(self, name: str, choice: int, count: int) -> None:
        """Any message that is open, not always the oldest."""
        peer = self.peers[name]
        for _ in range(count):
            if peer.client is None or not peer.messages:
                return
            packet = peer.messages.pop(choice % len(peer.messages) if choice < 10 else 0)
            assert packet.packet_id is not None
            kind = Puback if packet.message.qos == 1 else Pubrec
            peer.client.send(kind(packet_id=packet.packet_id))
            peer.read()

    @rule(name=st.sampled_from(NAMES), choice=st.integers(0, 20))
    def complete(self, name: str, choice: int) -> None:
        peer = self.peers[name]
        if peer.client is not None and peer.releases:
            packet_id = peer.releases.pop(choice % len(peer.releases))
            peer.client.send(Pubcomp(packet_id=packet_id))
            peer.read()

    def _read_all(self) -> None:
        for peer in self.peers.values():
            peer.read()

    # What must hold

    @invariant()
    def counts_are_consistent(self) -> None:
        broker = self.house.broker
        assert broker.connected == sum(peer.client is not None for peer in self.peers.values())
        for session in broker.sessions.values():
            for segments in (session.inflight, session.resending, session.queue):
                assert all(segment.count > 0 for segment in segments or ())
            waiting = sum(segment.count for segment in session.queue or ())
            assert session.queued_messages == waiting and session.queued_bytes >= 0

    @rule()
    @precondition(lambda self: self.number > 0)
    def settle(self) -> None:
        """Everybody is there and answers everything: now the accounts must balance."""
        for name in NAMES:
            if self.peers[name].client is None:
                self.connect(name=name, window=3, v5=True, clean=False)
        for _ in range(2_000):
            if not any(peer.messages or peer.releases for peer in self.peers.values()):
                break
            for name in NAMES:
                self.answer(name=name, choice=20, count=5)
                self.complete(name=name, choice=0)
        else:
            raise AssertionError("the messages do not come to an end")
        for peer in self.peers.values():
            self._check(peer)

    def _check(self, peer: Peer) -> None:
        firsts = list(dict.fromkeys(peer.got))
        assert sorted(firsts) == sorted(peer.owed), f"{peer.name}: got {firsts}, owed {peer.owed}"
        for topic in TOPICS:
            for qos in (0, 1, 2):
                came = [fact for fact in firsts if fact[1:] == (topic, qos)]
                assert came == sorted(came), f"{peer.name}: {topic} at QoS {qos} came as {came}"
        session = self.house.broker.sessions[peer.name]
        assert session.in_use() == set() and session.inflight_count == 0 and not session.queue

    def teardown(self) -> None:
        if getattr(self, "number", 0):
            self.settle()


Lives.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestLives = Lives.TestCase
