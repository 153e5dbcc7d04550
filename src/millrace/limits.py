"""The bounds of the broker that somebody outside can run into.

The rule: a bound that a client, a peer, an operator or another room can run into lives here, and so does
every pair of bounds that must stay in a relation, with the relation asserted at the end. A constant that
only shapes the work of one module stays beside that work, is private, and no other module imports it; in
public, `_MAX` ends no name but those here. `lab` has bounds of its own: those of its experiments.

Two kinds. A constant in capitals is fixed: the standard (`_TOP`) or the design (`_MAX`) sets it. A field of
`Limits` has a default that an operator may change within the range beside it; `node/config.py` reads the
section `limits` straight into this class, and pure code receives the value instead of reaching for a
global. Names end in the unit; the reason of each bound stands beside it and is what `millrace config`
prints.

Relations between the fields are checked when a `Limits` is made, so that no part of the broker meets a
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
# Bytes that arrived and are not committed. Beyond a quarter nothing more is read from those who publish by
# MQTT; beyond all of it those who cannot be made to wait that way, by HTTP, are asked to come again.
UNCOMMITTED_BYTES_MAX = 64 * MIB
UNCOMMITTED_BYTES_PAUSE = UNCOMMITTED_BYTES_MAX // 4
# Bytes of all topics whose receivers are remembered, beside `routes_cached_max`: a topic may have 64 KiB.
ROUTES_CACHED_BYTES_MAX = 16 * MIB
# How far the stamp of another node may be ahead of the clock of the leader that puts it into a log: clocks
# that a time server sets differ by less.
STAMP_LEAD_US_MAX = 1_000_000
# Rules are walked in order once per route; more than this is a data base, not a file.
ACCESS_RULES_MAX = 10_000
# Users are state that every node holds and every snapshot of the meta group writes.
USERS_MAX = 100_000
# The same for tokens; a name is looked for among all of them when one is made or revoked.
TOKENS_MAX = 10_000
# Passwords that wait to be checked: at 25 a second for each of two workers, some seconds for everybody.
LOGINS_WAITING_MAX = 512
LOGINS_WAITING_PER_ADDRESS_MAX = 32
# Logins that the authentication hook of a node is asked about at the same time.
HOOK_CALLS_MAX = 256
# Audit events that wait for the log.
AUDIT_WAITING_MAX = 10_000
# A JSON web token, and what it may hold and be checked against.
JWT_BYTES_MAX = 16_384
JWT_RULES_MAX = 100
JWT_KEYS_MAX = 32
USER_NAME_BYTES_MAX = 1_024

# One CONNECT, before anybody knows who sends it: room for a will of 64 KiB and a long token.
CONNECT_BYTES_MAX = 128 * KIB
# Each is decoded by itself: more of them would hold the loop [rule 33].
USER_PROPERTIES_MAX = 1_000
FILTERS_PER_PACKET_MAX = 1_000

# Connections that have not been accepted yet, each with up to `CONNECT_BYTES_MAX`.
UNFINISHED_CONNECTS_MAX = 4_096
# The same from one address: no stranger keeps all others out by connecting and saying nothing.
UNFINISHED_CONNECTS_PER_ADDRESS_MAX = UNFINISHED_CONNECTS_MAX // 4
# What the filters of one session, and of all sessions of a node, may weigh: their bytes and 64 for each
# level, which is an object in memory. Ten thousand usual filters fit a session.
SESSION_FILTER_BYTES_MAX = 4 * MIB
NODE_FILTER_BYTES_MAX = GIB

# ---- The HTTP door

HTTP_BODY_BYTES_MAX = 16 * MIB
# The same for JSON, which is parsed in one call: room for a message of 1 MiB in base64, and for a list of
# 10,000; and for a batch, which is parsed piece by piece, with room for 10,000 messages of six members
# [rule 33].
HTTP_JSON_BYTES_MAX = 3 * MIB // 2
HTTP_JSON_VALUES_MAX = 12_000
HTTP_BATCH_VALUES_MAX = 65_000
# Messages and bytes of one answer; of blocks, whole ones until it is passed.
READ_MESSAGES_MAX = 10_000
ANSWER_BYTES_MAX = 8 * MIB
BLOCKS_ANSWER_BYTES_MAX = 16 * MIB
# Messages of one publish, by topic of their own or to one queue.
PUBLISH_BATCH_MAX = 10_000
PUT_MESSAGES_MAX = 1_000
LEASE_MS_MAX = 12 * 60 * 60 * 1000
DELAY_MS_MAX = 7 * 24 * 60 * 60 * 1000
# How long a request waits for messages, and how many do at once.
WAIT_MS_MAX = 60_000
WAITERS_MAX = 10_000
# Sections of one staged request: each may become a block.
STAGE_SECTIONS_MAX = 256
PRODUCER_CHARACTERS_MAX = 256
PIPELINES_MAX = 1_000
# Pipelines that the cluster holds, the file of each and all files: every snapshot of the meta group has them.
DECLARED_PIPELINES_MAX = 100
PIPELINE_FILE_BYTES_MAX = 256 * KIB
PIPELINE_FILES_BYTES_MAX = 4 * MIB
PIPELINE_SETTINGS_MAX = 200
PIPELINE_QUERIES_MAX = 100
# The end of a driver's log that its supervisor tells, in lines and in characters of each.
PIPELINE_LOG_LINES_MAX = 50
PIPELINE_LOG_LINE_CHARACTERS_MAX = 500
# One report of a supervisor to its node: a line of JSON with the end of the log and all queries.
PIPELINE_REPORT_BYTES_MAX = MIB

# ---- The other doors

# Written and not taken by a client of the text protocol; it is closed.
TEXT_UNREAD_BYTES_MAX = 4 * MIB
# Lines that wait for their answers; beyond it nothing more is read.
TEXT_OPEN_MAX = 1_000
# What can still be meant as a header; anything longer without one is refused by the parser before.
PROXY_HEADER_BYTES_MAX = 4 * KIB
# Messages that one call of an edge function may return, and their bytes.
EDGE_RESULTS_MAX = 100
EDGE_ANSWER_BYTES_MAX = 256 * MIB

# ---- Streams, groups and the cluster

STREAMS_MAX = 1_000
STREAM_FILTERS_MAX = 1_000
SHARDS_MAX = 256
TOPIC_CLASSES_MAX = 1_000
CHECK_MS_MAX = 60_000
GROUPS_MAX = 100_000
GROUP_FILTERS_MAX = 100
# Messages of one take, and their bytes unless the first is larger.
TAKEN_MAX = 1_000
TAKEN_BYTES_MAX = 8 * MIB
# Messages of one cursor that are out, put off or dead, unless its settings say otherwise.
GROUP_IN_FLIGHT_MAX = 10_000
# Messages in the answers that are remembered, over all requests of one cursor.
ANSWERED_MAX = 10_000
# Receipts that a group's part of a log remembers, so that an acknowledgement may be repeated.
ACKNOWLEDGED_MAX = 1_000
# Requests without an answer here that are remembered.
VOIDED_MAX = 1_000
# Groups of a leaderless stream, and clients of one. Both bound what a node writes: what stands in a log is
# true, whatever it is.
LEADERLESS_GROUPS_MAX = 10_000
LEADERLESS_CLIENTS_MAX = 100_000
# Groups of it that are gone, and clients of one group that left, whose names are remembered: what somebody
# wrote about them before may still be on its way. Beyond, those that went first are forgotten.
LEADERLESS_GONE_MAX = 10_000
# Messages of one take there, and messages that are looked at for it.
LEADERLESS_TAKE_MAX = 1_000
LEADERLESS_SCAN_MAX = 20_000
MEMBERS_MAX = 64
# Nodes that were removed and are told so when they ask; one more forgets the one that was removed first.
REMOVED_MEMBERS_MAX = 1_024
# One more forgets the writer that has been quiet longest and has nothing to roll forward.
WRITERS_MAX = 10_000
# Batches of one writer that are decided and not visible yet; one more has to wait.
DECISIONS_MAX = 16
# In one decision, in one abort, and remembered as given up by one writer above its last batch.
ATTEMPTS_MAX = 10_000
# Writers whose last settled batch a shard remembers; one more forgets the one that was quiet longest.
WRITERS_SETTLED_MAX = 10_000
# Producers that a shard remembers, and ranges of numbers of each; what is older is refused.
PRODUCERS_MAX = 10_000
PRODUCER_RANGES_MAX = 64
# Wills of a client that later connections displaced and that no log has; beyond it the oldest is given up.
DISPLACED_WILLS_MAX = 16
# Deletions of retained messages that a log remembers; beyond it the oldest are forgotten.
RETAINED_DELETED_MAX = 10_000
# What a session takes along to another node, and what may be staged at a shard for a snapshot to carry it.
UNFINISHED_BYTES_MAX = 16 * MIB
STAGED_SNAPSHOT_BYTES_MAX = 16 * MIB
# Messages of a shard by deadlines: jobs that wait, copies at the backup, offers that wait for an answer.
FRAME_JOBS_MAX = 100_000
FRAME_COPIES_MAX = 100_000
FRAME_OFFERS_MAX = 100_000

# ---- Logs and peers

BLOCK_MESSAGES_MAX = 10_000
# The largest MQTT packet with its columns; a head that claims more is not believed.
BLOCK_BODY_BYTES_MAX = 257 * MIB
SNAPSHOT_CONFIG_BYTES_MAX = MIB
# The largest block, with room; a longer frame is not believed.
FRAME_BYTES_MAX = 300 * MIB
# Connections to the peer port that have not proved who they are.
UNPROVED_LINKS_MAX = 2 * MEMBERS_MAX
# Written and not taken by a peer.
LINK_QUEUE_BYTES_MAX = 64 * MIB
# Forwarded to a leader that does not serve yet.
EARLY_BYTES_MAX = 4 * MIB
# Offered and not applied: beyond it the group takes nothing more.
PENDING_BYTES_MAX = 64 * MIB

# ---- Clients and Spark

# Unacknowledged at once, whatever more a server allows: it keeps most packet ids free for the rest.
CLIENT_WINDOW_MAX = 10_000
# Messages that a publisher with two brokers keeps to send again.
PUBLISHER_KEPT_MAX = 100_000
SQL_STATEMENTS_MAX = 1_000
PIPELINE_SINKS_MAX = 100
SPARK_TASKS_MAX = 10_000

# Administration: what a node remembers of what happened, and how many people may watch it at once.
EVENTS_MAX = 10_000
CLIENT_EVENTS_PER_S_MAX = 50
LIVE_LISTENERS_MAX = 100
LIVE_EVENTS_WAITING_MAX = 200
LOGINS_MAX = 1_000
TAILS_MAX = 20
TAIL_FILTERS_MAX = 100
TAIL_MESSAGES_PER_S_MAX = 10_000
TRACE_RECEIVERS_MAX = 10_000
# Spans that wait for the collector: what is beyond is dropped, and counted.
TRACE_SPANS_WAITING_MAX = 10_000
# Series of one metric in one answer: what is beyond is left out, and counted.
METRIC_SERIES_MAX = 2_000


class Limits(Settings, frozen=True, kw_only=True):
    """The bounds an operator may change. Raises ConfigError where two of them contradict each other."""

    ERROR: ClassVar[type[LocalError]] = ConfigError

    connections_max: Annotated[
        int, says("connections at one time; one more is refused and closed", 1, 10_000_000)
    ] = 100_000
    sessions_max: Annotated[
        int,
        says(
            "sessions, whether their clients are connected or away; by default twice the "
            "connections, so that half of a fleet may be away",
            1,
            10_000_000,
        ),
    ] = 200_000
    address_connections_max: Annotated[
        int,
        says("connections of one address at one time, those over HTTP included; 0: no bound", 0, 10_000_000),
    ] = 0
    user_connections_max: Annotated[
        int,
        says(
            "connections of one user at one time; one more is answered with 0x97; 0: no bound", 0, 10_000_000
        ),
    ] = 0
    user_sessions_max: Annotated[
        int, says("sessions of one user; one more is answered with 0x97; 0: no bound", 0, 10_000_000)
    ] = 0
    address_sessions_max: Annotated[
        int,
        says(
            "sessions whose last connection came from one address; one more is answered with "
            "0x97; 0: no bound",
            0,
            10_000_000,
        ),
    ] = 0
    user_filter_bytes_max: Annotated[
        int,
        says(
            "bytes of the filters of one user, and 64 for each level of them; more is answered "
            "with 0x97; 0: no bound",
            0,
            1024 * GIB,
        ),
    ] = 0
    address_filter_bytes_max: Annotated[
        int,
        says(
            "bytes of the filters of all sessions of one address, and 64 for each level of them; 0: no bound",
            0,
            1024 * GIB,
        ),
    ] = 0
    connects_per_s_max: Annotated[
        int, says("connections that may begin in one second; one more is closed; 0: no bound", 0, 1_000_000)
    ] = 0
    address_connects_per_s_max: Annotated[
        int,
        says(
            "connections of one address that may begin in one second; one more is closed; 0: no bound",
            0,
            1_000_000,
        ),
    ] = 0
    user_connects_per_s_max: Annotated[
        int,
        says("connects of one user in one second; one more is answered with 0x9F; 0: no bound", 0, 1_000_000),
    ] = 0
    publishes_per_s_max: Annotated[
        int,
        says(
            "messages accepted in one second; a client that sends more is read later, and HTTP "
            "is answered with 429; 0: no bound",
            0,
            100_000_000,
        ),
    ] = 0
    address_publishes_per_s_max: Annotated[
        int, says("messages accepted from one address in one second; 0: no bound", 0, 100_000_000)
    ] = 0
    user_publishes_per_s_max: Annotated[
        int, says("messages accepted from one user in one second; 0: no bound", 0, 100_000_000)
    ] = 0
    publish_bytes_per_s_max: Annotated[
        int,
        says(
            "bytes of messages accepted in one second; what happens beyond is the same as with "
            "`publishes_per_s_max`; 0: no bound",
            0,
            1024 * GIB,
        ),
    ] = 0
    address_publish_bytes_per_s_max: Annotated[
        int, says("bytes of messages accepted from one address in one second; 0: no bound", 0, 1024 * GIB)
    ] = 0
    user_publish_bytes_per_s_max: Annotated[
        int, says("bytes of messages accepted from one user in one second; 0: no bound", 0, 1024 * GIB)
    ] = 0
    connect_deadline_ms: Annotated[
        int,
        says(
            "time in which a new connection must send a whole CONNECT, finish the TLS handshake, "
            "or send the head of an HTTP request; then it is closed",
            100,
            600_000,
        ),
    ] = 10_000
    keep_alive_s_max: Annotated[
        int,
        says(
            "longest keep-alive that a client may ask for; one that asks for more is told this "
            "as server keep-alive; 0: any",
            0,
            KEEP_ALIVE_S_TOP,
        ),
    ] = 0
    session_expiry_s_max: Annotated[
        int,
        says(
            "longest time that a session is kept without its client; 4294967295: for ever",
            0,
            SESSION_EXPIRY_S_NEVER,
        ),
    ] = 7 * DAY_S
    packet_bytes_max: Annotated[
        int,
        says(
            "bytes of one packet, in either direction; the default has room for 1 MiB of "
            "payload, a long topic and properties",
            4 * KIB,
            PACKET_BYTES_TOP,
        ),
    ] = MIB + 128 * KIB
    client_id_bytes_max: Annotated[
        int, says("UTF-8 bytes of a client id", CLIENT_ID_BYTES_FLOOR, STRING_BYTES_TOP)
    ] = KIB
    topic_bytes_max: Annotated[
        int,
        says(
            "UTF-8 bytes of a topic or filter; the default is the bound of the MQTT standard",
            64,
            STRING_BYTES_TOP,
        ),
    ] = STRING_BYTES_TOP
    topic_levels_max: Annotated[
        int, says("levels of a topic or filter; the work of matching grows with their number", 1, 32_768)
    ] = 128
    subscriptions_max: Annotated[
        int, says("subscriptions of one session; one more is answered with 0x97", 1, 1_000_000)
    ] = 10_000
    receive_maximum: Annotated[
        int,
        says(
            "publishes at QoS 1 and 2 that a client may send before the first is acknowledged "
            "(receive maximum of the server)",
            1,
            PACKET_ID_TOP,
        ),
    ] = 10_000
    inflight_max: Annotated[
        int,
        says(
            "publishes that are sent to a client before the first is acknowledged, where the "
            "client names no receive maximum",
            1,
            PACKET_ID_TOP,
        ),
    ] = 32_768
    topic_alias_in_max: Annotated[
        int, says("topic aliases that a client may set; each keeps a topic in memory", 0, 65_535)
    ] = 100
    topic_alias_out_max: Annotated[
        int, says("topic aliases that the broker sets toward a client that allows them", 0, 65_535)
    ] = 100
    queued_messages_max: Annotated[
        int,
        says("messages that wait in memory for one session; one more is dropped and counted", 1, 100_000_000),
    ] = 100_000
    in_flight_bytes_max: Annotated[
        int,
        says(
            "bytes that are sent to one client and not acknowledged yet; further messages wait",
            4 * KIB,
            1024 * GIB,
        ),
    ] = 16 * MIB
    queued_bytes_max: Annotated[
        int,
        says(
            "bytes that wait in memory for one session; further messages are dropped and counted",
            4 * KIB,
            1024 * GIB,
        ),
    ] = 64 * MIB
    user_queued_bytes_max: Annotated[
        int, says("bytes that wait in memory for all sessions of one user; 0: no bound", 0, 1024 * GIB)
    ] = 0
    queued_total_bytes_max: Annotated[
        int,
        says(
            "bytes that wait in memory for all sessions; a message counts once for each session; 0: no bound",
            0,
            1024 * GIB,
        ),
    ] = 4 * GIB
    output_buffer_bytes_max: Annotated[
        int,
        says(
            "bytes that wait for one client because it does not read; beyond it QoS 0 messages are dropped",
            4 * KIB,
            64 * GIB,
        ),
    ] = 16 * MIB
    output_total_bytes_max: Annotated[
        int, says("bytes that wait for all clients that do not read, together", 4 * KIB, 1024 * GIB)
    ] = 64 * MIB
    retained_messages_max: Annotated[
        int, says("retained messages; one on a further topic is answered with 0x97", 0, 1_000_000_000)
    ] = 1_000_000
    retained_bytes_max: Annotated[
        int, says("bytes of the topics and payloads of all retained messages", 0, 1024 * GIB)
    ] = GIB
    user_retained_bytes_max: Annotated[
        int,
        says("bytes of retained messages that one user published at this node; 0: no bound", 0, 1024 * GIB),
    ] = 0
    staged_bytes_max: Annotated[
        int,
        says(
            "bytes on disk that writers staged at one shard and that are not committed or given up yet",
            MIB,
            1024 * GIB,
        ),
    ] = 4 * GIB
    routes_cached_max: Annotated[
        int,
        says(
            "topics whose receivers are remembered; the receivers of further topics are looked "
            "up for each message",
            1,
            100_000_000,
        ),
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
assert PACKET_BYTES_TOP + MIB // 2 < BLOCK_BODY_BYTES_MAX, "the largest packet and its columns are a block"
assert BLOCK_BODY_BYTES_MAX + MIB <= FRAME_BYTES_MAX, "the largest block goes to a peer in one frame"
assert HTTP_BODY_BYTES_MAX <= UNCOMMITTED_BYTES_PAUSE, "one request does not stop everybody else"
assert TAKEN_MAX <= ANSWERED_MAX, "the answer to the largest take is remembered"
assert TAKEN_MAX <= GROUP_IN_FLIGHT_MAX, "the largest take may be out"
assert LEADERLESS_TAKE_MAX <= LEADERLESS_SCAN_MAX, "a take looks at what it takes"
assert CLIENT_WINDOW_MAX < PACKET_ID_TOP, "an open publish holds a packet id, and others need some too"
assert DEFAULT_LIMITS.in_flight_bytes_max <= DEFAULT_LIMITS.queued_bytes_max
