"""A tree over topic levels: values found by filter.

`TopicTree` answers "which of my topics does this filter take" for retained messages. Wildcards in the first
level never reach topics that begin with `$` ([MQTT-4.7.2-1]).
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

SHARE_PREFIX = "$share/"

Value = TypeVar("Value")


def split_share(filter: str) -> tuple[str, str]:
    """`$share/NAME/FILTER` -> (NAME, FILTER); a plain filter -> ("", filter)."""
    if not filter.startswith(SHARE_PREFIX):
        return "", filter
    _, name, inner = filter.split("/", 2)
    return name, inner


def has_wildcard(filter: str) -> bool:
    """Whether a valid filter takes other topics than the one it spells."""
    return "+" in filter or "#" in filter


class _Leaf(Generic[Value]):
    __slots__ = ("children", "topic", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Leaf[Value]] | None = None
        self.topic = ""
        self.value: Value | None = None


class TopicTree(Generic[Value]):
    """Values by topic, found again by filter. A value is never None.

    `count` is the number of values, `nodes` what they cost: a topic of many levels holds as many nodes.
    A topic that is there is found by its text, and only a new one by its levels.
    """

    __slots__ = ("_by_topic", "_root", "nodes")

    def __init__(self) -> None:
        self._root: _Leaf[Value] = _Leaf()
        self._by_topic: dict[str, _Leaf[Value]] = {}
        self.nodes = 0

    @property
    def count(self) -> int:
        return len(self._by_topic)

    def get(self, topic: str) -> Value | None:
        leaf = self._by_topic.get(topic)
        return None if leaf is None else leaf.value

    def set(self, topic: str, value: Value) -> Value | None:
        """Put a value; the one it replaces is returned."""
        leaf = self._by_topic.get(topic)
        if leaf is None:
            leaf = self._by_topic[topic] = self._leaf(topic)
        old, leaf.value = leaf.value, value
        return old

    def _leaf(self, topic: str) -> _Leaf[Value]:
        node = self._root
        for level in topic.split("/"):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Leaf()
                self.nodes += 1
            node = child
        node.topic = topic
        return node

    def pop(self, topic: str) -> Value | None:
        leaf = self._by_topic.pop(topic, None)
        if leaf is None:
            return None
        path = [self._root]
        levels = topic.split("/")
        for level in levels:
            below = path[-1].children
            assert below is not None
            path.append(below[level])
        old, leaf.value = leaf.value, None
        for depth in range(len(levels), 0, -1):
            if path[depth].children or path[depth].value is not None:
                break
            above = path[depth - 1].children
            assert above is not None
            del above[levels[depth - 1]]
            self.nodes -= 1
        return old

    def clear(self) -> None:
        self._root = _Leaf()
        self._by_topic = {}
        self.nodes = 0

    def may_match(self, filter: str) -> bool:
        """False where no topic is taken by this filter, as far as its first level and its text tell."""
        if "+" not in filter and "#" not in filter:
            return filter in self._by_topic
        first = filter.partition("/")[0]
        children = self._root.children
        return first in ("+", "#") or (children is not None and first in children)

    def match(self, filter: str) -> Iterator[tuple[str, Value]]:
        """All topics that this filter takes. The tree must not change while the iterator is used."""
        if not has_wildcard(filter):
            leaf = self._by_topic.get(filter)
            if leaf is not None and leaf.value is not None:
                yield filter, leaf.value
            return
        levels = filter.split("/")
        last = len(levels)
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            if depth == last:
                if node.value is not None:
                    yield node.topic, node.value
                continue
            level = levels[depth]
            if level == "#":
                yield from self._all(node, depth)
            elif not node.children:
                continue
            elif level == "+":
                for name, child in node.children.items():
                    if depth or not name.startswith("$"):
                        stack.append((child, depth + 1))
            elif (found := node.children.get(level)) is not None:
                stack.append((found, depth + 1))

    def walk(self, filter: str) -> Iterator[tuple[str, Value] | None]:
        """As `match`, in small steps: None for each node that was looked at in vain. The tree may change
        between two steps; what is put or taken away meanwhile may be found or not."""
        levels = filter.split("/")
        last = len(levels)
        # A node with its depth in the filter (`last` + 1 is below a #), or with the names of children to go.
        stack: list[tuple[_Leaf[Value], int, Iterator[str] | None]] = [(self._root, 0, None)]
        while stack:
            node, depth, names = stack.pop()
            if names is not None:
                name = next(names, None)
                if name is not None:
                    stack.append((node, depth, names))
                    child = None if node.children is None else node.children.get(name)
                    if child is not None and not (node is self._root and name.startswith("$")):
                        stack.append((child, depth, None))
                        continue
            elif depth >= last:
                if depth > last and node.children:
                    stack.append((node, depth, iter(list(node.children))))
                if node.value is not None:
                    yield node.topic, node.value
                    continue
            elif levels[depth] == "#":
                stack.append((node, last + 1, iter(list(node.children or ()))))
                # "sport/#" takes "sport" too (4.7.1.2).
                if depth and node.value is not None:
                    yield node.topic, node.value
                    continue
            elif levels[depth] == "+":
                stack.append((node, depth + 1, iter(list(node.children or ()))))
            elif node.children and (found := node.children.get(levels[depth])) is not None:
                stack.append((found, depth + 1, None))
            yield None

    @staticmethod
    def _all(node: _Leaf[Value], depth: int) -> Iterator[tuple[str, Value]]:
        # "sport/#" takes "sport" too (4.7.1.2).
        below = node.children or {}
        stack = [node] if depth else [child for name, child in below.items() if not name.startswith("$")]
        while stack:
            node = stack.pop()
            if node.value is not None:
                yield node.topic, node.value
            if node.children:
                stack.extend(node.children.values())
