"""What is measured: every pattern as data, with its regime, its generator flags and its targets.

A pattern is one way to load a broker. Its regime says what the figure means; a ratio without its regime says
nothing, because the same broker is 80 times faster than a peer in bulk and as fast as it on single packets.
`Evidence` is a field of the generator's answer that shows the regime was really held in that run.

A target compares this broker with a peer (or with itself over MQTT 3.1.1, or with a fixed number) in one
field, once for the C kernels and once for the interpreted ones. `mload.md` explains flags and fields.
"""

from dataclasses import dataclass, field

RATE_FIELD = "delivered_s"
CPU_FIELD = "cpu_us_per_delivered"

BULK = "bulk"
MIXED = "mixed"
ONE_PER_READ = "one per read"
LATENCY = "latency"
ANSWER = "acknowledgement"
IDLE = "idle"

REGIMES = {
    BULK: "runs of equal packets, up to 64 KiB per send: the best case for work per block",
    MIXED: "128-384 B in 61 sizes, 100 topics in turn (pairs: 10 each): no two neighbours are equal",
    ONE_PER_READ: "one message in flight per pair, so every read returns one packet: bound by the kernel",
    LATENCY: "open loop at a fixed rate; percentiles from the intended send time",
    ANSWER: "one publisher, nobody listens; a window of unanswered messages; percentiles from send to answer",
    IDLE: "connections that say nothing; memory each, on a broker just started",
}

# Fields whose smaller value is the better one; every other field is a rate.
COSTS = frozenset({CPU_FIELD, "lat_p50_us", "lat_p99_us", "kb_per_conn"})

# What a target may compare with, beside the peers: a number that stands by itself, and MQTT 3.1.1.
ABSOLUTE = "absolute"
OLDER_VERSION = "mqtt3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The regime held if this field lies in this range."""

    field: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The bound for `ours / theirs` in one field: at least for rates, at most for costs."""

    against: str
    field: str
    accelerated: float
    # None: nothing is asked of the interpreted kernels here.
    interpreted: float | None

    def bound(self, kernels: str) -> float | None:
        return self.accelerated if kernels == "c" else self.interpreted


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    name: str
    title: str
    regime: str
    qos: int
    # Whether this broker acknowledges what is on disk, or keeps it in memory as the peers do.
    durable: bool = False
    # Options of the generator beside host, port, version, pids and duration.
    flags: tuple[str, ...] = ()
    # What to read from its answer, the deciding field first.
    fields: tuple[str, ...] = (RATE_FIELD, CPU_FIELD)
    evidence: tuple[Evidence, ...] = ()
    targets: tuple[Target, ...] = field(default=())

    @property
    def has_duration(self) -> bool:
        """Whether it runs for a time that the user chooses."""
        return self.regime != IDLE


def _faster(mosquitto: tuple[float, float], nats: float | None = None) -> tuple[Target, ...]:
    accelerated, interpreted = mosquitto
    targets = [
        Target(against="mosquitto", field=RATE_FIELD, accelerated=accelerated, interpreted=interpreted)
    ]
    if nats is not None:
        targets.append(Target(against="nats", field=RATE_FIELD, accelerated=nats, interpreted=None))
    return tuple(targets)


def _no_dearer(*fields: str) -> tuple[Target, ...]:
    return tuple(Target(against="mosquitto", field=name, accelerated=1.0, interpreted=1.2) for name in fields)


def _within(field: str, low: float, high: float) -> tuple[Evidence, ...]:
    return (Evidence(field=field, low=low, high=high),)


_MIXED_ONE = ("-v", "-K", "100")
_MIXED_PAIRS = ("-P", "50", "-S", "50", "-v", "-K", "10", "-o", "100")
_ONE_PER_READ = ("-P", "50", "-S", "50", "-o", "1", "-W", "1")
_FAN_IN = ("-m", "fanin", "-P", "50", "-S", "1", "-o", "100")
_QOS_2 = ("-q", "2", "-s", "1000", "-W", "10", "-o", "10")
_LATENCY_FIELDS = ("lat_p50_us", "lat_p99_us", CPU_FIELD)
_VARIED = _within("vary", 1, 1)

PATTERNS = (
    Pattern(
        name="qos0-1to1",
        title="1->1 QoS 0",
        regime=BULK,
        qos=0,
        targets=_faster((25, 15), nats=2),
    ),
    Pattern(
        name="qos0-mixed",
        title="mixed 1->1 QoS 0",
        regime=MIXED,
        qos=0,
        flags=_MIXED_ONE,
        evidence=_VARIED,
        targets=_faster((20, 6), nats=1.5),
    ),
    Pattern(
        name="qos0-fanout",
        title="1->50 QoS 0",
        regime=BULK,
        qos=0,
        flags=("-m", "fanout", "-S", "50", "-o", "512"),
        targets=_faster((40, 30), nats=2),
    ),
    Pattern(
        name="qos0-fanin",
        title="50->1 QoS 0",
        regime=BULK,
        qos=0,
        flags=_FAN_IN,
        targets=_faster((20, 12), nats=1.5),
    ),
    Pattern(
        name="qos0-pairs",
        title="50->50 QoS 0",
        regime=BULK,
        qos=0,
        flags=("-P", "50", "-S", "50", "-o", "100"),
    ),
    Pattern(
        name="qos1-1to1",
        title="1->1 QoS 1, memory",
        regime=BULK,
        qos=1,
        flags=("-q", "1"),
        targets=_faster((10, 8)),
    ),
    Pattern(
        name="qos1-durable",
        title="1->1 QoS 1, ours on disk with fsync, theirs in memory",
        regime=BULK,
        qos=1,
        durable=True,
        flags=("-q", "1"),
        targets=_faster((4, 2)),
    ),
    Pattern(
        name="qos1-mixed",
        title="mixed 1->1 QoS 1, memory",
        regime=MIXED,
        qos=1,
        flags=("-q", "1", *_MIXED_ONE),
        evidence=_VARIED,
        targets=_faster((10, 3)),
    ),
    Pattern(
        name="qos1-mixed-pairs",
        title="mixed 50->50 QoS 1, memory",
        regime=MIXED,
        qos=1,
        flags=("-q", "1", *_MIXED_PAIRS),
        evidence=_VARIED,
    ),
    Pattern(
        name="qos1-fanin",
        title="50->1 QoS 1, memory",
        regime=BULK,
        qos=1,
        flags=("-q", "1", *_FAN_IN),
    ),
    Pattern(
        name="qos2-1to1",
        title="1->1 QoS 2, memory",
        regime=BULK,
        qos=2,
        flags=("-q", "2"),
    ),
    Pattern(
        name="qos2-pairs",
        title="100->100 QoS 2, 1000 B",
        regime=BULK,
        qos=2,
        flags=(*_QOS_2, "-P", "100", "-S", "100"),
        targets=_faster((5, 3)),
    ),
    Pattern(
        name="qos2-fanin",
        title="100->1 QoS 2, 1000 B",
        regime=BULK,
        qos=2,
        flags=(*_QOS_2, "-m", "fanin", "-P", "100", "-S", "1"),
        targets=_faster((5, 3)),
    ),
    Pattern(
        name="qos0-one-per-read",
        title="one message per read QoS 0",
        regime=ONE_PER_READ,
        qos=0,
        flags=_ONE_PER_READ,
        fields=(CPU_FIELD, RATE_FIELD),
        evidence=_within("msgs_per_recv", 0.8, 1.2),
        targets=_no_dearer(CPU_FIELD),
    ),
    Pattern(
        name="qos1-one-per-read",
        title="one message per read QoS 1",
        regime=ONE_PER_READ,
        qos=1,
        flags=("-q", "1", *_ONE_PER_READ),
        fields=(CPU_FIELD, RATE_FIELD),
        # The generator reads a PUBACK and a PUBLISH for every message.
        evidence=_within("msgs_per_recv", 0.4, 0.6),
        targets=_no_dearer(CPU_FIELD),
    ),
    Pattern(
        name="latency-2k",
        title="2,000/s QoS 0",
        regime=LATENCY,
        qos=0,
        flags=("-P", "10", "-S", "10", "-r", "2000"),
        fields=_LATENCY_FIELDS,
        evidence=_within("published_s", 1960, 2040),
    ),
    Pattern(
        name="latency-20k",
        title="20,000/s QoS 0",
        regime=LATENCY,
        qos=0,
        flags=("-P", "50", "-S", "50", "-r", "20000"),
        fields=_LATENCY_FIELDS,
        evidence=_within("published_s", 19_600, 20_400),
        targets=_no_dearer("lat_p50_us", "lat_p99_us"),
    ),
    Pattern(
        name="idle",
        title="5,000 idle connections",
        regime=IDLE,
        qos=0,
        flags=("-I", "5000", "-D", "5"),
        fields=("kb_per_conn", "broker_cpu_pct"),
        evidence=_within("ready", 5000, 5000),
        targets=(Target(against=ABSOLUTE, field="kb_per_conn", accelerated=4.0, interpreted=4.0),),
    ),
)

_ANSWER_FLAGS = ("-q", "1", "-A", "-S", "0")
_ANSWER_FIELDS = (RATE_FIELD, CPU_FIELD, "lat_p50_us", "lat_p99_us")

# On three nodes, each message on disk on a majority before it is acknowledged; CPU is that of all nodes.
CLUSTER_PATTERNS = (
    Pattern(
        name="cluster-window",
        title="3 nodes, durable publish, window 1000",
        regime=ANSWER,
        qos=1,
        durable=True,
        flags=(*_ANSWER_FLAGS, "-W", "1000"),
        fields=_ANSWER_FIELDS,
        evidence=_within("win", 1000, 1000),
        targets=(
            Target(against="jetstream-sync", field=RATE_FIELD, accelerated=3.0, interpreted=2.0),
            Target(against="jetstream", field=RATE_FIELD, accelerated=1.5, interpreted=None),
        ),
    ),
    Pattern(
        name="cluster-one",
        title="3 nodes, durable publish, one at a time",
        regime=ANSWER,
        qos=1,
        durable=True,
        flags=(*_ANSWER_FLAGS, "-W", "1"),
        fields=("lat_p50_us", "lat_p99_us", RATE_FIELD, CPU_FIELD),
        evidence=_within("win", 1, 1),
        targets=(Target(against="jetstream-sync", field="lat_p50_us", accelerated=0.7, interpreted=0.8),),
    ),
)

# MQTT 5 may cost this much of what MQTT 3.1.1 costs in the same pattern, where CPU per message is measured.
VERSION_TARGET = Target(against=OLDER_VERSION, field=CPU_FIELD, accelerated=1.2, interpreted=1.2)

BY_NAME = {pattern.name: pattern for pattern in (*PATTERNS, *CLUSTER_PATTERNS)}
