"""The end of a log in memory, for readers that are only a little behind."""

from collections import deque

from millrace.storage.block import Block

_TAIL_BYTES_MAX = 4 * 1024 * 1024


class Tail:
    __slots__ = ("_blocks", "_size_bytes")

    def __init__(self) -> None:
        self._blocks: deque[Block] = deque()
        self._size_bytes = 0

    def keep(self, block: Block) -> None:
        """The next block of messages that was committed."""
        self._blocks.append(block)
        self._size_bytes += block.header.block_bytes
        while self._size_bytes > _TAIL_BYTES_MAX and len(self._blocks) > 1:
            self._size_bytes -= self._blocks.popleft().header.block_bytes

    def since(self, offset: int) -> list[Block] | None:
        """Blocks from the one that holds `offset`; None where it is not here any more."""
        if not self._blocks or offset < self._blocks[0].header.base_offset:
            return None
        return [block for block in self._blocks if block.header.next_offset > offset]
