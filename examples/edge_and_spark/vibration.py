"""What a machine's vibration means: one function, run by the broker at the edge or by Spark, with one result.

`verdict` is the whole of it and knows neither. `edge` is how the broker calls it (see docs/how-to/edge.md),
`pipeline.py` how Spark does. A reading that cannot be understood gives no verdict, in both.
"""

import json
import math

WARN_MM_S = 4.5
STOP_MM_S = 7.1


def verdict(payload: bytes) -> tuple[str, str] | None:
    """The machine, and as JSON how hard it shakes; None for what is no reading."""
    try:
        reading = json.loads(payload)
        machine, sequence = str(reading["machine"]), int(reading["sequence"])
        samples = [float(sample) for sample in reading["samples_mm_s"]]
        size_bytes = len(machine.encode())
        rms = math.sqrt(sum(sample * sample for sample in samples) / len(samples))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return None
    # A level of a topic, and a number that JSON has.
    if not 0 < size_bytes <= 200 or set(machine) & set("+#/\0") or not math.isfinite(rms):
        return None
    level = "stop" if rms > STOP_MM_S else "warn" if rms > WARN_MM_S else "ok"
    return machine, json.dumps({"sequence": sequence, "rms_mm_s": round(rms, 3), "level": level})


def edge(topic: str, payload: bytes) -> tuple[str, str] | None:
    """For the broker: a message on `verdicts/edge/MACHINE`, or none."""
    found = verdict(payload)
    return None if found is None else (f"verdicts/edge/{found[0]}", found[1])
