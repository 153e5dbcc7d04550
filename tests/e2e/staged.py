"""A writer for the tests of staged publishing: packets by hand, requests by the sink's own client."""

from collections import Counter
from collections.abc import Sequence

from millrace.broker.shards.staging import SECTION
from millrace.broker.streams.stream import Stream, StreamSpec, StreamTable
from millrace.client.http import Http
from millrace.spark.writing import ClusterWriter

Blocks = dict[int, int]


def packet(topic: str, payload: bytes, first: int = 0x32) -> bytes:
    body = len(topic.encode()).to_bytes(2, "big") + topic.encode() + b"\0\1" + payload
    assert len(body) < 128, "one byte of length is enough for these tests"
    return bytes((first, len(body))) + body


def section(shard: int, block: int, packets: bytes, version: int = 4) -> bytes:
    return SECTION.pack(shard, block, version, len(packets)) + packets


class Writer:
    """Stages numbered messages under attempts, at one node or several."""

    def __init__(self, name: str, urls: Sequence[str], stream: str, *, patience_s: float = 30.0) -> None:
        self.name, self.stream = name, stream
        self.cluster = ClusterWriter(tuple(urls), None, patience_s)

    def stage(self, batch: int, attempt: str, numbers: Sequence[int], blocks: int = 1) -> Blocks:
        """Stage these numbers, over the shards of the stream, in so many blocks; what a commit names."""
        (row,) = [row for row in self.cluster.streams() if row["name"] == self.stream]
        shards = tuple(one["shard"] for one in row["shard_list"] if not one["sealed"])
        spec = StreamSpec(name=self.stream, filters=("#",), shards=len(shards))
        stream = Stream(spec=spec, generation=1, shards=shards)
        default = Stream(spec=StreamSpec(name="default", filters=()), generation=1, shards=(1,))
        table = StreamTable({"default": default, self.stream: stream})
        staged: Blocks = {}
        for part in range(blocks):
            packets: dict[int, bytes] = {}
            for number in numbers[part::blocks]:
                topic = f"{self.stream}/{number % 7}"
                shard = table.shard(stream, topic.encode())
                packets[shard] = packets.get(shard, b"") + packet(topic, b"%d" % number)
            body = b""
            for shard, data in packets.items():
                body += section(shard, staged.get(shard, 0), data)
                staged[shard] = staged.get(shard, 0) + 1
            self.cluster.stage(self.stream, self.name, batch, attempt, body)
        return staged

    def commit(self, batch: int, **attempts: Blocks) -> bool:
        """Whether the batch was decided before."""
        answer = self.cluster.commit(self.name, batch, attempts)
        assert answer["visible"]
        return bool(answer["repeated"])


def contents(http: Http, stream: str) -> Counter[int]:
    """The numbers that are in the log of a stream, as a multiset."""
    found: Counter[int] = Counter()
    for row in http.get(f"/v1/streams/{stream}")["shard_list"]:
        offset = int(row["first_offset"])
        while offset < int(row["next_offset"]):
            page = http.messages(stream, row["shard"], offset)
            found.update(int(message["payload"]) for message in page["messages"])
            offset = int(page["next_offset"])
    return found


def staged_bytes(http: Http, stream: str) -> int:
    return sum(int(row["staged_bytes"]) for row in http.get(f"/v1/streams/{stream}")["shard_list"])
