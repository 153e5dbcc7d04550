"""Two trees over topic levels: subscriptions found by topic, and values found by filter.

`SubscriptionTree` answers "who wants this topic" in time that grows with the levels of the topic and not
with the number of filters. `TopicTree` answers "which of my topics does this filter take" for retained
messages and for cached routes. Wildcards in the first level never reach topics that begin with `$`
([MQTT-4.7.2-1]).
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from millrace.types import Subscription

SHARE_PREFIX = "$share/"

Value = TypeVar("Value")
Subscriber = TypeVar("Subscriber")
Group = TypeVar("Group")


def split_share(filter: str) -> tuple[str, str]:
    """`$share/NAME/FILTER` -> (NAME, FILTER); a plain filter -> ("", filter)."""
    if not filter.startswith(SHARE_PREFIX):
        return "", filter
    _, name, inner = filter.split("/", 2)
    return name, inner


class Node(Generic[Subscriber, Group]):
    """One filter: its own subscribers, its shared groups by name, and the longer filters below it."""

    __slots__ = ("children", "groups", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, Node[Subscriber, Group]] = {}
        self.subscribers: dict[Subscriber, Subscription] = {}
        self.groups: dict[str, Group] = {}


class SubscriptionTree(Generic[Subscriber, Group]):
    """Filters as paths; a path is removed with its last subscriber."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: Node[Subscriber, Group] = Node()

    def node(self, filter: str) -> Node[Subscriber, Group]:
        """The node of this filter, made where it is not there yet."""
        node = self._root
        for level in filter.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = Node()
            node = child
        return node

    def find(self, filter: str) -> Node[Subscriber, Group] | None:
        node: Node[Subscriber, Group] | None = self._root
        for level in filter.split("/"):
            if node is None:
                return None
            node = node.children.get(level)
        return node

    def prune(self, filter: str) -> None:
        """Drop the nodes of this filter that hold nothing any more."""
        path = [self._root]
        levels = filter.split("/")
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                break
            path.append(child)
        for depth in range(len(path) - 1, 0, -1):
            node = path[depth]
            if node.children or node.subscribers or node.groups:
                return
            del path[depth - 1].children[levels[depth - 1]]

    def match(self, topic: str) -> list[Node[Subscriber, Group]]:
        """All nodes whose filter takes this topic."""
        hits: list[Node[Subscriber, Group]] = []
        nodes = [self._root]
        wild = not topic.startswith("$")
        for level in topic.split("/"):
            below: list[Node[Subscriber, Group]] = []
            for node in nodes:
                children = node.children
                if wild:
                    if (child := children.get("#")) is not None:
                        hits.append(child)
                    if (child := children.get("+")) is not None:
                        below.append(child)
                if (child := children.get(level)) is not None:
                    below.append(child)
            wild = True
            nodes = below
            if not nodes:
                return hits
        for node in nodes:
            hits.append(node)
            # "sport/#" takes "sport" too (4.7.1.2).
            if (child := node.children.get("#")) is not None:
                hits.append(child)
        return hits


class _Leaf(Generic[Value]):
    __slots__ = ("children", "topic", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Leaf[Value]] = {}
        self.topic = ""
        self.value: Value | None = None


class TopicTree(Generic[Value]):
    """Values by topic, found again by filter. A value is never None.

    `count` is the number of values, `nodes` what they cost: a topic of many levels holds as many nodes.
    """

    __slots__ = ("_root", "count", "nodes")

    def __init__(self) -> None:
        self._root: _Leaf[Value] = _Leaf()
        self.count = 0
        self.nodes = 0

    def get(self, topic: str) -> Value | None:
        node: _Leaf[Value] | None = self._root
        for level in topic.split("/"):
            if node is None:
                return None
            node = node.children.get(level)
        return None if node is None else node.value

    def set(self, topic: str, value: Value) -> Value | None:
        """Put a value; the one it replaces is returned."""
        node = self._root
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Leaf()
                self.nodes += 1
            node = child
        old = node.value
        node.topic = topic
        node.value = value
        if old is None:
            self.count += 1
        return old

    def pop(self, topic: str) -> Value | None:
        path = [self._root]
        levels = topic.split("/")
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                return None
            path.append(child)
        old = path[-1].value
        if old is None:
            return None
        path[-1].value = None
        self.count -= 1
        for depth in range(len(levels), 0, -1):
            if path[depth].children or path[depth].value is not None:
                break
            del path[depth - 1].children[levels[depth - 1]]
            self.nodes -= 1
        return old

    def clear(self) -> None:
        self._root = _Leaf()
        self.count = self.nodes = 0

    def match(self, filter: str) -> Iterator[tuple[str, Value]]:
        """All topics that this filter takes. The tree must not change while the iterator is used."""
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
            elif level == "+":
                for name, child in node.children.items():
                    if depth or not name.startswith("$"):
                        stack.append((child, depth + 1))
            elif (found := node.children.get(level)) is not None:
                stack.append((found, depth + 1))

    @staticmethod
    def _all(node: _Leaf[Value], depth: int) -> Iterator[tuple[str, Value]]:
        # "sport/#" takes "sport" too (4.7.1.2).
        stack = [node] if depth else [c for name, c in node.children.items() if not name.startswith("$")]
        while stack:
            node = stack.pop()
            if node.value is not None:
                yield node.topic, node.value
            stack.extend(node.children.values())
