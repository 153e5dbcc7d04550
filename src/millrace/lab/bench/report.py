"""From medians to judgements: figures per broker, ratios per target, as a table and as JSON.

A ratio is always ours divided by theirs, in the same field, of the same pattern and the same rounds. MQTT 5
is compared with a peer's MQTT 5. Rates want to be above their target, costs below it. A ratio whose regime
was not held is shown, but it decides nothing; one from a busy machine is marked as doubtful.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from millrace.lab.bench.patterns import (
    ABSOLUTE,
    BY_NAME,
    COSTS,
    CPU_FIELD,
    OLDER_VERSION,
    RATE_FIELD,
    VERSION_TARGET,
    Pattern,
    Target,
)
from millrace.lab.bench.runner import MQTT_3, MQTT_5, Result, Sample, Subject

if TYPE_CHECKING:
    from rich.table import Table

# Above this the generator has no core left, and a faster broker would show no better rate.
_GENERATOR_BUSY_PCT = 95
# Two cores, one for the broker and one for the generator: what others use is missing to one of them.
_OTHERS_BUSY_PCT = 20

_WORDS = {
    RATE_FIELD: "rate",
    CPU_FIELD: "CPU",
    "lat_p50_us": "p50",
    "lat_p99_us": "p99",
    "kb_per_conn": "KiB/connection",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One comparison. `target` None: shown for information."""

    pattern: str
    regime: str
    subject: Subject
    against: str
    field: str
    ours: float
    # None where the target is a number that stands by itself.
    theirs: float | None
    value: float
    target: float | None
    reached: bool | None
    # Others used the machine in one of the two: the verdict may turn in a quiet run.
    doubtful: bool


def ratios(results: Sequence[Result]) -> list[Ratio]:
    """Every comparison that the results allow, ours in their order."""
    by_subject = {(r.pattern, r.subject): r for r in results if r.values}
    found: list[Ratio] = []
    for result in by_subject.values():
        if not result.subject.is_ours:
            continue
        pattern = BY_NAME[result.pattern]
        for peer in dict.fromkeys(r.subject.broker for r in results if not r.subject.is_ours):
            other = by_subject.get((pattern.name, _counterpart(result.subject, peer, by_subject)))
            if other is not None:
                found += _against_peer(pattern, result, other)
        found += _against_itself(pattern, result, by_subject)
    return found


def _counterpart(subject: Subject, peer: str, known: Iterable[tuple[str, Subject]]) -> Subject:
    """The peer over the same version, or over its own protocol."""
    own = Subject(broker=peer, mqtt=None)
    return own if any(s == own for _, s in known) else Subject(broker=peer, mqtt=subject.mqtt)


def _against_peer(pattern: Pattern, ours: Result, theirs: Result) -> list[Ratio]:
    peer = theirs.subject.broker
    targets = {t.field: t for t in pattern.targets if t.against == peer}
    fields = dict.fromkeys((*targets, *pattern.fields))
    held = _held(pattern, ours) and _held(pattern, theirs)
    return [
        _ratio(pattern, ours, peer, name, theirs, targets.get(name), held)
        for name in fields
        if name in _WORDS and theirs.values.get(name) and name in ours.values
    ]


def _against_itself(pattern: Pattern, ours: Result, known: dict[tuple[str, Subject], Result]) -> list[Ratio]:
    found = [
        _ratio(pattern, ours, ABSOLUTE, target.field, None, target, _held(pattern, ours))
        for target in pattern.targets
        if target.against == ABSOLUTE and target.field in ours.values
    ]
    if ours.subject.mqtt == MQTT_5:
        older = Subject(broker=ours.subject.broker, mqtt=MQTT_3, kernels=ours.subject.kernels)
        other = known.get((pattern.name, older))
        if other is not None and other.values.get(CPU_FIELD):
            held = _held(pattern, ours) and _held(pattern, other)
            found.append(_ratio(pattern, ours, OLDER_VERSION, CPU_FIELD, other, VERSION_TARGET, held))
    return found


def _ratio(
    pattern: Pattern,
    ours: Result,
    against: str,
    field: str,
    theirs: Result | None,
    target: Target | None,
    held: bool,
) -> Ratio:
    other = None if theirs is None else theirs.values[field]
    value = ours.values[field] if other is None else ours.values[field] / other
    bound = target.bound(ours.subject.kernels or "c") if target else None
    reached = None
    if bound is not None and held:
        reached = value <= bound if field in COSTS else value >= bound
    return Ratio(
        pattern=pattern.name,
        regime=pattern.regime,
        subject=ours.subject,
        against=against,
        field=field,
        ours=ours.values[field],
        theirs=other,
        value=value,
        target=bound,
        reached=reached,
        doubtful=_is_busy(ours) or (theirs is not None and _is_busy(theirs)),
    )


def _held(pattern: Pattern, result: Result) -> bool:
    return all(e.low <= result.values.get(e.field, e.low - 1) <= e.high for e in pattern.evidence)


def _is_busy(result: Result) -> bool:
    return result.values.get("other_cpu_pct", 0) >= _OTHERS_BUSY_PCT


def notes(result: Result) -> list[str]:
    """What a reader must know before believing a figure."""
    pattern, found = BY_NAME[result.pattern], []
    if result.errors:
        found.append(f"{len(result.errors)} runs failed: {result.errors[0]}")
    if result.values:
        if not _held(pattern, result):
            seen = ", ".join(f"{e.field} {result.values.get(e.field)}" for e in pattern.evidence)
            found.append(f"regime not held: {seen}")
        if result.values.get("gen_cpu_pct", 0) >= _GENERATOR_BUSY_PCT:
            found.append("generator is the limit")
        if _is_busy(result):
            found.append("machine busy")
    return found


# ------------------------------------------------------------------------------------------- output


def figures_table(results: Sequence[Result]) -> "Table":
    """What each broker did."""
    from rich.table import Table

    table = Table(title="Figures (medians)", title_justify="left")
    for column in ("pattern", "regime", "broker"):
        table.add_column(column)
    for column in ("delivered/s", "CPU us/message", "p50/p99 us", "KiB/connection"):
        table.add_column(column, justify="right")
    table.add_column("notes")
    last = None
    for result in results:
        pattern, values = BY_NAME[result.pattern], result.values
        if last not in (None, result.pattern):
            table.add_section()
        head = ("", "") if last == result.pattern else (pattern.name, pattern.regime)
        last = result.pattern
        percentiles = (
            f"{values['lat_p50_us']:.0f}/{values['lat_p99_us']:.0f}" if "lat_p50_us" in values else ""
        )
        table.add_row(
            *head,
            str(result.subject),
            _number(values.get(RATE_FIELD)),
            _number(values.get(CPU_FIELD)),
            percentiles,
            _number(values.get("kb_per_conn")),
            "; ".join(notes(result)),
        )
    return table


def ratios_table(found: Sequence[Ratio]) -> "Table":
    """How this broker stands beside the others."""
    from rich.table import Table

    table = Table(
        title="Ratios, ours / theirs (rate: more is better; all others: less)", title_justify="left"
    )
    for column in ("pattern", "regime", "ours", "against", "figure"):
        table.add_column(column)
    for column in ("ratio", "target"):
        table.add_column(column, justify="right")
    table.add_column("reached")
    last = None
    for ratio in found:
        if last not in (None, ratio.pattern):
            table.add_section()
        head = ("", "") if last == ratio.pattern else (ratio.pattern, ratio.regime)
        last = ratio.pattern
        against = "MQTT 3.1.1" if ratio.against == OLDER_VERSION else ratio.against
        table.add_row(
            *head,
            str(ratio.subject),
            "(a fixed number)" if ratio.against == ABSOLUTE else against,
            _WORDS[ratio.field],
            f"{ratio.value:.2f}",
            "" if ratio.target is None else f"{_sign(ratio.field)} {ratio.target:g}",
            _verdict(ratio),
        )
    return table


def _verdict(ratio: Ratio) -> str:
    if ratio.target is None:
        return ""
    if ratio.reached is None:
        return "not comparable"
    return ("yes" if ratio.reached else "NO") + (" (busy)" if ratio.doubtful else "")


def _sign(field: str) -> str:
    return "<=" if field in COSTS else ">="


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def pattern_rows(patterns: Iterable[Pattern]) -> list[dict[str, Any]]:
    """The patterns for `--list`."""
    rows = []
    for pattern in patterns:
        goals = [
            f"{_WORDS[t.field]} {_sign(t.field)} {t.accelerated:g}"
            + ("" if t.against == ABSOLUTE else f"x {t.against}")
            for t in pattern.targets
        ]
        rows.append(
            {
                "pattern": pattern.name,
                "what": pattern.title,
                "regime": pattern.regime,
                "flags": " ".join(pattern.flags),
                "targets": ", ".join(goals),
            }
        )
    return rows


def machine() -> dict[str, Any]:
    """Where the figures were measured, without its name; the load says whether others used it too."""
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1_min": os.getloadavg()[0],
    }


def document(
    *,
    samples: Sequence[Sample],
    results: Sequence[Result],
    versions: dict[str, str],
    seconds: float,
    rounds: int,
) -> dict[str, Any]:
    """Everything, for a program: the tables and every single run behind them."""
    return {
        "machine": machine(),
        "brokers": versions,
        "rounds": rounds,
        "seconds": seconds,
        "figures": [
            {
                "pattern": r.pattern,
                "regime": BY_NAME[r.pattern].regime,
                **asdict(r.subject),
                "rounds": r.rounds,
                **{name: r.values[name] for name in BY_NAME[r.pattern].fields if name in r.values},
                "notes": notes(r),
            }
            for r in results
        ],
        "ratios": [{**asdict(r), **asdict(r.subject), "subject": str(r.subject)} for r in ratios(results)],
        "samples": [
            {"pattern": s.pattern, **asdict(s.subject), "error": s.error, "values": s.values} for s in samples
        ],
    }
