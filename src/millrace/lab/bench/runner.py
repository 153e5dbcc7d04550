"""Runs the plan: every pattern, and within it every broker in turn, round after round.

Interleaving is what makes ratios hold on a machine that others use too: whatever slows one broker for a
while slows its neighbours in the same round as well, and the median over the rounds drops the outlier. Each
run gets a broker just started. A run that fails is kept as a failure and does not stop the others.
"""

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

from millrace.errors import LocalError
from millrace.lab.bench import peers
from millrace.lab.bench.generator import Generator
from millrace.lab.bench.patterns import CLUSTER_PATTERNS, Pattern

MQTT_3, MQTT_5 = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One broker as it is measured: over one protocol version, ours with one kind of kernels."""

    broker: str
    # None for NATS, which speaks its own protocol.
    mqtt: int | None
    # None for a peer.
    kernels: str | None = None

    @property
    def is_ours(self) -> bool:
        return self.broker == peers.MILLRACE

    def __str__(self) -> str:
        spoken = "" if self.mqtt is None else " MQTT 5" if self.mqtt == MQTT_5 else " MQTT 3.1.1"
        return self.broker + (f" ({self.kernels})" if self.kernels else "") + spoken

    def flags(self) -> tuple[str, ...]:
        return ("-x", "nats") if self.mqtt is None else ("-V", str(self.mqtt))

    def can(self, pattern: Pattern) -> bool:
        """NATS core has neither acknowledgements nor QoS 2; JetStream, which has, runs as a cluster."""
        return self.mqtt is not None or pattern.qos == 0 or pattern in CLUSTER_PATTERNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: the generator's fields, or why there are none."""

    pattern: str
    subject: Subject
    values: Mapping[str, Any] | None = None
    error: str | None = None


def subjects(versions: Sequence[int], kernels: Sequence[str], against: Iterable[str]) -> list[Subject]:
    """Everything that is measured, ours first."""
    ours = [Subject(broker=peers.MILLRACE, mqtt=v, kernels=k) for k in kernels for v in versions]
    theirs: list[Subject] = []
    for name in against:
        spoken = list(versions) if name == peers.MOSQUITTO else [None]
        theirs += [Subject(broker=name, mqtt=version) for version in spoken]
    return ours + theirs


def plan(
    patterns: Sequence[Pattern], subjects: Sequence[Subject], rounds: int
) -> list[tuple[Pattern, Subject]]:
    """The order of the runs."""
    return [
        (pattern, subject)
        for pattern in patterns
        for _ in range(rounds)
        for subject in subjects
        if subject.can(pattern)
    ]


def run(
    steps: Sequence[tuple[Pattern, Subject]],
    brokers: Mapping[tuple[str, str | None], peers.Broker],
    generator: Generator,
    *,
    seconds: float,
    before: Callable[[Pattern, Subject], None] = lambda pattern, subject: None,
) -> Iterator[Sample]:
    """Measure step by step. `brokers` is by name and kernels; `before` is told of each step."""

    def start(pattern: Pattern, subject: Subject) -> AbstractContextManager[peers.Running]:
        return peers.running(brokers[subject.broker, subject.kernels], durable=pattern.durable)

    return measure(steps, start, generator, seconds=seconds, before=before)


def measure(
    steps: Sequence[tuple[Pattern, Subject]],
    start: Callable[[Pattern, Subject], AbstractContextManager[peers.Running]],
    generator: Generator,
    *,
    seconds: float,
    before: Callable[[Pattern, Subject], None] = lambda pattern, subject: None,
) -> Iterator[Sample]:
    """The same with brokers, or clusters of them, that `start` brings up."""
    _allow_many_files()
    for pattern, subject in steps:
        before(pattern, subject)
        try:
            with start(pattern, subject) as broker:
                values = generator.run(
                    (*subject.flags(), *pattern.flags),
                    port=broker.port,
                    pids=broker.pids(),
                    seconds=seconds if pattern.has_duration else None,
                )
            yield Sample(pattern=pattern.name, subject=subject, values=values)
        except LocalError as error:
            yield Sample(pattern=pattern.name, subject=subject, error=str(error))


def _allow_many_files() -> None:
    """Brokers inherit our bound on open files, and the idle pattern opens thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The rounds of one subject in one pattern, as medians."""

    pattern: str
    subject: Subject
    rounds: int
    values: Mapping[str, float]
    errors: tuple[str, ...]


def summarize(samples: Iterable[Sample]) -> list[Result]:
    """The median of every numeric field over the rounds that succeeded, in the order of first appearance."""
    groups: dict[tuple[str, Subject], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.pattern, sample.subject), []).append(sample)
    results = []
    for (pattern, subject), members in groups.items():
        good = [sample.values for sample in members if sample.values is not None]
        names = [name for name in (good[0] if good else ()) if isinstance(good[0][name], (int, float))]
        results.append(
            Result(
                pattern=pattern,
                subject=subject,
                rounds=len(good),
                values={name: median(values[name] for values in good if name in values) for name in names},
                errors=tuple(sample.error for sample in members if sample.error is not None),
            )
        )
    return results
