"""What the administration tells: each answer once, as a typed value with a word on every field.

Nodes send each other these values, and the HTTP door makes its response models and their description of them
(`doors/http/models.py`). Times are microseconds since 1970, durations name their unit.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from millrace.node.admin.events import Event

NodeState = Literal["up", "suspect", "unreachable", "removed"]
Protocol = Literal["3.1", "3.1.1", "5", "text"]
ReceiverKind = Literal["session", "group", "leaderless group"]


class Shape(msgspec.Struct, kw_only=True, frozen=True):
    """A part of an answer."""


# ------------------------------------------------------------------------------------------ the cluster


class Link(Shape, kw_only=True, frozen=True):
    to: Annotated[str, Meta(description="Name of the node at the other end.")]
    is_up: Annotated[bool, Meta(description="Whether there is a link and something comes over it.")]
    rtt_ms: Annotated[float | None, Meta(description="Time until an answer came back; null without one.")] = (
        None
    )


class Figures(Shape, kw_only=True, frozen=True):
    version: Annotated[str, Meta(description="Version of the program.")]
    uptime_s: Annotated[int, Meta(description="Seconds since the node was started.")]
    clients: Annotated[int, Meta(description="Clients connected at this node.")]
    sessions: Annotated[int, Meta(description="Sessions that this node looks after, present or away.")]
    subscriptions: Annotated[int, Meta(description="Subscriptions of these sessions.")]
    retained_messages: Annotated[int, Meta(description="Retained messages that this node knows.")]
    retained_bytes: Annotated[int, Meta(description="What they hold in memory.")]
    cpu_percent: Annotated[float, Meta(description="Processor time of the last second; 100 is one core.")]
    memory_bytes: Annotated[int, Meta(description="Resident memory of the process.")]
    disk_used_bytes: Annotated[int, Meta(description="What its logs hold on disk.")]
    disk_free_bytes: Annotated[int, Meta(description="What is free on the disk of its data directory.")]
    loop_lag_ms: Annotated[float, Meta(description="How late the event loop came round, at worst, lately.")]
    in_messages_s: Annotated[float, Meta(description="Messages per second from clients.")]
    out_messages_s: Annotated[float, Meta(description="Messages per second to clients.")]
    in_bytes_s: Annotated[float, Meta(description="Bytes per second from clients.")]
    out_bytes_s: Annotated[float, Meta(description="Bytes per second to clients.")]
    dropped: Annotated[int, Meta(description="Messages since the start that somebody wanted and missed.")]
    waits_for: Annotated[
        str, Meta(description="What the node, or somebody there, waits for; empty: nothing.")
    ] = ""
    links: Annotated[tuple[Link, ...], Meta(description="Links to the other nodes.")] = ()


class Addresses(Shape, kw_only=True, frozen=True):
    mqtt: Annotated[str | None, Meta(description="HOST:PORT of MQTT.")] = None
    http: Annotated[str | None, Meta(description="HOST:PORT of HTTP.")] = None
    peer: Annotated[str | None, Meta(description="HOST:PORT for other nodes.")] = None


class Node(Shape, kw_only=True, frozen=True):
    node: Annotated[str, Meta(description="Its name.")]
    replica: Annotated[str, Meta(description="The id in its data directory.")]
    state: Annotated[NodeState, Meta(description="As the answering node sees it.")]
    is_draining: Annotated[bool, Meta(description="Whether everything is being moved off it.")]
    leads_meta: Annotated[bool, Meta(description="Whether it leads the group that keeps the definitions.")]
    leads: Annotated[int, Meta(description="How many replication groups it leads.")]
    addresses: Annotated[Addresses, Meta(description="Where it is reached.")]
    silent_s: Annotated[float, Meta(description="How long the answering node has not heard it.")]
    is_answering: Annotated[bool, Meta(description="Whether it gave its figures this time.")]
    figures: Annotated[Figures | None, Meta(description="What it says of itself; null without an answer.")]
    host: Annotated[str, Meta(description="The machine that it shares with others; empty: its own.")] = ""


class GroupHere(Shape, kw_only=True, frozen=True):
    """A replication group as one node sees its own replica of it."""

    group: int
    role: str
    term: int
    leader: str | None
    commit: int
    applied: int
    last: int


class ReplicaRow(Shape, kw_only=True, frozen=True):
    node: Annotated[str, Meta(description="Name of the node.")]
    role: Annotated[str, Meta(description="What its replica is: leader, follower, learner, ...; or unknown.")]
    applied: Annotated[int | None, Meta(description="Last entry in its state; null without an answer.")] = (
        None
    )
    lag: Annotated[int | None, Meta(description="Entries that are in the leader's log and not in its.")] = (
        None
    )


class ReplicationGroupRow(Shape, kw_only=True, frozen=True):
    group: Annotated[int, Meta(description="Number of the group; 0 keeps the definitions.")]
    keeps: Annotated[str, Meta(description="What it keeps, in words.")]
    leader: Annotated[str | None, Meta(description="Name of the node that leads it.")]
    term: Annotated[int, Meta(description="Term, or epoch of a pair.")]
    commit: Annotated[int, Meta(description="Last entry that is committed.")]
    applied: Annotated[int, Meta(description="Last entry that the answering node has applied.")]
    voters: Annotated[tuple[str, ...], Meta(description="Nodes whose majority decides.")]
    learners: Annotated[tuple[str, ...], Meta(description="Nodes that follow without a vote.")]
    replicas: Annotated[tuple[ReplicaRow, ...], Meta(description="Each node's own replica.")]


class StreamRow(Shape, kw_only=True, frozen=True):
    name: Annotated[str, Meta(description="Name of the stream.")]
    replication: Annotated[str, Meta(description="quorum, primary-backup, leaderless or routed.")]
    filters: Annotated[tuple[str, ...], Meta(description="Its topic filters; none for `default`.")]
    shards: Annotated[int, Meta(description="Open logs that share its topics.")]
    replicas: Annotated[int, Meta(description="Nodes that are to keep each log.")]
    capture: Annotated[str, Meta(description="What is logged: acknowledged, all or none.")]
    bytes: Annotated[int, Meta(description="What one copy of its logs holds on disk.")]
    messages: Annotated[int, Meta(description="Next offset less first offset, over all its logs.")]
    in_messages_s: Annotated[
        float, Meta(description="Messages per second into its logs; 0 where there are none.")
    ]
    leaders: Annotated[tuple[str, ...], Meta(description="Nodes that lead its open logs.")]
    is_degraded: Annotated[bool, Meta(description="Whether it keeps less than it promises right now.")]
    degraded: Annotated[str, Meta(description="Why, in words; empty otherwise.")] = ""


class Totals(Shape, kw_only=True, frozen=True):
    clients: Annotated[int, Meta(description="Clients connected, at all nodes that answered.")]
    sessions: Annotated[int, Meta(description="Sessions, present or away.")]
    in_messages_s: Annotated[float, Meta(description="Messages per second from clients.")]
    out_messages_s: Annotated[float, Meta(description="Messages per second to clients.")]
    in_bytes_s: Annotated[float, Meta(description="Bytes per second from clients.")]
    out_bytes_s: Annotated[float, Meta(description="Bytes per second to clients.")]
    stored_bytes: Annotated[int, Meta(description="One copy of all streams.")]


class Overview(Shape, kw_only=True, frozen=True):
    time_us: Annotated[int, Meta(description="When this was put together.")]
    node: Annotated[str, Meta(description="The node that answers.")]
    cluster: Annotated[str, Meta(description="Id of the cluster.")]
    version: Annotated[str, Meta(description="Version of the answering node.")]
    leader: Annotated[str | None, Meta(description="Leader of the group that keeps the definitions.")]
    is_settled: Annotated[bool, Meta(description="Whether every group is kept where it should be.")]
    nodes: Annotated[tuple[Node, ...], Meta(description="All members.")]
    groups: Annotated[tuple[ReplicationGroupRow, ...], Meta(description="All replication groups.")]
    streams: Annotated[tuple[StreamRow, ...], Meta(description="All streams.")]
    totals: Annotated[Totals, Meta(description="Sums over the nodes that answered.")]


class SelfReport(Shape, kw_only=True, frozen=True):
    """What one node answers when another puts an overview together."""

    figures: Figures
    groups: tuple[GroupHere, ...]
    news: tuple[Event, ...] = ()
    """Events since the asking node last heard of any, newest first."""


# -------------------------------------------------------------------------------- clients and sessions


class SubscriptionRow(Shape, kw_only=True, frozen=True):
    filter: Annotated[str, Meta(description="Topic filter, without `$share/GROUP/`.")]
    qos: Annotated[int, Meta(description="Granted QoS.")]
    no_local: Annotated[bool, Meta(description="Not sent what the client published itself.")]
    retain_as_published: Annotated[bool, Meta(description="Keeps the retain flag.")]
    retain_handling: Annotated[int, Meta(description="0 send retained, 1 if new, 2 do not send.")]
    identifier: Annotated[int | None, Meta(description="Subscription identifier of MQTT 5.")] = None
    group: Annotated[str | None, Meta(description="Name of the shared group.")] = None


class Client(Shape, kw_only=True, frozen=True):
    client_id: Annotated[str, Meta(description="As the client named itself.")]
    user: Annotated[str | None, Meta(description="The user it is; null for anonymous.")]
    node: Annotated[str, Meta(description="Where it is connected.")]
    address: Annotated[str, Meta(description="HOST:PORT that it came from.")]
    door: Annotated[str, Meta(description="mqtt, mqtts, ws, wss or text.")]
    protocol: Annotated[Protocol, Meta(description="Version of MQTT, or text.")]
    connected_us: Annotated[int, Meta(description="When it connected.")]
    keep_alive_s: Annotated[int, Meta(description="Agreed keep alive; 0 is none.")]
    is_durable: Annotated[bool, Meta(description="Whether its session outlives the connection.")]
    subscriptions: Annotated[int, Meta(description="How many.")]
    in_flight: Annotated[int, Meta(description="Messages sent and not acknowledged.")]
    queued: Annotated[int, Meta(description="Messages that wait in memory to be sent.")]
    received: Annotated[int, Meta(description="Messages from it over this connection.")]
    sent: Annotated[int, Meta(description="Messages to it since it connected.")]


class ClientDetail(Client, kw_only=True, frozen=True):
    filters: Annotated[tuple[SubscriptionRow, ...], Meta(description="Its subscriptions.")] = ()
    will_topic: Annotated[str | None, Meta(description="Topic of its will.")] = None
    session_expiry_s: Annotated[int, Meta(description="How long its session stays after it.")] = 0


class Session(Shape, kw_only=True, frozen=True):
    client_id: Annotated[str, Meta(description="Of the client.")]
    user: Annotated[str | None, Meta(description="The user it is; null for anonymous.")]
    owner: Annotated[str | None, Meta(description="The node that looks after it.")]
    is_connected: Annotated[bool, Meta(description="Whether the client is there.")]
    expiry_s: Annotated[int, Meta(description="How long it stays after the client; 4294967295 is for ever.")]
    away_since_us: Annotated[int | None, Meta(description="When the client went; null while it is there.")]
    subscriptions: Annotated[int, Meta(description="How many.")]
    queued: Annotated[
        int | None,
        Meta(description="What waits for it, at most: offsets of its logs may be of other topics."),
    ]
    unfinished_qos2: Annotated[int, Meta(description="QoS 2 exchanges that are under way.")]
    has_will: Annotated[bool, Meta(description="Whether it has a will.")]


class SessionCursor(Shape, kw_only=True, frozen=True):
    shard: Annotated[int, Meta(description="The log.")]
    offset: Annotated[int, Meta(description="Where it goes on.")]
    lag: Annotated[int, Meta(description="Offsets from there to the end.")]


class SessionDetail(Session, kw_only=True, frozen=True):
    filters: Annotated[tuple[SubscriptionRow, ...], Meta(description="Its subscriptions.")] = ()
    cursors: Annotated[tuple[SessionCursor, ...], Meta(description="Where it stands in the logs.")] = ()


# ------------------------------------------------------------------------------ events, tail and trace


class Tailed(Shape, kw_only=True, frozen=True):
    time_us: Annotated[int, Meta(description="When this node had it.")]
    topic: Annotated[str, Meta(description="Its topic.")]
    payload: Annotated[str, Meta(description="Its payload, cut at 64 KiB.")]
    encoding: Annotated[Literal["utf-8", "base64"], Meta(description="How the payload is written here.")]
    qos: Annotated[int, Meta(description="As a tail takes it: 0.")]
    retain: Annotated[bool, Meta(description="Whether it was published with the retain flag.")]
    publisher: Annotated[str | None, Meta(description="Client that sent it; null where it is not told.")]
    content_type: Annotated[str | None, Meta(description="Content type of MQTT 5.")]
    user_properties: Annotated[tuple[tuple[str, str], ...], Meta(description="User properties of MQTT 5.")]
    payload_bytes: Annotated[int, Meta(description="Size of the whole payload.")]


class Skipped(Shape, kw_only=True, frozen=True):
    count: Annotated[int, Meta(description="Messages that were left out.")]


class Receiver(Shape, kw_only=True, frozen=True):
    client_id: Annotated[str, Meta(description="Client, or name of the group.")]
    node: Annotated[str, Meta(description="Where it is.")]
    filter: Annotated[str, Meta(description="The filter that takes the topic.")]
    qos: Annotated[int, Meta(description="Granted QoS.")]
    kind: Annotated[ReceiverKind, Meta(description="A session, or a member of a group.")]


class Captured(Shape, kw_only=True, frozen=True):
    """Whether messages of a QoS go into a log, by QoS."""

    qos_0: Annotated[bool, Meta(description="QoS 0.")] = msgspec.field(name="0")
    qos_1: Annotated[bool, Meta(description="QoS 1.")] = msgspec.field(name="1")
    qos_2: Annotated[bool, Meta(description="QoS 2.")] = msgspec.field(name="2")


class Trace(Shape, kw_only=True, frozen=True):
    topic: Annotated[str | None, Meta(description="The topic that was asked for.")]
    stream: Annotated[str | None, Meta(description="Its stream; null for `$` topics.")]
    replication: Annotated[str | None, Meta(description="How the stream is replicated.")]
    shard: Annotated[int | None, Meta(description="The log that keeps it.")]
    leader: Annotated[str | None, Meta(description="Leader of that log.")]
    next_offset: Annotated[int | None, Meta(description="The offset that its next message gets, or later.")]
    is_captured: Annotated[Captured, Meta(description="Which QoS is logged.")]
    receivers: Annotated[tuple[Receiver, ...], Meta(description="Who gets the next message.")]
    retained: Annotated[bool, Meta(description="Whether there is a retained message.")]
    missing: Annotated[tuple[str, ...], Meta(description="Nodes that did not say who is there.")] = ()


# ------------------------------------------------------------------------------------------------ login


class Me(Shape, kw_only=True, frozen=True):
    user: Annotated[str | None, Meta(description="Who is calling; null for nobody in particular.")]
    is_admin: Annotated[bool, Meta(description="Whether it may change everything, users and rules among it.")]
    roles: Annotated[tuple[str, ...], Meta(description="Of admin, operator and observer.")]
    login_needed: Annotated[bool, Meta(description="Whether nothing is answered without a login.")]


class LoggedIn(Shape, kw_only=True, frozen=True):
    user: Annotated[str | None, Meta(description="Who is logged in.")]
    roles: Annotated[tuple[str, ...], Meta(description="Of admin, operator and observer.")]
