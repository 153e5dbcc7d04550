"""What a change of replication means is said before it happens, and only where it means something."""

from msgspec.structs import replace

from millrace.broker.entries.meta import PutStream
from millrace.broker.meta.state import MetaState
from millrace.broker.streams.stream import Replication, StreamSpec
from millrace.broker.streams.switching import consequences


def made(**fields: object) -> tuple[MetaState, StreamSpec]:
    state = MetaState()
    spec = StreamSpec.read({"name": "s", "filters": ["s/#"], **fields})
    assert state.apply(PutStream(spec, create_only=True)).error is None
    return state, spec


def test_a_routed_stream_has_no_shards_and_takes_no_numbers() -> None:
    state, _ = made(replication="routed", shards=4)
    assert state.table.streams["s"].shards == ()
    other = StreamSpec.read({"name": "t", "filters": ["t/#"]})
    state.apply(PutStream(other, create_only=True))
    assert state.table.streams["t"].shards == (17,)


def test_to_routed_and_back_seals_and_opens_with_numbers_never_used_again() -> None:
    state, spec = made(shards=2)
    old = state.table.streams["s"].shards
    result = state.apply(PutStream(replace(spec, replication=Replication.ROUTED), create_only=False))
    assert (result.sealed, result.opened) == (old, ())
    result = state.apply(PutStream(spec, create_only=False))
    assert result.sealed == ()
    assert not set(result.opened) & set(old)
    stream = state.table.streams["s"]
    assert (stream.sealed, stream.shards) == (old, result.opened)


def test_a_routed_stream_survives_a_snapshot() -> None:
    state, _ = made(replication="routed")
    again = MetaState.from_bytes(state.to_bytes())
    assert again.table.streams["s"] == state.table.streams["s"]


def test_what_it_means_for_offsets_is_said() -> None:
    state, spec = made(shards=2)
    stream = state.table.streams["s"]
    to_routed = consequences(stream, replace(spec, replication=Replication.ROUTED))
    assert any("shards 17, 18 are sealed" in line for line in to_routed)
    assert any("no offset" in line for line in to_routed)
    state.apply(PutStream(replace(spec, replication=Replication.ROUTED), create_only=False))
    back = consequences(state.table.streams["s"], spec)
    assert any("2 new shards begin at offset 0" in line for line in back)
    assert any("was not stored" in line for line in back)


def test_a_change_that_moves_no_topic_means_nothing() -> None:
    state, spec = made()
    assert consequences(state.table.streams["s"], replace(spec, compression="zlib")) == ()
