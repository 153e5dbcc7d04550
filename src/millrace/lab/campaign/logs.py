"""The log of a stream as one node keeps it, read block by block: a campaign leaves millions of messages."""

from collections.abc import Iterator

from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.local_cluster import NodeProcess
from millrace.storage.block import Block, parse_block


def blocks_of(node: NodeProcess, stream: str, shard: int) -> Iterator[Block]:
    """*blocking* Every data block of a shard, from the first that the node has to the last."""
    http = Http(node.http_url)
    rows = http.get(f"/v1/streams/{stream}")["shard_list"]
    row = next((row for row in rows if row["shard"] == shard), None)
    if row is None:
        raise LocalError(f"{node.name} does not know shard {shard}")
    offset, end = row["first_offset"], row["next_offset"]
    while offset < end:
        answer, following = http.blocks(stream, shard, offset, end)
        if following <= offset:
            raise LocalError(
                f"{node.name} has nothing at offset {offset} of shard {shard}, and says to end at {end}"
            )
        position = 0
        while position < len(answer):
            block = parse_block(answer, position)
            yield block
            position += block.header.block_bytes
        offset = following


def messages_of(block: Block) -> Iterator[tuple[str, bytes]]:
    """Topic and payload of each message, in order."""
    columns = block.columns()
    topics = [topic.decode() for topic in block.topics()]
    packets = bytes(columns.packets)
    rows = zip(columns.topic_ids, columns.payload_positions, columns.payload_sizes, strict=True)
    for topic, position, size in rows:
        yield topics[topic], packets[position : position + size]
