"""From a time to an offset, by halving a shard's log.

The leader never lets the time of a block fall below the one before [rule 2], so times rise along a
shard and about thirty reads find a place among a thousand million messages. A leader whose clock was set back
holds its time still until the clock has caught up; offsets are exact always.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

from millrace.node.logs.reading import Reading
from millrace.storage.block import Block, Kind

if TYPE_CHECKING:
    from millrace.node.shards.shard import Shard

# A search halves 2^63 offsets at most this often.
_PROBES_MAX = 64


async def offset_at(reading: Reading, shard: "Shard", time_us: int) -> int:
    """The first offset whose message is from this time or later; the next one to come where there is none.
    Trimmed if retention passes by meanwhile."""
    low, high = shard.first_offset, shard.next_offset
    for _ in range(_PROBES_MAX):
        if low >= high:
            break
        middle = (low + high) // 2
        block = _holding(await reading.blocks(shard, middle), middle)
        if block is None:
            high = middle
            continue
        header = block.header
        row = bisect_left(block.columns().deltas_us, time_us - header.base_time_us)
        if row == header.count:
            low = header.next_offset
        elif row > 0:
            return max(low, header.base_offset + row)
        else:
            high = min(middle, header.base_offset)
    return low


def _holding(blocks: list[Block], offset: int) -> Block | None:
    for block in blocks:
        if block.header.kind is Kind.DATA and block.header.next_offset > offset:
            return block
    return None
