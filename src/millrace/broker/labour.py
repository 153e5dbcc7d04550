"""Division of labour: which node gives a message of a shared group to one of its members.

A part of each shard's replicated state (PROTOCOLS.md 13). An entry says how many members of a group are
connected at a node; it governs the offsets from its own position on, and as every node applies the same
entries before the same messages, all come to the same answer for every offset without asking each other.
Nodes take turns in proportion to their members. While nobody is connected anywhere, one node that holds the
group for an absent member keeps what comes.
"""

from bisect import bisect_right
from itertools import accumulate

Counts = tuple[int, bool]
"""Members connected at a node, and whether a session there holds the group at all."""


class Labour:
    __slots__ = ("_nodes", "_turns")

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, Counts]] = {}
        # Group -> nodes in order and the running sum of their members, made from `_nodes`.
        self._turns: dict[str, tuple[list[str], list[int]]] = {}

    def put(self, group: str, node: str, connected: int, holds: bool) -> None:
        """An entry: what one node has of one group."""
        nodes = self._nodes.setdefault(group, {})
        if connected or holds:
            nodes[node] = (connected, holds)
        else:
            nodes.pop(node, None)
        if not nodes:
            del self._nodes[group]
            self._turns.pop(group, None)
            return
        names = sorted(nodes)
        sums = list(accumulate(nodes[name][0] for name in names))
        if not sums[-1]:
            names, sums = names[:1], [1]
        self._turns[group] = (names, sums)

    def known(self, group: str, node: str) -> Counts:
        return self._nodes.get(group, {}).get(node, (0, False))

    def groups(self) -> list[str]:
        return list(self._nodes)

    def nodes(self) -> set[str]:
        """Every node that takes part in some group."""
        return {node for nodes in self._nodes.values() for node in nodes}

    def owner(self, group: str, offset: int) -> str | None:
        """The node whose turn this offset is; None where no entry speaks of the group."""
        turns = self._turns.get(group)
        if turns is None:
            return None
        names, sums = turns
        return names[bisect_right(sums, offset % sums[-1])]

    def to_json(self) -> list[object]:
        return [
            [group, sorted([node, *counts] for node, counts in nodes.items())]
            for group, nodes in sorted(self._nodes.items())
        ]

    @staticmethod
    def from_json(rows: list[object]) -> "Labour":
        labour = Labour()
        for row in rows:
            assert isinstance(row, list)
            for node, connected, holds in row[1]:
                labour.put(row[0], node, connected, holds)
        return labour
