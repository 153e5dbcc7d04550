"""Messages about interest and retained values as bytes of a frame: a kind byte, then msgpack."""

import msgspec

from millrace.errors import MalformedPacket
from millrace.replication.contract import PeerBody
from millrace.replication.routed import messages

# The order is part of the protocol between nodes: add at the end.
_CLASSES: tuple[type[PeerBody], ...] = (
    messages.Hello,
    messages.Filters,
    messages.Change,
    messages.Digest,
    messages.Summary,
    messages.Stamps,
    messages.Want,
    messages.Value,
    messages.Known,
)
_NUMBERS = {kind: bytes((number,)) for number, kind in enumerate(_CLASSES)}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = [msgspec.msgpack.Decoder(kind) for kind in _CLASSES]


def encode(body: PeerBody) -> bytes:
    return _NUMBERS[type(body)] + _ENCODER.encode(body)


def decode(data: bytes) -> PeerBody:
    if not data or data[0] >= len(_DECODERS):
        raise MalformedPacket("a message about interest of an unknown kind")
    try:
        return _DECODERS[data[0]].decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise MalformedPacket(f"a message about interest that cannot be read: {error}") from None
