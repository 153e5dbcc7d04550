"""What one log says about retained topics: kept by stamps, part of the shard's snapshots.

Every entry with a retained message is a word on its topic, at its index, in the routing generation of which
the log itself speaks: before a node proposes the first retained message after streams changed, it proposes
an entry that names the generation. So all replicas give the same word the same stamp, and the newest wins
whichever log is applied first [rule 17].
"""

import json
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from millrace.broker.machine import Broker
from millrace.broker.messages.inbound import payload_is_empty
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.shards.stamps import Stamps
from millrace.storage.block import Block, Kind, opaque_block

# Deletions that a log remembers; beyond it the oldest are forgotten.
DELETED_MAX = 10_000


class ShardRetained:
    def __init__(self, number: int, broker: Broker) -> None:
        self._number = number
        self._broker = broker
        self.stamps = Stamps()
        """Shared by all logs of a node."""
        self.routing_generation: Callable[[], int] = lambda: 0
        self._generation = 0
        self._said = 0
        # Topic -> generation and index of the last word of this log; also where that was a deletion.
        self._words: dict[str, tuple[int, int]] = {}
        # Those that were deletions, the oldest first.
        self._deleted: dict[str, None] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._words

    # ------------------------------------------------------------------------------------- entries

    def announcement(self, arrivals: list[Arrival]) -> Block | None:
        """What the log must know before these: the routing generation, if one of them is retained."""
        generation = self.routing_generation()
        if generation <= max(self._generation, self._said):
            return None
        if not any(arrival.run is not None and arrival.run.retain for arrival in arrivals):
            return None
        self._said = generation
        return opaque_block(Kind.CONTROL, json.dumps({"op": "generation", "generation": generation}).encode())

    def announced(self, generation: int) -> None:
        self._generation = max(self._generation, generation)

    def lost(self) -> None:
        """What was announced may not have got there."""
        self._said = 0

    def keep(self, topic: str, run: Run, index: int) -> None:
        """The word of the entry at `index`."""
        self._words.pop(topic, None)
        self._words[topic] = (self._generation, index)
        is_empty = payload_is_empty(run)
        if self.stamps.admit(topic, (self._generation, self._number, index)):
            self._broker.retained.keep(topic, run, is_empty=is_empty)
        self._deleted.pop(topic, None)
        if is_empty:
            self._deleted[topic] = None
            if len(self._deleted) > DELETED_MAX:
                self._forget(next(iter(self._deleted)))

    def _forget(self, topic: str) -> None:
        """That a message was deleted, or has expired, long ago."""
        self._deleted.pop(topic, None)
        del self._words[topic]
        if self.stamps.is_last_of(topic, self._number):
            self.stamps.forget(topic)

    # ----------------------------------------------------------------------------------- snapshots

    def to_json(self, fields_of: Callable[[Run], dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
        """The generation, and the words of this log that are the last ones on their topics."""
        rows: list[dict[str, Any]] = []
        deleted: list[dict[str, Any]] = []
        for topic, (generation, index) in self._words.items():
            if not self.stamps.is_last_of(topic, self._number):
                continue
            found = self._broker.retained.logged(topic)
            row = {"topic": topic, "generation": generation, "index": index}
            if found is None:
                deleted.append(row)
            else:
                rows.append({**row, **fields_of(found)})
        for old in deleted[:-DELETED_MAX]:
            self._forget(old["topic"])
        rows += deleted[-DELETED_MAX:]
        return self._generation, sorted(rows, key=lambda row: str(row["topic"]))

    def restore(
        self, generation: int, rows: list[dict[str, Any]], run_of: Callable[[dict[str, Any]], Run]
    ) -> None:
        """From a snapshot, in place of everything this log said before."""
        before, self._words = self._words, {}
        self._deleted = {}
        self._generation = generation
        # Rows written before there were stamps have none.
        words = [((row.get("generation", 0), row.get("index", 0)), row) for row in rows]
        for word, row in sorted(words, key=itemgetter(0)):
            topic = row["topic"]
            self._words[topic] = word
            if "packet" not in row:
                self._deleted[topic] = None
            if self.stamps.admit(topic, (word[0], self._number, word[1])):
                if "packet" in row:
                    self._broker.retained.keep(topic, run_of(row), is_empty=False)
                else:
                    self._broker.retained.drop(topic)
        for topic in before:
            if topic not in self._words and self.stamps.is_last_of(topic, self._number):
                self.stamps.forget(topic)
                self._broker.retained.drop(topic)
