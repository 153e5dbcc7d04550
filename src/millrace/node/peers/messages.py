"""What nodes say to each other beside the messages of the replication machines: typed values, no behaviour.

A request has a number and is answered under it, with its own kind of answer or with `Refused`. A notice is
not answered, and may be lost. Every class here has its tag in `registry`.
"""

from typing import NamedTuple, TypeAlias

import msgspec

from millrace.broker.meta.members import Member
from millrace.broker.sessions.unfinished import PackedSegment
from millrace.replication.contract import EntryKind, PeerBody
from millrace.storage.block import Block

# ------------------------------------------------------------------------------------------------- links


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Who is at the other end, said by itself once the secret is proved. The first message of a link."""

    replica: str
    name: str
    cluster: str
    peer_address: str


class SignOfLife(msgspec.Struct, frozen=True, array_like=True):
    """Sent now and then by a node that may have nothing else to say."""

    heard: tuple[str, ...] = ()
    """The beginnings of the ids of the nodes that it hears."""


# ---------------------------------------------------------------------------------------------- messages


class ForwardedBlock(NamedTuple):
    """A block on its way to the leader of its group. The frame's number is the group's."""

    kind: EntryKind
    block: Block


class Relayed(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a node that has no link with the one that it is for."""

    origin: str
    to: str
    frame: bytes


class RelayedRun(NamedTuple):
    """Messages that clients of the other node want, as the packets that came in."""

    qos: int
    v5: bool
    retain: bool
    group: str
    """The shared subscription that is to get them; empty: every subscriber."""
    packets: bytes


# ---------------------------------------------------------------------------------------------- requests


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a request that cannot be granted, and why."""

    reason: str


class Join(msgspec.Struct, frozen=True, array_like=True):
    """A node asks to be a member of the cluster."""

    member: Member


class Joined(msgspec.Struct, frozen=True, array_like=True):
    cluster: str
    members: dict[str, str]
    """Replica -> where it listens for other nodes."""


class AskMembership(msgspec.Struct, frozen=True, array_like=True):
    """A node that is to form a cluster asks whether the other one belongs to one already."""


class Membership(msgspec.Struct, frozen=True, array_like=True):
    belongs: bool
    """It is a member, or was one when it was stopped."""


class FetchBlocks(msgspec.Struct, frozen=True, array_like=True):
    """A node whose log is damaged asks for the entries `first` to `last` of a group."""

    group: int
    first: int
    last: int


class FetchedBlocks(msgspec.Struct, frozen=True, array_like=True):
    """The first of them, as many as one answer holds."""

    blocks: tuple[bytes, ...]


class SwitchPair(msgspec.Struct, frozen=True, array_like=True):
    """To the primary of a shard: let the backup take over."""

    shard: int


class PairSwitched(msgspec.Struct, frozen=True, array_like=True):
    shard: int
    epoch: int
    primary: str


class HandOver(msgspec.Struct, frozen=True, array_like=True):
    """A client has connected elsewhere: give what its session has under way to the node that asks."""

    client: str
    username: str | None = None


class HandedOver(msgspec.Struct, frozen=True, array_like=True):
    messages: tuple[PackedSegment, ...] = ()
    received: tuple[int, ...] = ()
    """Ids of QoS 2 messages that came from the client and are not released."""


class AskNode(msgspec.Struct, frozen=True, array_like=True):
    """A question of the administration: what to tell, and about what (`node/admin/asking.py`)."""

    name: str
    fields: bytes
    """Plain data in msgpack; a node that cannot read it refuses."""


class NodeAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Plain data in msgpack, as an administrator is shown it."""

    data: bytes


# ----------------------------------------------------------------------------------------------- notices


class ClientConnected(msgspec.Struct, frozen=True, array_like=True):
    """A client has a clean session at the sender since `at_us`, by the stamp of its connection."""

    client: str
    at_us: int
    username: str | None = None


class Removed(msgspec.Struct, frozen=True, array_like=True):
    """To a node that was removed from the cluster, by any member that knows of it."""

    elsewhere: tuple[str, ...]
    """Where clients find the members, by MQTT."""
    is_needed: bool
    """A group of the sender still counts on the vote of the one that was removed."""


class PipelineTold(msgspec.Struct, frozen=True, array_like=True):
    """What the supervisor of a pipeline told the node that runs it."""

    name: str
    number: int
    epoch: int
    version: int
    report: bytes
    """JSON, as `node/pipelines/reports.py` reads it."""


class HandedOn(msgspec.Struct, frozen=True, array_like=True):
    """What still reached the old node of a session after it was handed over."""

    client: str
    messages: tuple[PackedSegment, ...]


NodeMessage: TypeAlias = PeerBody | msgspec.Struct | ForwardedBlock | RelayedRun
