"""Answers about groups and the queue."""

from typing import Annotated, Any, Literal

from pydantic import Field

from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.node.doors.http.answers.base import Answer, model_of
from millrace.node.doors.http.answers.streams import MESSAGE, StoredMessage


class GroupShard(Answer):
    shard: Annotated[int, Field(description="The log.")]
    stream: Annotated[str, Field(description="Its stream.")]
    position: Annotated[int, Field(description="Everything below is done or out.")]
    next_offset: Annotated[int, Field(description="Offset of the next message to come.")]
    lag: Annotated[int, Field(description="Messages of the group that are not done.")]
    lag_is_exact: Annotated[
        bool, Field(description="Whether all of the log was looked at; otherwise `lag` is an upper bound.")
    ]
    in_flight: Annotated[int, Field(description="Out with a member, under a lease.")]
    ready_again: Annotated[int, Field(description="Given back, and due.")]
    delayed: Annotated[int, Field(description="Given back, and not due yet.")]
    dead: Annotated[int, Field(description="On their way to the dead letters.")]
    missed: Annotated[int, Field(description="Offsets that retention removed before the group was there.")]
    epoch: Annotated[int, Field(description="Raised by every reset.")]


class GroupLeaderless(Answer):
    stream: Annotated[str, Field(description="A leaderless stream that it reads.")]
    lag: Annotated[int, Field(description="Messages that nobody has done.")]
    deliver: Annotated[list[str], Field(description="Nodes that share the work.")]


_LAG = (int, Field(description="Messages that are not done; exact where that of every shard is."))
_LAG_AT_MOST = (
    int,
    Field(
        description="At most so many messages are not done: messages of other topics in the same logs count "
        "until somebody has looked at them."
    ),
)
_IN_FLIGHT = (int, Field(description="Out with a member, under a lease."))

GroupSummary: Any = model_of(DurableGroupSpec, "GroupSummary", lag=_LAG_AT_MOST, in_flight=_IN_FLIGHT)
GroupShown: Any = model_of(
    DurableGroupSpec,
    "Group",
    lag=_LAG,
    in_flight=_IN_FLIGHT,
    waiting_here=(int, Field(description="Requests that wait at this node for a message.")),
    members_here=(int, Field(description="MQTT members connected at this node.")),
    shards=(list[GroupShard], Field(description="Where it stands in each log.")),
    leaderless=(list[GroupLeaderless], Field(description="What it has to do in leaderless streams.")),
)


class GroupList(Answer):
    groups: Annotated[list[GroupSummary], Field(description="All groups made by command.")]


class TakenMessage(StoredMessage):
    deliveries: Annotated[int | None, Field(description="Leased: how often it was given.")] = None
    receipt: Annotated[str | None, Field(description="Leased: what acknowledges it.")] = None


class TakenList(Answer):
    messages: Annotated[list[TakenMessage], Field(description="None where there is nothing to take.")]


class Settled(Answer):
    results: Annotated[list[bool], Field(description="Which receipts were still good.")]


# ------------------------------------------------------------------------------------------- the queue

QueueReason = Annotated[
    str | None,
    Field(description="Where `success` is false: empty, exists, no such topic, or what is wrong."),
]


class QueueAnswer(Answer):
    success: Annotated[bool, Field(description="Whether it was done.")]
    reason: QueueReason = None


class QueueTopics(QueueAnswer):
    topics: Annotated[list[str], Field(description="Topics that have a queue.")]


class QueueMessage(Answer):
    message: Annotated[str | None, Field(description="Text, or base64 where `encoding` says so.")] = None
    encoding: Annotated[Literal["base64"] | None, Field(description="Absent for text.")] = None
    receipt: Annotated[str | None, Field(description="Leased: what acknowledges it.")] = None
    deliveries: Annotated[int | None, Field(description="Leased: how often it was given.")] = None


class QueueTaken(QueueMessage):
    success: Annotated[bool, Field(description="Whether there was a message.")]
    reason: QueueReason = None
    messages: Annotated[
        list[QueueMessage] | None, Field(description="In place of `message` where `count` was given.")
    ] = None


class QueueReply(QueueTaken):
    """What any of the four requests is answered with."""

    topics: Annotated[list[str] | None, Field(description="Topics that have a queue, where asked for.")] = (
        None
    )


class QueueSettled(QueueAnswer):
    results: Annotated[list[bool], Field(description="Which receipts were still good.")]


GROUP: dict[str, Any] = {
    "name": "billing",
    "filters": ["orders/#"],
    "deliveries_max": 0,
    "dead_letter": "",
    "in_flight_max": 10_000,
    "lag": 12,
    "in_flight": 3,
}
GROUP_SHOWN: dict[str, Any] = {
    **GROUP,
    "waiting_here": 1,
    "members_here": 2,
    "shards": [
        {
            "shard": 16,
            "stream": "default",
            "position": 800,
            "next_offset": 812,
            "lag": 12,
            "lag_is_exact": True,
            "in_flight": 3,
            "ready_again": 0,
            "delayed": 0,
            "dead": 0,
            "missed": 0,
            "epoch": 1,
        }
    ],
    "leaderless": [],
}
TAKEN: dict[str, Any] = {"messages": [{**MESSAGE, "deliveries": 1, "receipt": "16.812.1"}]}
SETTLED: dict[str, Any] = {"results": [True]}
