"""Answers about a node and its cluster."""

from typing import Annotated, Any

from pydantic import Field

from millrace.node.doors.http.answers.base import Answer


class Alive(Answer):
    status: Annotated[str, Field(description="ok.")]


class Ready(Alive):
    waits: Annotated[
        list[str], Field(description="What somebody waits for here for more than a second, and why.")
    ]
    is_settled: Annotated[
        bool, Field(description="Every log has its copies: before that, the loss of one node may stop some.")
    ]


class Member(Answer):
    node: Annotated[str, Field(description="Its name.")]
    replica: Annotated[str, Field(description="The id in its data directory.")]
    peer: Annotated[str, Field(description="HOST:PORT for other nodes.")]
    mqtt: Annotated[str, Field(description="HOST:PORT of MQTT; empty without.")]
    http: Annotated[str, Field(description="HOST:PORT of HTTP; empty without.")]
    host: Annotated[str, Field(description="The machine that it shares with others; empty: its own.")]
    state: Annotated[str, Field(description="up, draining, suspect or unreachable.")]
    silent_s: Annotated[float, Field(description="How long this node has not heard it.")]
    leads_meta: Annotated[bool, Field(description="Whether it leads the group of the definitions.")]
    leads: Annotated[int, Field(description="How many groups it leads, as far as this node knows.")]


class ClusterStatus(Answer):
    cluster: Annotated[str, Field(description="Id of the cluster.")]
    members: Annotated[list[Member], Field(description="Its nodes.")]
    is_settled: Annotated[bool, Field(description="Every group is kept where it should be.")]
    is_spread: Annotated[bool, Field(description="Every group is led by the node that should lead it.")]


class ReplicationGroup(Answer):
    group: Annotated[int, Field(description="Its number; 0 keeps the definitions.")]
    keeps: Annotated[str, Field(description="What it keeps, in words.")]
    role: Annotated[str, Field(description="What this node is in it.")]
    term: Annotated[int, Field(description="Term, or epoch of a pair.")]
    leader: Annotated[str | None, Field(description="Name of the node that leads it.")]
    commit: Annotated[int, Field(description="Last entry that is committed.")]
    applied: Annotated[int, Field(description="Last entry in this node's state.")]
    last: Annotated[int, Field(description="Last entry in this node's log.")]
    voters: Annotated[list[str], Field(description="Nodes whose majority decides.")]
    learners: Annotated[list[str], Field(description="Nodes that follow without a vote.")]
    lag: Annotated[dict[str, int], Field(description="At the leader: entries that each node lacks.")]
    pending: Annotated[int, Field(description="Proposals of this node on their way.")]


class ClusterShown(ClusterStatus):
    groups: Annotated[list[ReplicationGroup], Field(description="Every group of this node.")]


class ShardRow(Answer):
    stream: Annotated[str, Field(description="Name of its stream.")]
    shard: Annotated[int, Field(description="Number of the log.")]
    first_offset: Annotated[int, Field(description="First offset that is kept.")]
    next_offset: Annotated[int, Field(description="Offset of the next message.")]
    bytes: Annotated[int, Field(description="What it holds on this node's disk.")]
    staged_bytes: Annotated[int, Field(description="What is staged and visible to nobody.")]
    staged_attempts: Annotated[int, Field(description="Under so many attempts.")]
    sealed: Annotated[bool, Field(description="Whether it takes no more.")]
    role: Annotated[str, Field(description="What this node is for it.")]
    term: Annotated[int, Field(description="Term; epoch of a pair; incarnation of an origin.")]
    origin: Annotated[str | None, Field(description="Leaderless: the node whose log it is.")] = None
    primary: Annotated[str | None, Field(description="Primary-backup: the primary.")] = None
    backup: Annotated[str | None, Field(description="Primary-backup: the backup, if there is one.")] = None
    in_sync: Annotated[bool | None, Field(description="Primary-backup: the backup has everything.")] = None
    measured: Annotated[
        list[dict[str, Any]] | None, Field(description="Schedule frame: what was measured, by class.")
    ] = None


class RoutedStatus(Answer):
    """Interest of this node and of the others; empty before the node serves."""

    announced: Annotated[int | None, Field(description="Filters that this node announced.")] = None
    unannounced: Annotated[int | None, Field(description="Filters that it has yet to announce.")] = None
    version: Annotated[int | None, Field(description="Version of its filters.")] = None
    peers: Annotated[
        dict[str, int] | None, Field(description="Filters known of each node; -1 while not complete.")
    ] = None
    retained: Annotated[int | None, Field(description="Retained messages that no log keeps.")] = None
    tombstones: Annotated[int | None, Field(description="Deletions of such messages.")] = None


class Status(Answer):
    role: Annotated[str, Field(description="In the group of the definitions.")]
    term: Annotated[int, Field(description="Term of that group.")]
    node: Annotated[str, Field(description="Name of this node.")]
    version: Annotated[str, Field(description="Version of the program.")]
    accelerated: Annotated[bool, Field(description="Whether the C kernels are in use.")]
    uptime_s: Annotated[int, Field(description="Seconds since the start.")]
    waits_for: Annotated[str, Field(description="Why it cannot serve; empty while it can.")]
    waits: Annotated[
        list[str], Field(description="What somebody waits for here for more than a second, and why.")
    ]
    listeners: Annotated[dict[str, int], Field(description="Door -> port.")]
    clients_connected: Annotated[int, Field(description="Clients connected here.")]
    sessions: Annotated[int, Field(description="Sessions that this node looks after.")]
    subscriptions: Annotated[int, Field(description="Their subscriptions.")]
    retained_messages: Annotated[int, Field(description="Retained messages known here.")]
    cluster: Annotated[ClusterStatus, Field(description="The cluster as this node sees it.")]
    streams: Annotated[list[ShardRow], Field(description="Every log of this node.")]
    routed: Annotated[RoutedStatus, Field(description="What nodes want of routed streams.")]
    counters: Annotated[dict[str, int], Field(description="Counted since the start.")]


ALIVE = {"status": "ok"}
READY = {
    "status": "ok",
    "waits": ["shard 17: waiting for a majority of the nodes that keep it: n2 does not answer"],
    "is_settled": True,
}
MEMBER = {
    "node": "n1",
    "replica": "b4a0d6c2",
    "peer": "10.0.0.1:18832",
    "mqtt": "10.0.0.1:1883",
    "http": "10.0.0.1:18831",
    "state": "up",
    "host": "",
    "silent_s": 0.0,
    "leads_meta": True,
    "leads": 2,
}
CLUSTER = {"cluster": "6f1d5c0b9a3e7d42", "members": [MEMBER], "is_settled": True, "is_spread": True}
GROUP = {
    "group": 0,
    "keeps": "cluster",
    "role": "leader",
    "term": 3,
    "leader": "n1",
    "commit": 40,
    "applied": 40,
    "last": 40,
    "voters": ["n1", "n2", "n3"],
    "learners": [],
    "lag": {"n2": 0, "n3": 0},
    "pending": 0,
}
SHARD = {
    "stream": "default",
    "shard": 16,
    "first_offset": 0,
    "next_offset": 812,
    "bytes": 65_536,
    "staged_bytes": 0,
    "staged_attempts": 0,
    "sealed": False,
    "role": "leader",
    "term": 3,
}
STATUS = {
    "role": "leader",
    "term": 3,
    "node": "n1",
    "version": "0.2.0",
    "accelerated": True,
    "uptime_s": 86_400,
    "waits_for": "",
    "waits": [],
    "listeners": {"mqtt": 1883, "http": 18831},
    "clients_connected": 1_200,
    "sessions": 1_350,
    "subscriptions": 2_700,
    "retained_messages": 1_200,
    "cluster": CLUSTER,
    "streams": [SHARD],
    "routed": {},
    "counters": {"received": 6_000_000, "sent": 12_000_000},
}
