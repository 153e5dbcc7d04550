"""Every bound of the broker, in one place.

Two kinds. A constant in capitals is fixed: the standard or the design sets it. A field of `Limits` has a
default that an operator may change within the range beside it; `node/config.py` reads the section `limits`
straight into this class, and pure code receives the value instead of reaching for a global. Names end in
the unit; the reason of each bound stands beside it and is what `millrace config` prints.

Relations between bounds are checked when a `Limits` is made, so that no part of the broker meets a
combination under which it cannot work (a packet that is accepted but never fits an output buffer).
"""

from dataclasses import dataclass, field

from millrace.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_S = 24 * 60 * 60

# MQTT 5, 1.5.5: four bytes of seven bits.
REMAINING_LENGTH_TOP = 268_435_455
# The remaining length, one byte of packet type and four of length.
PACKET_BYTES_TOP = REMAINING_LENGTH_TOP + 5
# MQTT 5, 1.5.4 and 1.5.6: strings and binary data carry a two byte length.
STRING_BYTES_TOP = 65_535
# MQTT 5, 2.2.1: a packet identifier is two bytes and never 0.
PACKET_ID_TOP = 65_535
# MQTT 5, 3.1.2.11.2: the value that means "never expires".
SESSION_EXPIRY_S_NEVER = 4_294_967_295
# MQTT 5, 3.1.2.10: two bytes.
KEEP_ALIVE_S_TOP = 65_535
# MQTT 5, 3.1.3.1: a server must take ids of 23 bytes.
CLIENT_ID_BYTES_FLOOR = 23
# One socket read: large enough that a bulk sender pays one call for hundreds of packets.
READ_BYTES_MAX = 256 * KIB
# Rules are walked in order once per route; more than this is a data base, not a file.
ACCESS_RULES_MAX = 10_000
# Users are state that every node holds and every snapshot of the meta group writes.
USERS_MAX = 100_000
# The same for tokens; a name is looked for among all of them when one is made or revoked.
TOKENS_MAX = 10_000
# Passwords that wait to be checked: at 25 a second for each of two workers, some seconds for everybody.
LOGINS_WAITING_MAX = 512
LOGINS_WAITING_PER_ADDRESS_MAX = 32


def bound(default: int, minimum: int, maximum: int, reason: str) -> int:
    """A field of `Limits` with its range and its reason."""
    return field(default=default, metadata={"minimum": minimum, "maximum": maximum, "doc": reason})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds an operator may change. Raises ConfigError where two of them contradict each other."""

    connections_max: int = bound(
        100_000, 1, 10_000_000, "connections at once; one more is refused and closed"
    )
    sessions_max: int = bound(
        200_000, 1, 10_000_000, "sessions, connected or away; twice the connections lets a fleet sleep"
    )
    connect_deadline_ms: int = bound(
        10_000, 100, 600_000, "time from accept to a whole CONNECT, TLS or HTTP head; silence costs no longer"
    )
    keep_alive_s_max: int = bound(
        0, 0, KEEP_ALIVE_S_TOP, "longest keep-alive granted, as server keep-alive; 0 takes what clients ask"
    )
    session_expiry_s_max: int = bound(
        7 * DAY_S,
        0,
        SESSION_EXPIRY_S_NEVER,
        "longest a session outlives its connection; 4294967295 is forever",
    )
    packet_bytes_max: int = bound(
        MIB + 128 * KIB,
        4 * KIB,
        PACKET_BYTES_TOP,
        "whole packet either way; room for 1 MiB of payload, a long topic and properties",
    )
    client_id_bytes_max: int = bound(
        STRING_BYTES_TOP, CLIENT_ID_BYTES_FLOOR, STRING_BYTES_TOP, "UTF-8 bytes of a client id"
    )
    topic_bytes_max: int = bound(
        STRING_BYTES_TOP, 64, STRING_BYTES_TOP, "UTF-8 bytes of a topic or filter; the standard's own bound"
    )
    topic_levels_max: int = bound(
        128, 1, 32_768, "levels of a topic or filter; matching work grows with them"
    )
    subscriptions_max: int = bound(
        10_000, 1, 1_000_000, "subscriptions of one session; one more is answered 0x97"
    )
    receive_maximum: int = bound(
        10_000, 1, PACKET_ID_TOP, "QoS 1 and 2 publishes a client may have open; wide, so it never slows"
    )
    inflight_max: int = bound(
        32_768, 1, PACKET_ID_TOP, "open publishes toward a client that names no receive maximum"
    )
    topic_alias_in_max: int = bound(
        100, 0, 65_535, "topic aliases a client may set; each holds a topic in memory"
    )
    topic_alias_out_max: int = bound(
        100, 0, 65_535, "topic aliases the broker sets toward a client that allows them"
    )
    queued_messages_max: int = bound(
        100_000, 1, 100_000_000, "messages waiting for one session; the next one is dropped and counted"
    )
    in_flight_bytes_max: int = bound(
        16 * MIB, 4 * KIB, 1024 * GIB, "bytes sent to one client and kept until acknowledged; the rest waits"
    )
    queued_bytes_max: int = bound(
        64 * MIB, 4 * KIB, 1024 * GIB, "bytes waiting for one session; a sleeper must not eat the memory"
    )
    output_buffer_bytes_max: int = bound(
        16 * MIB, 4 * KIB, 64 * GIB, "bytes written and not taken by one client; QoS 0 beyond it is dropped"
    )
    output_total_bytes_max: int = bound(
        64 * MIB, 4 * KIB, 1024 * GIB, "the same for all clients that do not read, together"
    )
    retained_messages_max: int = bound(
        1_000_000, 0, 1_000_000_000, "retained messages; a new topic beyond it is answered 0x97"
    )
    retained_bytes_max: int = bound(GIB, 0, 1024 * GIB, "bytes of all retained topics and payloads")
    staged_bytes_max: int = bound(
        4 * GIB, MIB, 1024 * GIB, "bytes that writers staged at one shard and nobody decided; on disk"
    )
    routes_cached_max: int = bound(
        100_000, 1, 100_000_000, "topics whose subscribers are remembered; beyond it the oldest is forgotten"
    )

    def __post_init__(self) -> None:
        for small, large, reason in RELATIONS:
            if getattr(self, small) > getattr(self, large):
                raise ConfigError(
                    f"limits.{small} = {getattr(self, small)} is more than limits.{large} = "
                    f"{getattr(self, large)}: {reason}"
                )


# (never more than, this, because)
RELATIONS: tuple[tuple[str, str, str], ...] = (
    ("connections_max", "sessions_max", "every connection has a session"),
    ("packet_bytes_max", "output_buffer_bytes_max", "the largest packet must fit an empty output buffer"),
    ("packet_bytes_max", "queued_bytes_max", "the largest packet must fit an empty queue"),
)

DEFAULT_LIMITS = Limits()

assert CLIENT_ID_BYTES_FLOOR <= DEFAULT_LIMITS.client_id_bytes_max <= STRING_BYTES_TOP
assert DEFAULT_LIMITS.topic_levels_max <= DEFAULT_LIMITS.topic_bytes_max
assert MIB + STRING_BYTES_TOP < DEFAULT_LIMITS.packet_bytes_max <= PACKET_BYTES_TOP
assert DEFAULT_LIMITS.output_buffer_bytes_max >= READ_BYTES_MAX, "one chunk forwarded must fit a buffer"
assert DEFAULT_LIMITS.inflight_max <= PACKET_ID_TOP, "an open publish holds a packet id"
