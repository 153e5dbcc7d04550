"""Coverage-guided input for the decoders, by atheris (`pip install 'millrace[fuzz]'`):
`make fuzz-decoders SECONDS=600`.

What a decoder may do with any bytes is return or raise the one error that ends a connection. Options of
libFuzzer may follow; with none it runs for ten minutes.
"""

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["millrace"]):
    from millrace.errors import RemoteError
    from millrace.node.peers.registry import decode as decode_message
    from millrace.wire.mqtt.codec import decode, encode
    from millrace.wire.peer import Frames
    from millrace.wire.text import Translator


def _packet(data: bytes) -> None:
    """A packet that can be read can be written, and is read as the same again."""
    version = (0, 3, 4, 5)[data[0] & 3]
    first, body = data[1], data[2:]
    packet = decode(first, body, version)
    if version and hasattr(packet, "packet_id"):
        with contextlib.suppress(RemoteError):
            encode(packet, version)


def _frames(data: bytes) -> None:
    for tag, _, body in Frames().receive(data):
        decode_message(tag, body)


def _lines(data: bytes) -> None:
    translator = Translator(4_096)
    half = len(data) // 2
    translator.receive(data[:half])
    translator.receive(data[half:])


_DECODERS = (_packet, _frames, _lines)


def one_input(data: bytes) -> None:
    if len(data) < 4:
        return
    with contextlib.suppress(RemoteError):
        _DECODERS[data[0] % len(_DECODERS)](data[1:])


def main() -> None:
    arguments = sys.argv if len(sys.argv) > 1 else [*sys.argv, "-max_total_time=600"]
    atheris.Setup(arguments, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
