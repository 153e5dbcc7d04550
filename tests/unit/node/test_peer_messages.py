"""Messages between nodes: each type has a tag and comes back as it was; bad bytes close one link only."""

import asyncio
import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.messages.message import Run
from millrace.errors import LocalError, MalformedPacket
from millrace.node.config import Address
from millrace.node.pairs import frame_messages as frame
from millrace.node.peers import messages, registry
from millrace.node.peers.links import Links
from millrace.node.peers.messages import (
    ClientConnected,
    FetchBlocks,
    FetchedBlocks,
    ForwardedBlock,
    HandOver,
    Identity,
    NodeMessage,
    PairSwitched,
    Refused,
    RelayedRun,
    SwitchPair,
)
from millrace.node.peers.messenger import Messenger
from millrace.node.peers.registry import REQUEST_TAGS, TYPES, UnknownTag, decode, encode
from millrace.replication.contract import Config, EntryKind, ReplicaId, Snapshot
from millrace.replication.leaderless.messages import Entries, LogEntry, Origin
from millrace.replication.raft.messages import Append, Heartbeat, SnapshotChunk
from millrace.storage.block import Kind, opaque_block
from millrace.types import Index, Term
from millrace.wire.peer import FRAME_HEAD_BYTES, Frames
from waiting import until_async

PACKET = b"\x30\x04\x00\x01tx"
RUN = frame.encode_run(Run(PACKET, 1, 0, False), (b"", 0), 0)


def block(payload: bytes) -> Any:
    return opaque_block(Kind.CONTROL, payload)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may have on its way."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return values(kind.__supertype__)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, arguments))
    if kind is type(None):
        return st.none()
    if kind is int:
        return st.integers(0, 2**63 - 1)
    if kind is str:
        return st.text(max_size=8)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if kind in (bool, bytes):
        return st.from_type(kind)
    if kind is Config:
        return st.builds(Config, voters=st.sets(st.text(max_size=8)).map(lambda names: tuple(sorted(names))))
    fields = typing.get_type_hints(kind)
    if issubclass(kind, tuple) or dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct):
        return st.builds(kind, **{name: values(hint) for name, hint in fields.items()})
    raise AssertionError(f"what is {kind}?")


SPECIAL: dict[type, st.SearchStrategy[Any]] = {
    ForwardedBlock: st.builds(ForwardedBlock, st.sampled_from(EntryKind), st.binary(max_size=40).map(block)),
    RelayedRun: st.builds(
        RelayedRun, st.integers(0, 2), st.booleans(), st.booleans(), st.text(max_size=8), st.binary()
    ),
    Entries: st.builds(
        Entries,
        origin=values(Origin),
        first_index=values(int),
        base_offset=values(int),
        entries=st.lists(
            st.builds(LogEntry, kind=st.just(EntryKind.CONTROL), count=st.just(0), payload=st.binary())
        ).map(tuple),
    ),
    frame.Copies: st.builds(
        frame.Copies,
        epoch=values(int),
        rows=st.lists(st.builds(frame.CopyRow, values(int), st.just(1), st.booleans(), st.just(RUN))),
    ),
}


def strategy_of(tag: int) -> st.SearchStrategy[NodeMessage]:
    kind = TYPES[tag]
    return SPECIAL[kind] if kind in SPECIAL else values(kind)


def all_messages() -> st.SearchStrategy[NodeMessage]:
    return st.sampled_from(sorted(TYPES)).flatmap(strategy_of)


def frames_of(data: bytes) -> list[tuple[int, int, bytes]]:
    return list(Frames().receive(data))


def shown(message: NodeMessage) -> Any:
    if isinstance(message, ForwardedBlock):
        return message.kind, message.block.to_bytes()
    return message


@given(all_messages(), st.integers(0, 2**32 - 1))
def test_every_message_comes_back_as_it_was(message: NodeMessage, number: int) -> None:
    ((tag, found, body),) = frames_of(bytes(encode(message, number)))
    again = decode(tag, body)
    assert TYPES[tag] is type(message) is type(again)
    assert found == number
    assert shown(again) == shown(message)


def read(tag: int, body: bytes) -> None:
    """Decoding has no other outcome than a message and the one documented error."""
    try:
        message = decode(tag, body)
    except MalformedPacket:
        return
    assert type(message) is TYPES[tag]


@given(st.integers(0, 255), st.binary(max_size=200))
def test_random_bytes_are_a_message_or_malformed(tag: int, body: bytes) -> None:
    read(tag, body)


@given(all_messages(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_a_changed_frame_is_a_message_or_malformed(
    message: NodeMessage, random: Random, changes: int
) -> None:
    whole = bytearray(encode(message))
    tag, body = whole[4], whole[FRAME_HEAD_BYTES:]
    for _ in range(changes):
        how, at = random.randrange(4), random.randrange(len(body) + 1)
        if how == 0:
            del body[at:]
        elif how == 1:
            body[at:at] = random.randbytes(random.randrange(1, 5))
        elif how == 2 and at < len(body):
            body[at] ^= 1 << random.randrange(8)
        else:
            tag = random.choice((tag, random.randrange(256)))
    read(tag, bytes(body))


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(TYPES)))
def test_a_tag_that_nobody_gave_is_unknown(tag: int) -> None:
    with pytest.raises(UnknownTag):
        decode(tag, b"\x90")


def test_deep_nesting_is_malformed() -> None:
    for tag in TYPES:
        read(tag, b"\x91" * 100_000)


def test_a_message_of_numbers_is_small() -> None:
    tag = encode(Heartbeat(term=Term(1), commit=Index(1), context=1))[4]
    with pytest.raises(MalformedPacket, match="has 1025 bytes"):
        decode(tag, bytes(1025))


def test_an_entry_with_a_block_that_cannot_be_read_is_malformed() -> None:
    entry = LogEntry(kind=EntryKind.DATA, count=1, payload=b"no block")
    sent = Entries(origin=Origin("n", 1), first_index=1, base_offset=0, entries=(entry,))
    ((tag, _, body),) = frames_of(bytes(encode(sent)))
    with pytest.raises(MalformedPacket, match="block"):
        decode(tag, body)


def test_values_that_nobody_may_make_are_malformed() -> None:
    """Their fault, though the same values made here would be ours."""
    config = Config(voters=(ReplicaId("a"), ReplicaId("b")))
    snapshot = Snapshot(index=Index(1), term=Term(1), config=config, size_bytes=1, checksum=0)
    ((tag, _, body),) = frames_of(
        bytes(encode(SnapshotChunk(term=Term(1), snapshot=snapshot, position=0, data=b"x")))
    )
    with pytest.raises(MalformedPacket, match="sorted and unique"):
        decode(tag, body.replace(b"\xa1b", b"\xa1a"))


def test_a_copy_that_cannot_be_read_is_malformed() -> None:
    ((tag, _, body),) = frames_of(bytes(encode(frame.Copies(1, [frame.CopyRow(1, 1, False, b"\x90")]))))
    with pytest.raises(MalformedPacket):
        decode(tag, body)


def test_the_bytes_of_a_block_are_in_its_frame_as_they_are() -> None:
    payload = bytes(range(256)) * 64
    for message in (
        ForwardedBlock(EntryKind.CONTROL, block(payload)),
        RelayedRun(1, False, False, "", payload),
        FetchedBlocks((payload,)),
    ):
        assert payload in encode(message)


def test_requests_have_tags_of_their_own() -> None:
    """By which a node that does not know one can still refuse it."""
    assert set(registry.REQUESTS) == set(TYPES) & set(REQUEST_TAGS)


# --------------------------------------------------------------------------------------------- messenger


class Wire:
    """In place of links: two messengers that hear each other, frame by frame."""

    def __init__(self, name: str, other: Messenger) -> None:
        self._name = name
        self._other = other
        self.frames: list[bytes | bytearray] = []
        self.is_open = True

    def send(self, replica: str, frame: bytes | bytearray) -> bool:
        self.frames.append(frame)
        if self.is_open:
            for tag, number, body in frames_of(bytes(frame)):
                self._other.receive(self._name, tag, number, body)
        return self.is_open


def pair() -> tuple[Messenger, Messenger]:
    one, two = Messenger(), Messenger()
    one.links, two.links = Wire("one", two), Wire("two", one)  # type: ignore[assignment]
    return one, two


def test_a_request_is_answered_by_whoever_is_registered_for_its_type() -> None:
    async def scene() -> None:
        one, two = pair()

        async def switch(sender: str, request: SwitchPair) -> PairSwitched:
            await asyncio.sleep(0)
            return PairSwitched(request.shard, 7, sender)

        two.answer(SwitchPair, switch)
        two.answer(FetchBlocks, lambda sender, request: FetchedBlocks((b"raw",)))
        assert await one.request("two", SwitchPair(3), PairSwitched) == PairSwitched(3, 7, "one")
        assert (await one.request("two", FetchBlocks(1, 2, 3), FetchedBlocks)).blocks == (b"raw",)

    asyncio.run(scene())


def test_a_request_that_fails_or_that_nobody_answers_is_refused_with_its_reason() -> None:
    async def scene() -> None:
        one, two = pair()

        def fail(sender: str, request: HandOver) -> NodeMessage:
            raise LocalError("not today")

        two.answer(HandOver, fail)
        with pytest.raises(LocalError, match="not today"):
            await one.request("two", HandOver("c"), messages.HandedOver)
        with pytest.raises(LocalError, match="does not answer SwitchPair"):
            await one.request("two", SwitchPair(1), PairSwitched)
        two.answer(HandOver, lambda sender, request: FetchedBlocks(()))
        with pytest.raises(LocalError, match="answered with FetchedBlocks"):
            await one.request("two", HandOver("c"), messages.HandedOver)

    asyncio.run(scene())


def test_a_request_of_a_kind_that_came_later_is_refused_and_keeps_the_link() -> None:
    _, two = pair()
    tag = max(REQUEST_TAGS)
    two.receive("one", tag, 9, b"\x90")
    ((answer_tag, number, body),) = frames_of(bytes(two.links.frames[0]))  # type: ignore[union-attr]
    assert number == 9 and isinstance(decode(answer_tag, body), Refused)
    with pytest.raises(UnknownTag):
        two.receive("one", 0x7F, 0, b"\x90")


def test_a_message_that_nobody_wants_is_dropped() -> None:
    one, two = pair()
    heard: list[Any] = []
    assert one.send("two", ClientConnected("c", 1))
    two.on((ClientConnected,), lambda sender, number, message: heard.append((sender, number, message)))
    assert one.send("two", ClientConnected("c", 2), 5)
    assert heard == [("one", 5, ClientConnected("c", 2))]


def test_a_message_for_several_nodes_is_encoded_once() -> None:
    one, _ = pair()
    body = Append(term=Term(1), prev_index=Index(0), prev_term=Term(0), commit=Index(0))
    one.send("two", body, 4)
    one.send("three", body, 4)
    one.send("two", body, 5)
    first, second, third = one.links.frames  # type: ignore[union-attr]
    assert first is second
    assert third is not first


def test_without_a_link_nothing_is_sent_and_a_request_says_so() -> None:
    async def scene() -> None:
        alone = Messenger()
        assert not alone.send("two", ClientConnected("c", 1))
        with pytest.raises(LocalError, match="no links"):
            await alone.request("two", SwitchPair(1), PairSwitched)
        one, _ = pair()
        one.links.is_open = False  # type: ignore[union-attr]
        with pytest.raises(LocalError, match="no link to that node"):
            await one.request("two", SwitchPair(1), PairSwitched)

    asyncio.run(scene())


# ------------------------------------------------------------------------------------------------- links


def linked(name: str, on_frame: Callable[[str, int, int, bytes], None], first: Any = None) -> Links:
    return Links(
        replica=name,
        identity=lambda: first or Identity(name, name, "", ""),
        secret=b"of this test",
        random=Random(name),
        on_frame=on_frame,
        on_open=lambda replica: None,
        on_close=lambda replica: None,
        on_silence=lambda replica: None,
        why_not=lambda identity: "",
    )


@pytest.mark.parametrize(
    "bad", [b"\x01\0\0\0\x7f\0\0\0\0x", b"\x01\0\0\0\x15\0\0\0\0\xc1", b"\xff\xff\xff\xff\x15\0\0\0\0"]
)
def test_a_bad_frame_closes_the_link_that_brought_it_and_no_other(bad: bytes) -> None:
    async def scene() -> None:
        heard: list[NodeMessage] = []
        receiver = Messenger()
        receiver.on((ClientConnected,), lambda sender, number, message: heard.append(message))
        middle = linked("m", receiver.receive)
        good, other = (linked(name, lambda *_: None) for name in "ab")
        try:
            await middle.listen(Address("127.0.0.1", 0))
            for each in (good, other):
                await each.connect(Address("127.0.0.1", middle.port))
                await until_async(lambda each=each: each.is_linked("m"), "a link")
            await until_async(lambda: len(middle.peers()) == 2, "both links")
            other.send("m", bad)
            await until_async(lambda: middle.peers() == ["a"], "the bad one to go")
            good.send("m", encode(ClientConnected("c", 1)))
            await until_async(lambda: bool(heard), "the good one to be heard")
        finally:
            for each in (good, other, middle):
                await each.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("first", [ClientConnected("c", 1), Refused("no")])
def test_whoever_does_not_say_who_it_is_first_is_not_linked(first: NodeMessage) -> None:
    async def scene() -> None:
        heard: list[int] = []
        middle = linked("m", lambda replica, tag, number, body: heard.append(tag))
        other = linked("b", lambda *_: None, first)
        try:
            await middle.listen(Address("127.0.0.1", 0))
            link = await other.connect(Address("127.0.0.1", middle.port))
            await until_async(lambda: link.is_closed, "the link to be closed")
            assert middle.peers() == heard == []
        finally:
            for each in (other, middle):
                await each.stop()

    asyncio.run(scene())
