"""Answers about streams, their messages, publishing, and staged publishing."""

from typing import Annotated, Any, Literal

from pydantic import Field

from millrace.broker.streams.pair_spec import TopicClass
from millrace.broker.streams.stream import StreamSpec
from millrace.node.doors.http.answers.base import Answer, model_of
from millrace.node.doors.http.answers.node import SHARD, ShardRow


class LeaderlessGroup(Answer):
    clients: Annotated[list[str], Field(description="Its members, at all nodes.")]
    connected_here: Annotated[Any, Field(description="What of it is connected at this node.")]
    deliver: Annotated[list[str], Field(description="Nodes that share the work.")]
    lag: Annotated[int, Field(description="Messages that nobody has done.")]


_TopicClassShown: Any = model_of(TopicClass, "AdmittedTopicClass")

StreamShown: Any = model_of(
    StreamSpec,
    "Stream",
    generation=(int, Field(description="Routing generation that it began with.")),
    shard_list=(list[ShardRow], Field(description="Its logs at this node, sealed ones too.")),
    topic_classes=(
        list[_TopicClassShown] | None,
        Field(default=None, description="Primary-backup: topic classes with what each comes to."),
    ),
    warnings=(
        list[str] | None,
        Field(default=None, description="What it lacks, and because of whom."),
    ),
    groups=(
        dict[str, LeaderlessGroup] | None,
        Field(default=None, description="Leaderless: groups that read it, by their key."),
    ),
)


class StreamList(Answer):
    streams: Annotated[list[StreamShown], Field(description="All streams.")]


class Preview(Answer):
    name: Annotated[str, Field(description="Name of the stream.")]
    means: Annotated[list[str], Field(description="What the change would mean, a sentence each.")]


class Reloaded(Answer):
    reloaded: Annotated[int, Field(description="How many functions there are.")]


class Switched(Answer):
    shard: Annotated[int, Field(description="The log.")]
    epoch: Annotated[int, Field(description="Epoch of the new primary.")]
    primary: Annotated[str, Field(description="Replica id of the new primary.")]


class SwitchedList(Answer):
    switched: Annotated[list[Switched], Field(description="Each log of the stream.")]


class StoredMessage(Answer):
    shard: Annotated[int, Field(description="The log.")]
    offset: Annotated[int, Field(description="Its place there.")]
    topic: Annotated[str, Field(description="Its topic.")]
    payload: Annotated[str, Field(description="Text, or base64 where `encoding` says so.")]
    encoding: Annotated[Literal["base64"] | None, Field(description="Absent for text.")] = None
    qos: Annotated[int, Field(description="QoS of the publisher.")]
    retain: Annotated[bool, Field(description="Whether it was to be retained.")]
    time_us: Annotated[int, Field(description="When it was taken, microseconds since 1970.")]
    publisher: Annotated[str | None, Field(description="Client that sent it.")] = None
    content_type: Annotated[str | None, Field(description="Content type of MQTT 5.")] = None
    response_topic: Annotated[str | None, Field(description="Response topic of MQTT 5.")] = None
    expiry_s: Annotated[int | None, Field(description="Message expiry of MQTT 5.")] = None
    user_properties: Annotated[
        list[tuple[str, str]] | None, Field(description="User properties of MQTT 5.")
    ] = None
    correlation_data: Annotated[str | None, Field(description="Correlation data of MQTT 5, base64.")] = None


class MessageList(Answer):
    stream: Annotated[str, Field(description="Name of the stream.")]
    shard: Annotated[int, Field(description="The log.")]
    messages: Annotated[list[StoredMessage], Field(description="In the order of their offsets.")]
    next_offset: Annotated[int, Field(description="The offset to ask for next.")]
    end_offset: Annotated[int, Field(description="Offset of the next message to come.")]


class OffsetFound(Answer):
    stream: Annotated[str, Field(description="Name of the stream.")]
    shard: Annotated[int, Field(description="The log.")]
    offset: Annotated[int, Field(description="First offset from that time on.")]
    first_offset: Annotated[int, Field(description="First offset that this node keeps.")]
    next_offset: Annotated[int, Field(description="Offset of the next message to come.")]


class PublishedMessage(Answer):
    topic: Annotated[str, Field(description="Its topic.")]
    shard: Annotated[int | None, Field(description="The log; null where no log keeps the topic.")]
    offset: Annotated[int | None, Field(description="Its place there.")]
    duplicate: Annotated[bool, Field(description="Whether it was there already.")]


class PublishedList(Answer):
    published: Annotated[list[PublishedMessage], Field(description="In the order of the request.")]


class StagedBlocks(Answer):
    blocks: Annotated[int, Field(description="Sections that were taken.")]
    rows: Annotated[int, Field(description="Messages in them.")]


class Committed(Answer):
    writer: Annotated[str, Field(description="The writer.")]
    batch: Annotated[int, Field(description="The batch.")]
    repeated: Annotated[bool, Field(description="It was decided before, and nothing changed.")]
    visible: Annotated[bool, Field(description="All of it is there by now; otherwise it will be.")]


class NotVisible(Answer):
    batch: Annotated[int, Field(description="A batch that is decided.")]
    shards: Annotated[list[int], Field(description="Logs in which it is not visible yet.")]


class StagedAttempt(Answer):
    stream: Annotated[str, Field(description="Name of the stream.")]
    shard: Annotated[int, Field(description="The log.")]
    writer: Annotated[str, Field(description="The writer.")]
    batch: Annotated[int, Field(description="The batch.")]
    attempt: Annotated[str, Field(description="The attempt.")]
    blocks: Annotated[int, Field(description="Blocks that are staged.")]
    rows: Annotated[int, Field(description="Messages in them.")]
    bytes: Annotated[int, Field(description="What they hold on disk.")]
    since_us: Annotated[int, Field(description="When the first was staged.")]


class WriterShown(Answer):
    writer: Annotated[str, Field(description="The writer.")]
    last_batch: Annotated[int | None, Field(description="The last batch that was decided.")]
    not_visible: Annotated[list[NotVisible], Field(description="Decided, and not visible everywhere.")]
    staged: Annotated[list[StagedAttempt], Field(description="Staged at this node.")]


class WriterList(Answer):
    writers: Annotated[list[WriterShown], Field(description="Those with something under way.")]


STREAM: dict[str, Any] = {
    "name": "default",
    "filters": [],
    "replication": "quorum",
    "shards": 1,
    "replicas": 3,
    "capture": "acknowledged",
    "retention_age_s": 86_400,
    "retention_bytes": 10_737_418_240,
    "hold_age_s": 86_400,
    "hold_bytes": 0,
    "compression": "none",
    "edge": "",
    "generation": 1,
    "shard_list": [SHARD],
}
MESSAGE: dict[str, Any] = {
    "shard": 16,
    "offset": 812,
    "topic": "plant/7/temperature",
    "payload": "21.5",
    "qos": 1,
    "retain": False,
    "time_us": 1_795_000_000_000_000,
    "publisher": "press-7",
}
MESSAGES: dict[str, Any] = {
    "stream": "default",
    "shard": 16,
    "messages": [MESSAGE],
    "next_offset": 813,
    "end_offset": 813,
}
PUBLISHED: dict[str, Any] = {"topic": "plant/7/temperature", "shard": 16, "offset": 812, "duplicate": False}
WRITER: dict[str, Any] = {"writer": "etl", "last_batch": 41, "not_visible": [], "staged": []}
