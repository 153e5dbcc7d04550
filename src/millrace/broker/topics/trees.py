"""Two trees over topic levels: subscriptions found by topic, and values found by filter.

`SubscriptionTree` answers "who wants this topic" in time that grows with the levels of the topic and not
with the number of filters. `TopicTree` answers "which of my topics does this filter take" for retained
messages. Wildcards in the first level never reach topics that begin with `$`
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


def has_wildcard(filter: str) -> bool:
    """Whether a valid filter takes other topics than the one it spells."""
    return "+" in filter or "#" in filter


class Node(Generic[Subscriber, Group]):
    """One filter: its own subscribers, its shared groups by name, and the longer filters below it.

    What a filter does not have costs it nothing: of a hundred thousand filters nearly all have one
    subscriber, no group and nothing below them.
    """

    __slots__ = ("children", "groups", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, Node[Subscriber, Group]] | None = None
        self.subscribers: dict[Subscriber, Subscription] = {}
        self.groups: dict[str, Group] | None = None


class SubscriptionTree(Generic[Subscriber, Group]):
    """Filters without wildcards by their text, the others as paths; a path is removed with its last
    subscriber. Two roots, because most filters of a fleet are exact, and a topic finds its own at once."""

    __slots__ = ("_exact", "_root")

    def __init__(self) -> None:
        self._exact: dict[str, Node[Subscriber, Group]] = {}
        self._root: Node[Subscriber, Group] = Node()

    def __bool__(self) -> bool:
        return bool(self._exact or self._root.children)

    def node(self, filter: str) -> Node[Subscriber, Group]:
        """The node of this filter, made where it is not there yet."""
        if not has_wildcard(filter):
            found = self._exact.get(filter)
            if found is None:
                found = self._exact[filter] = Node()
            return found
        node = self._root
        for level in filter.split("/"):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = Node()
            node = child
        return node

    def find(self, filter: str) -> Node[Subscriber, Group] | None:
        if not has_wildcard(filter):
            return self._exact.get(filter)
        node: Node[Subscriber, Group] | None = self._root
        for level in filter.split("/"):
            if node is None or node.children is None:
                return None
            node = node.children.get(level)
        return node

    def prune(self, filter: str) -> None:
        """Drop the nodes of this filter that hold nothing any more."""
        if not has_wildcard(filter):
            found = self._exact.get(filter)
            if found is not None and not found.subscribers and not found.groups:
                del self._exact[filter]
            return
        path = [self._root]
        levels = filter.split("/")
        for level in levels:
            child = (path[-1].children or {}).get(level)
            if child is None:
                break
            path.append(child)
        for depth in range(len(path) - 1, 0, -1):
            node = path[depth]
            if node.children or node.subscribers or node.groups:
                return
            above = path[depth - 1].children
            assert above is not None
            del above[levels[depth - 1]]

    def match(self, topic: str) -> list[Node[Subscriber, Group]]:
        """All nodes whose filter takes this topic."""
        exact = self._exact.get(topic)
        hits = [] if exact is None else [exact]
        if not self._root.children:
            return hits
        nodes = [self._root]
        wild = not topic.startswith("$")
        for level in topic.split("/"):
            below: list[Node[Subscriber, Group]] = []
            for node in nodes:
                children = node.children
                if not children:
                    continue
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
            if node.children and (child := node.children.get("#")) is not None:
                hits.append(child)
        return hits


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
