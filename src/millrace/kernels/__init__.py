"""The byte loops of the broker: scan a chunk, answer a run, rewrite a run.

Kernels have no policy and no state. Each is written in Python (`pure`) and again in C (`_kernels`, optional);
`ACCELERATED` says which one serves. `MILLRACE_KERNELS=python` at start-up keeps the C one out.
"""

import os

from millrace.kernels import filters, pure
from millrace.kernels.pure import PACKET_ID_MAX

# The one look at the environment in a pure package: the choice is between equal answers, made once at import.
_wanted = os.environ.get("MILLRACE_KERNELS", "auto")
if _wanted not in ("auto", "python", "c"):
    raise ImportError(f"MILLRACE_KERNELS={_wanted!r}: expected auto, python or c")

ACCELERATED = False
scan = pure.scan
ack_run = pure.ack_run
packet_ids = pure.packet_ids
acks = pure.acks
skip = pure.skip
reframe = pure.reframe
shape_of = filters.shape_of
fitting_filters = filters.fitting_filters
find_filters = filters.find_filters
read_filters = filters.read_filters
new_topics = filters.new_topics

if _wanted != "python":
    try:
        import millrace.kernels._kernels as compiled
    except ImportError:
        if _wanted == "c":
            raise
    else:
        ACCELERATED = True
        scan = compiled.scan
        ack_run = compiled.ack_run
        packet_ids = compiled.packet_ids
        acks = compiled.acks
        skip = compiled.skip
        reframe = compiled.reframe
        shape_of = compiled.shape_of
        fitting_filters = compiled.fitting_filters
        find_filters = compiled.find_filters
        read_filters = compiled.read_filters
        new_topics = compiled.new_topics

__all__ = [
    "ACCELERATED",
    "PACKET_ID_MAX",
    "ack_run",
    "acks",
    "find_filters",
    "fitting_filters",
    "new_topics",
    "packet_ids",
    "read_filters",
    "reframe",
    "scan",
    "shape_of",
    "skip",
]
