"""Typed entries survive the way through a block, and what is not one is refused with a sentence."""

import msgspec
import pytest

from millrace.broker.entries.codec import Entry, EntryCodec, UnreadableEntry


class Seal(Entry, frozen=True, tag="seal"):
    pass


class Trim(Entry, frozen=True, tag="trim"):
    offset: int
    reason: str = ""


CODEC: EntryCodec[Seal | Trim] = EntryCodec(Seal | Trim)


def test_many_entries_share_one_payload_and_keep_their_order() -> None:
    entries = [Trim(offset=7), Seal(), Trim(offset=9, reason="age")]
    assert CODEC.decode(CODEC.encode(entries)) == entries


def test_an_entry_without_the_newest_field_gets_its_default() -> None:
    payload = b"\x01" + msgspec.msgpack.encode([["trim", 5]])
    assert CODEC.decode(payload) == [Trim(offset=5)]


@pytest.mark.parametrize(
    "payload",
    [b"", b'{"op": "seal"}', b'[["by", "n1"]]', b"\x01", b"\x01\x91\x91\xa7unknown", b"\x02\x90"],
    ids=["empty", "JSON object of 0.1", "JSON list of 0.1", "cut short", "unknown kind", "newer format"],
)
def test_what_is_no_entry_is_refused(payload: bytes) -> None:
    with pytest.raises(UnreadableEntry):
        CODEC.decode(payload)
