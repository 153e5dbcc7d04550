"""From a topic to the log that keeps it, as the shards stand that are open at this node."""

from collections.abc import Mapping

from millrace.broker.messages.intake import Intake
from millrace.broker.meta.state import MetaState
from millrace.node.leaderless.streams import LeaderlessStreams
from millrace.node.shards.shard import Shard


class Intakes:
    """The ways into the logs. `table` is the one whose shards are open here, which may be older than the
    newest definitions: until the new shards are open, topics stay where they were."""

    def __init__(
        self, shards: Mapping[int, Shard], closed: Mapping[int, Shard], leaderless: LeaderlessStreams
    ) -> None:
        self._shards = shards
        self._closed = closed
        self._leaderless = leaderless
        self.table = MetaState().table

    def find(self, topic: str) -> Intake | None:
        """The way into the log that keeps this topic, None where nothing keeps it."""
        stream = self.table.find(topic)
        if stream is None or not stream.spec.is_stored:
            return None
        number = self.table.shard(stream, topic.encode())
        if number in self._closed:
            return self._closed[number].intake
        return (self._leaderless.streams.get(number) or self._shards[number]).intake
