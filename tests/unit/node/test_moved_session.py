"""Two nodes on one log of sessions: what a client finds, and what it leaves, when it comes to the other."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.entries.sessions import (
    SESSION_ENTRIES,
    Adopted,
    Discarded,
    Opened,
    Operation,
    SessionBatch,
    Unanswered,
)
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Segment
from millrace.broker.sessions.journal import ResumeConnection
from millrace.broker.sessions.session import WillPlan
from millrace.broker.sessions.session_store import SessionStore
from millrace.broker.sessions.unfinished import PackedSegment, pack
from millrace.limits import Limits
from millrace.node.peers.messages import HandedOn, HandedOver, HandOver
from millrace.node.sessions.handover import Handover
from millrace.node.sessions.session_group import SessionGroup, resume_all
from millrace.reasons import Reason
from millrace.storage.block import Kind, opaque_block
from millrace.types import Version
from millrace.wire.mqtt.packets import Connack, Publish
from unit.broker.test_unfinished import run
from unit.node.house import Client, House, will


class Told:
    """In place of a house's own disk: what one node writes is applied at both."""

    def __init__(self, groups: dict[str, SessionGroup]) -> None:
        self._groups = groups

    def apply(self, batch: SessionBatch) -> None:
        block = opaque_block(Kind.CONTROL, SESSION_ENTRIES.encode([batch]))
        for group in self._groups.values():
            group.apply(block, None)


class Two:
    def __init__(self) -> None:
        self.groups: dict[str, SessionGroup] = {}
        self.a, self.b = self._house("a"), self._house("b")

    def _house(self, name: str) -> House:
        house = House(keeps_records=True)
        house.broker.node = name
        group = self.groups[name] = SessionGroup(house.broker, lambda: house.now_ms, house.door.wake)
        house.broker.records = group
        house.store = Told(self.groups)  # type: ignore[assignment]
        return house

    def tell(self, operation: Operation) -> None:
        """What a node wrote gets into the log, whatever became of whoever waited for it."""
        Told(self.groups).apply(SessionBatch("a", [operation]))

    def fell(self, name: str) -> None:
        """This node hears and says nothing any more."""
        del self.groups[name]

    def settle(self) -> None:
        for _ in range(3):
            for house in (self.a, self.b):
                if house.broker.node not in self.groups:
                    continue
                house.is_awake = True
                house.turn()

    def left_at_a(self, **fields: Any) -> Client:
        """A session that is kept, with one subscription."""
        client = self.a.connect("c", resume=True, **fields)
        client.subscribe("t", qos=1)
        self.settle()
        return client

    @property
    def records(self) -> list[dict[str, Any]]:
        return [dict(group.store.records) for group in self.groups.values()]


def test_a_clean_start_elsewhere_ends_the_session_that_was_kept() -> None:
    """[MQTT-3.1.2-4], whichever node the client comes to."""
    two = Two()
    old = two.left_at_a()
    two.b.connect("c", clean_start=True)
    two.settle()
    assert two.records == [{}, {}] and "c" not in two.a.broker.sessions
    assert old.reason_of_close() is Reason.SESSION_TAKEN_OVER
    assert not two.b.connect("c", resume=True).connack.session_present


def test_a_late_word_of_a_clean_start_leaves_the_session_that_came_after_it() -> None:
    two = Two()
    two.left_at_a()
    epoch = two.groups["a"].store.records["c"].epoch
    two.a.connect("c", resume=True)
    Told(two.groups).apply(SessionBatch("b", [Discarded("c", epoch)]))
    two.settle()
    assert "c" in two.a.broker.sessions and all("c" in records for records in two.records)


def test_a_session_is_resumed_elsewhere_by_a_client_that_keeps_it_no_longer() -> None:
    """[MQTT-3.1.2-5]: clean start 0 takes it up, whatever becomes of it afterwards."""
    two = Two()
    two.left_at_a().drop()
    two.settle()
    client = two.b.connect("c", clean_start=False)
    assert client.connack.session_present
    two.b.connect("p").publish("t", b"1", qos=1)
    assert client.payloads() == [b"1"]
    client.disconnect()
    two.settle()
    assert two.records == [{}, {}]


@pytest.mark.parametrize(
    ("delay_s", "is_clean", "is_kept", "is_published"),
    [(0, True, True, True), (9, True, True, True), (9, True, False, True), (0, False, True, True),
     (9, False, True, False)],
)  # fmt: skip
def test_the_will_of_the_old_connection_is_published_as_on_one_node(
    delay_s: int, is_clean: bool, is_kept: bool, is_published: bool
) -> None:
    """3.1.3.2.2: unless its delay has not passed and the session goes on."""
    two = Two()
    watcher = two.a.connect("w")
    watcher.subscribe("gone")
    two.left_at_a(will=will("gone", b"x", delay_s=delay_s))
    two.b.connect("c", clean_start=is_clean, session_expiry_s=100 if is_kept else 0)
    two.settle()
    assert watcher.payloads() == ([b"x"] if is_published else [])


def handed_over(house: House, *texts: str) -> tuple[Handover, list[PackedSegment]]:
    handover = Handover(
        house.broker,
        None,  # type: ignore[arg-type]
        is_on=True,
        now_ms=lambda: house.now_ms,
        wake=house.door.wake,
    )
    segments = [Segment(run(text), 1, 1, False, b"") for text in texts]
    return handover, pack(segments, house.now_ms)[0]


@pytest.mark.parametrize("has_majority", [True, False])
def test_a_node_that_is_asked_answers_once_the_record_says_what_is_not_answered(has_majority: bool) -> None:
    """Else the new node could open the session first, and the rest of the record would be void. Without a
    majority to write it, what no log holds is not kept from the client."""

    async def story() -> None:
        house = House(keeps_records=True)
        client = house.connect("c", resume=True)
        client.subscribe("t", qos=1)
        house.broker.log_ends[16] = 1
        logged = run("x")
        logged.shard, logged.offset = 16, 0
        session = house.broker.sessions["c"]
        house.broker.outbound.send(session, Segment(logged, 1, 1, False, b""), house.now_ms)
        house.is_awake = True
        house.turn()
        (sent,) = client.take(Publish)
        handover, _ = handed_over(house)
        asked = asyncio.create_task(handover.on_request("b", HandOver("c")))
        await asyncio.sleep(0)
        assert client.connection.session is None or house.broker.sessions["c"].connection is None
        assert not asked.done()
        if has_majority:
            house.turn()
            assert house.store.records["c"].unanswered == (Unanswered(sent.packet_id or 0, 1, 16, 0, 1),)
        assert await asked == HandedOver()

    asyncio.run(story())


@pytest.mark.parametrize("goes", [False, True])
def test_what_came_along_stays_before_what_comes_and_with_a_client_that_goes(goes: bool) -> None:
    """Before CONNACK other nodes are told of its filters: that takes a while, and messages come meanwhile."""
    house = House(keeps_records=True)
    client = house.connect("c", resume=True)
    client.subscribe("t", qos=1)
    client.drop()
    handover, messages = handed_over(house, "1", "2")
    handover._hold("c", HandedOver(tuple(messages)))
    known: list[Any] = []
    house.door.session_opened, house.door.when_known = handover.opened, known.append
    client = house.open()
    client.connect("c", version=Version.MQTT_5, clean_start=False, session_expiry_s=1000)
    house.door.when_known = lambda then: then()
    house.connect("p").publish("t", b"3", qos=1)
    if goes:
        client.drop()
    known[0]()
    house.turn()
    if goes:
        client = house.connect("c", resume=True)
    assert client.payloads() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_noted", [False, True])
def test_what_a_member_leaves_behind_goes_to_others_unless_its_record_has_it(
    qos: int, is_noted: bool
) -> None:
    """The node was cut off: the word that the member has a QoS 2 message came after that it is another
    node's, and changed nothing. The group is still here, so nobody else would give it."""
    house = House(keeps_records=True)
    gone, staying = (house.connect(name, resume=True) for name in ("a", "b"))
    for client in (gone, staying):
        client.subscribe("$share/g/t", qos=2)
    group = house.broker.groups["$share/g/t"]
    for offset in (1, 2):
        one = run(str(offset), qos)
        one.shard, one.offset = 16, offset
        house.broker.outbound.share_out(group, one, house.now_ms)
    if is_noted:
        house.is_awake = True
        house.turn()
    house.broker.release(house.broker.sessions["a"], house.now_ms)
    house.is_awake = True
    house.turn()
    is_with_its_session = qos == 2 and is_noted
    assert len(staying.payloads()) == (1 if is_with_its_session else 2)


def send_mixed(house: House, qos: tuple[int, ...], *, offset: int = 0) -> None:
    """Messages of one log for client c, in the order of the log, in one turn."""
    session = house.broker.sessions["c"]
    for at, one_qos in enumerate(qos, offset):
        one = run(str(at), one_qos)
        one.shard, one.offset = 16, at
        house.broker.outbound.send(session, Segment(one, 1, one_qos, False, b""), house.now_ms)
    house.broker.log_ends[16] = offset + len(qos)


def mixed_house(*qos: int) -> tuple[House, Client]:
    house = House(keeps_records=True)
    house.broker.log_ends[16] = 0
    client = house.connect("c", resume=True)
    client.subscribe("t", qos=2)
    send_mixed(house, qos)
    return house, client


def settle(house: House) -> None:
    """What waits for the disk gets there."""
    house.is_awake = True
    house.turn()


def ids_of(messages: list[Publish]) -> list[int | None]:
    return [one.packet_id for one in messages]


def test_what_overtook_a_message_at_qos_2_comes_again_before_it() -> None:
    """It waited for its id to be written, and left after those at QoS 1 that came behind it (MQTT 4.6)."""
    house, client = mixed_house(2, 1, 1, 2)
    settle(house)
    first = client.messages()
    assert [one.message.payload for one in first] == [b"1", b"2", b"0", b"3"]
    send_mixed(house, (2, 1), offset=4)
    settle(house)
    first += client.messages()
    assert [one.message.payload for one in first[4:]] == [b"5", b"4"]
    for _ in range(3):
        client.drop()
        client = house.connect("c", resume=True)
        again = client.messages()
        assert ids_of(again) == ids_of(first)
        assert all(one.dup for one in again)
        # By that of the first it is known whether new ids would meet those of the others.
        serials = [one.serial for one in house.broker.sessions["c"].inflight or ()]
        assert serials == sorted(set(serials)) and len(serials) == len(first)


@pytest.mark.parametrize("is_written", [True, False])
def test_the_record_names_what_overtook_a_message_at_qos_2_before_it(is_written: bool) -> None:
    """Also where the word on both is written before the later one has left."""
    house, client = mixed_house(1, 2, 1)
    if is_written:
        settle(house)
    house.broker.checkpoint()
    settle(house)
    first = client.messages()
    assert [one.message.payload for one in first] == [b"0", b"2", b"1"]
    restored = house.broker.recording.unanswered(house.store.records["c"])
    assert [run.first_id for run in restored] == ids_of(first)


def test_the_rest_waits_for_a_session_that_opens_next() -> None:
    """The old node may hear first that the session moved."""
    house = House(keeps_records=True)
    house.connect("c", resume=True).subscribe("t", qos=1)
    house.broker.release(house.broker.sessions["c"], house.now_ms)
    handover, messages = handed_over(house, "1", "2")
    handover.on_rest("other", 0, HandedOn("c", tuple(messages[:1])))
    handover.on_rest("other", 0, HandedOn("c", tuple(messages[1:])))
    house.door.session_opened = handover.opened
    assert house.connect("c", resume=True).payloads() == [b"1", b"2"]


def test_a_connection_that_went_while_its_session_was_fetched_opens_nothing() -> None:
    """Its client is there again: what the old one would write displaces the new."""
    house = House(keeps_records=True)
    fetched: list[Callable[[], None]] = []
    house.door.fetch_session = lambda _, user, then: fetched.append(then)
    first = house.open()
    first.connect("c", version=Version.MQTT_5, clean_start=False, session_expiry_s=86_400)
    first.drop()
    house.door.fetch_session = lambda _, user, then: then()
    second = house.connect("c", resume=True)
    (late,) = fetched
    late()
    house.turn()
    assert not second.is_closed
    second.ping()


def test_a_connection_that_went_while_its_session_was_fetched_displaces_none_that_is_opening() -> None:
    house = House(keeps_records=True)
    fetched: list[Callable[[], None]] = []
    house.door.fetch_session = lambda _, user, then: fetched.append(then)
    clients = [house.open() for _ in range(2)]
    for client in clients:
        client.connect("c", version=Version.MQTT_5, clean_start=False, session_expiry_s=86_400)
    first, second = clients
    first.drop()
    for then in reversed(fetched):
        then()
    house.turn()
    assert [connack.reason for connack in second.take(Connack)] == [Reason.SUCCESS]
    assert not second.is_closed


@pytest.mark.parametrize("is_first_fetched_first", [True, False])
def test_of_two_connections_whose_session_is_fetched_the_later_one_stays(
    is_first_fetched_first: bool,
) -> None:
    """The messages of the later one may be here first; its client has given up the earlier one."""
    house = House(keeps_records=True)
    fetched: list[Callable[[], None]] = []
    house.door.fetch_session = lambda _, user, then: fetched.append(then)
    clients = [house.open() for _ in range(2)]
    for client in clients:
        client.connect("c", version=Version.MQTT_5, clean_start=False, session_expiry_s=86_400)
    for then in fetched if is_first_fetched_first else reversed(fetched):
        then()
    house.turn()
    first, second = clients
    assert [connack.reason for connack in second.take(Connack)] == [Reason.SUCCESS]
    assert first.is_closed and not second.is_closed


class _GoneSocket:
    """A connection whose socket was closed: the event loop's transport raises when it is told to read on."""

    peer = ("127.0.0.1", 1)

    def __init__(self) -> None:
        self.transport = self
        self.is_aborted = False

    def resume(self, duty: object) -> None:
        raise RuntimeError("unable to perform operation on a closed transport")

    def abort(self) -> None:
        self.is_aborted = True


class _Served:
    def __init__(self) -> None:
        self.duties: list[object] = []

    def resume(self, duty: object) -> None:
        self.duties.append(duty)


def test_a_socket_that_is_gone_hurts_nobody_who_waits_for_the_same_entry() -> None:
    """The waiters of an entry are told while the log is applied; an error there would end a peer's link."""
    gone, served = _GoneSocket(), _Served()
    waiting = [ResumeConnection(gone, "first"), ResumeConnection(served, "second")]
    resume_all(Broker(Limits(), AccessRules()), waiting)
    assert gone.is_aborted
    assert served.duties == ["second"]


def test_the_will_of_a_node_that_fell_outlives_an_older_connection() -> None:
    """Seed 8102047 of whole nodes: the client gave up a CONNECT at a node that was cut off, and connected at
    another, which fell. Then the older CONNECT got into the log and took the record. Nobody remembers the
    will that was in it; whoever looks after what the node left publishes it, once."""
    two = Two()
    watcher = two.a.connect("w")
    watcher.subscribe("gone")
    two.b.connect("c", will=will("gone", b"newer"))
    epoch = two.groups["a"].store.records["c"].epoch
    two.fell("b")
    saved = WillPlan("gone", run("older", qos=0), 0, None).saved()
    two.tell(Opened("c", True, None, 0, saved, "a"))
    assert watcher.payloads() == []
    assert two.groups["a"].store.owners == {"a": 1, "b": 1}
    two.tell(Adopted("b", "a", 0))
    two.settle()
    assert watcher.payloads() == [b"newer"]
    assert two.groups["a"].store.displaced_wills("c") == ()
    assert two.groups["a"].store.records["c"].epoch > epoch


def test_a_node_that_is_taken_for_gone_keeps_the_sessions_that_the_other_did_not_know() -> None:
    """Their records name it still, so nobody else would look after them."""
    two = Two()
    known = two.b.connect("known", resume=True)
    two.settle()
    known_epoch = two.groups["a"].store.incarnations
    later = two.b.connect("later", resume=True)
    two.settle()
    two.tell(Adopted("b", "a", 0, known_epoch))
    two.settle()
    assert known.reason_of_close() is Reason.USE_ANOTHER_SERVER
    assert set(two.b.broker.sessions) == {"later"} and set(two.a.broker.sessions) == {"known"}
    later.subscribe("t")
    later.publish("t", b"1")
    assert later.payloads() == [b"1"]


def test_a_node_publishes_after_its_start_the_will_that_was_displaced_meanwhile() -> None:
    two = Two()
    two.b.connect("c", will=will("gone", b"newer"))
    two.fell("b")
    two.tell(Opened("c", True, None, 0, None, "a"))
    store = two.groups["a"].store
    two.b = two._house("b")
    two.groups["b"].store = SessionStore.from_bytes(store.to_bytes())
    watcher = two.b.connect("w")
    watcher.subscribe("gone")
    two.groups["b"].begin()
    two.settle()
    assert watcher.payloads() == [b"newer"] and not store.displaced


def test_a_goodbye_whose_word_comes_late_is_a_goodbye() -> None:
    """The next connection is in the log before it: the will is displaced, and not to be published."""
    two = Two()
    watcher = two.b.connect("w")
    watcher.subscribe("gone")
    client = two.b.connect("c", will=will("gone", b"x"))
    late, two.b.store = two.b.store, SessionStore()
    client.disconnect()
    two.b.store = late
    two.tell(Opened("c", True, None, 0, None, "a"))
    two.settle()
    assert watcher.payloads() == [] and not two.groups["a"].store.displaced


def test_a_will_that_nobody_published_is_forgotten_when_its_client_is_back() -> None:
    two = Two()
    two.b.connect("c", will=will("gone", b"x"))
    two.fell("b")
    two.a.connect("c", will=will("gone", b"y"))
    two.settle()
    assert not two.groups["a"].store.displaced
