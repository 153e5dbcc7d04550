"""The edge function of the demo: it keeps a processor busy for 50 to 150 ms, as a real one might."""

import time
import zlib


def work(topic: str, payload: bytes) -> bytes:
    """The payload itself, later; how much later follows from the payload."""
    until_s = time.monotonic() + 0.05 + (zlib.crc32(payload) % 1000) / 10_000
    while time.monotonic() < until_s:
        zlib.crc32(payload)
    return payload
