"""Every bound of the broker, in one place.

Two kinds. A constant in capitals is fixed: the standard or the design sets it. A field of `Limits` has a
default that an operator may change within the range beside it; `node/config.py` reads the section `limits`
straight into this class, and pure code receives the value instead of reaching for a global. Names end in
the unit; the reason of each bound stands beside it and is what `millrace config` prints.

Relations between bounds are checked when a `Limits` is made, so that no part of the broker meets a
combination under which it cannot work (a packet that is accepted but never fits an output buffer).
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from millrace.errors import ConfigError, LocalError
from millrace.settings import Settings, says

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
# The file is read whole, and each user costs one line of it.
USERS_MAX = 100_000


class Limits(Settings, frozen=True, kw_only=True):
    """The bounds an operator may change. Raises ConfigError where two of them contradict each other."""

    ERROR: ClassVar[type[LocalError]] = ConfigError

    connections_max: Annotated[
        int, says("connections at once; one more is refused and closed", 1, 10_000_000)
    ] = 100_000
    sessions_max: Annotated[
        int, says("sessions, connected or away; twice the connections lets a fleet sleep", 1, 10_000_000)
    ] = 200_000
    connect_deadline_ms: Annotated[
        int,
        says("time from accept to a whole CONNECT, TLS or HTTP head; silence costs no longer", 100, 600_000),
    ] = 10_000
    keep_alive_s_max: Annotated[
        int,
        says(
            "longest keep-alive granted, as server keep-alive; 0 takes what clients ask", 0, KEEP_ALIVE_S_TOP
        ),
    ] = 0
    session_expiry_s_max: Annotated[
        int,
        says("longest a session outlives its connection; 4294967295 is forever", 0, SESSION_EXPIRY_S_NEVER),
    ] = 7 * DAY_S
    packet_bytes_max: Annotated[
        int,
        says(
            "whole packet either way; room for 1 MiB of payload, a long topic and properties",
            4 * KIB,
            PACKET_BYTES_TOP,
        ),
    ] = MIB + 128 * KIB
    client_id_bytes_max: Annotated[
        int, says("UTF-8 bytes of a client id", CLIENT_ID_BYTES_FLOOR, STRING_BYTES_TOP)
    ] = STRING_BYTES_TOP
    topic_bytes_max: Annotated[
        int, says("UTF-8 bytes of a topic or filter; the standard's own bound", 64, STRING_BYTES_TOP)
    ] = STRING_BYTES_TOP
    topic_levels_max: Annotated[
        int, says("levels of a topic or filter; matching work grows with them", 1, 32_768)
    ] = 128
    subscriptions_max: Annotated[
        int, says("subscriptions of one session; one more is answered 0x97", 1, 1_000_000)
    ] = 10_000
    receive_maximum: Annotated[
        int, says("QoS 1 and 2 publishes a client may have open; wide, so it never slows", 1, PACKET_ID_TOP)
    ] = 10_000
    inflight_max: Annotated[
        int, says("open publishes toward a client that names no receive maximum", 1, PACKET_ID_TOP)
    ] = 32_768
    topic_alias_in_max: Annotated[
        int, says("topic aliases a client may set; each holds a topic in memory", 0, 65_535)
    ] = 100
    topic_alias_out_max: Annotated[
        int, says("topic aliases the broker sets toward a client that allows them", 0, 65_535)
    ] = 100
    queued_messages_max: Annotated[
        int, says("messages waiting for one session; the next one is dropped and counted", 1, 100_000_000)
    ] = 100_000
    in_flight_bytes_max: Annotated[
        int, says("bytes sent to one client and kept until acknowledged; the rest waits", 4 * KIB, 1024 * GIB)
    ] = 16 * MIB
    queued_bytes_max: Annotated[
        int, says("bytes waiting for one session; a sleeper must not eat the memory", 4 * KIB, 1024 * GIB)
    ] = 64 * MIB
    output_buffer_bytes_max: Annotated[
        int, says("bytes written and not taken by one client; QoS 0 beyond it is dropped", 4 * KIB, 64 * GIB)
    ] = 16 * MIB
    output_total_bytes_max: Annotated[
        int, says("the same for all clients that do not read, together", 4 * KIB, 1024 * GIB)
    ] = 64 * MIB
    retained_messages_max: Annotated[
        int, says("retained messages; a new topic beyond it is answered 0x97", 0, 1_000_000_000)
    ] = 1_000_000
    retained_bytes_max: Annotated[int, says("bytes of all retained topics and payloads", 0, 1024 * GIB)] = GIB
    staged_bytes_max: Annotated[
        int, says("bytes that writers staged at one shard and nobody decided; on disk", MIB, 1024 * GIB)
    ] = 4 * GIB
    routes_cached_max: Annotated[
        int,
        says("topics whose subscribers are remembered; beyond it the oldest is forgotten", 1, 100_000_000),
    ] = 100_000

    def refusals(self) -> Iterator[str]:
        for small, large, reason in RELATIONS:
            if getattr(self, small) > getattr(self, large):
                yield (
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
