"""The byte loops of the broker: scan a chunk, answer a run, rewrite a run.

Kernels have no policy and no state. Each is written in Python (`pure`) and again in C (`_kernels`, optional);
`ACCELERATED` says which one serves. `MILLRACE_KERNELS=python` at start-up keeps the C one out.
"""

import os

from millrace.kernels import pure
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

__all__ = ["ACCELERATED", "PACKET_ID_MAX", "ack_run", "acks", "packet_ids", "reframe", "scan", "skip"]
