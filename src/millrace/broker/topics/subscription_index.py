"""Who wants a topic, found in time that grows with the shapes of the filters in use, not with their number.

A filter with one subscriber, as nearly all of a fleet have, is one entry of a table by its text: no object of
its own, no path of nodes. What it leads to is shared by all filters of that subscriber with the same options,
so that topics of different filters have the same receivers to be told apart by identity. A topic is looked up
by its own text and by the one filter of each shape in use that would take it (`kernels/filters.py`).

Whoever makes filters of ever more shapes must not make every topic dear: beyond a bound they are kept as
paths of levels, where a topic meets only those that begin as it does.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

from millrace.kernels import find_filters, shape_of
from millrace.types import SubscriptionOptions

# Shapes whose filters are in the table.
_SHAPES_MAX = 32

LEVEL_BYTES = 64

Subscriber = TypeVar("Subscriber")
Group = TypeVar("Group")


def weight_of(filter: str) -> int:
    """About what a filter costs in memory; see `limits.SESSION_FILTER_BYTES_MAX`."""
    return len(filter) + LEVEL_BYTES * (filter.count("/") + 1)


class Holder(Generic[Subscriber]):
    """A subscriber with the options of its subscription."""

    __slots__ = ("options", "subscriber")

    def __init__(self, subscriber: Subscriber, options: SubscriptionOptions) -> None:
        self.subscriber = subscriber
        self.options = options


class Node(Generic[Subscriber, Group]):
    """A filter with several subscribers or with shared groups, or a level of a path."""

    __slots__ = ("children", "groups", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, Node[Subscriber, Group]] | None = None
        self.subscribers: dict[Subscriber, SubscriptionOptions] = {}
        self.groups: dict[str, Group] | None = None


class SubscriptionIndex(Generic[Subscriber, Group]):
    """What holds nothing any more is removed with its last subscriber."""

    __slots__ = ("_filters", "_root", "_shape_counts", "_shapes")

    def __init__(self) -> None:
        self._filters: dict[str, Holder[Subscriber] | Node[Subscriber, Group]] = {}
        # How many filters of the table have a shape, and the shapes.
        self._shape_counts: dict[str, int] = {}
        self._shapes: tuple[str, ...] = ()
        self._root: Node[Subscriber, Group] = Node()

    def __bool__(self) -> bool:
        return bool(self._filters or self._root.children)

    def add(self, filter: str, holder: Holder[Subscriber]) -> bool:
        """Add or replace a subscription; False where this subscriber had one to the filter."""
        found = self._filters.get(filter)
        if found is None:
            if not self._root.children:
                # Nearly always: one more of a shape that is in use, or one without wildcards.
                shape = shape_of(filter)
                count = 0 if shape is None else self._shape_counts.get(shape, 0)
                if shape is None or count:
                    if shape is not None:
                        self._shape_counts[shape] = count + 1
                    self._filters[filter] = holder
                    return True
            if self._belongs_in_table(filter):
                self._filters[filter] = holder
                return True
        elif isinstance(found, Holder) and found.subscriber is holder.subscriber:
            self._filters[filter] = holder
            return False
        node = self.node(filter)
        is_new = holder.subscriber not in node.subscribers
        node.subscribers[holder.subscriber] = holder.options
        return is_new

    def remove(self, filters: Iterable[str], subscriber: Subscriber) -> None:
        """Remove subscriptions that are there."""
        table = self._filters
        for filter in filters:
            found = table.get(filter)
            if isinstance(found, Holder):
                assert found.subscriber is subscriber
                del table[filter]
                shape = shape_of(filter)
                if shape is not None:
                    count = self._shape_counts[shape]
                    if count > 1:
                        self._shape_counts[shape] = count - 1
                    else:
                        self._leave_shape(shape)
                continue
            node = found or self._find_path(filter)
            assert node is not None
            del node.subscribers[subscriber]
            self.prune(filter)

    def node(self, filter: str) -> Node[Subscriber, Group]:
        """The node of this filter, made where it is not there yet."""
        found = self._filters.get(filter)
        if isinstance(found, Node):
            return found
        if found is None and not self._belongs_in_table(filter):
            return self._path(filter)
        node: Node[Subscriber, Group] = Node()
        if found is not None:
            node.subscribers[found.subscriber] = found.options
        self._filters[filter] = node
        return node

    def find(self, filter: str) -> Holder[Subscriber] | Node[Subscriber, Group] | None:
        return self._filters.get(filter) or self._find_path(filter)

    def prune(self, filter: str) -> None:
        """Drop the node of this filter where it holds nothing any more."""
        found = self._filters.get(filter)
        if found is None:
            self._prune_path(filter)
        elif isinstance(found, Node) and not found.subscribers and not found.groups:
            del self._filters[filter]
            shape = shape_of(filter)
            if shape is not None:
                self._leave_shape(shape)

    def match(self, topic: str) -> list[Holder[Subscriber] | Node[Subscriber, Group]]:
        """What all filters that take this topic lead to."""
        hits = find_filters(topic, self._shapes, self._filters)
        if self._root.children:
            hits += self._match_paths(topic)
        return hits

    # ------------------------------------------------------------------------------------ the table

    def _belongs_in_table(self, filter: str) -> bool:
        """Of a filter that is not there: if so, one more of its shape is there from now on."""
        if self._root.children and self._find_path(filter) is not None:
            return False
        shape = shape_of(filter)
        if shape is None:
            return True
        count = self._shape_counts.get(shape, 0)
        if not count:
            if len(self._shapes) >= _SHAPES_MAX:
                return False
            self._shapes = (*self._shapes, shape)
        self._shape_counts[shape] = count + 1
        return True

    def _leave_shape(self, shape: str) -> None:
        count = self._shape_counts[shape] = self._shape_counts[shape] - 1
        if not count:
            del self._shape_counts[shape]
            self._shapes = tuple(self._shape_counts)

    # ------------------------------------------------------------------------------------ the paths

    def _path(self, filter: str) -> Node[Subscriber, Group]:
        node = self._root
        for level in filter.split("/"):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = Node()
            node = child
        return node

    def _find_path(self, filter: str) -> Node[Subscriber, Group] | None:
        """The node at the end of a path; it may be there for the sake of a longer one alone."""
        node: Node[Subscriber, Group] | None = self._root
        for level in filter.split("/"):
            if node is None or node.children is None:
                return None
            node = node.children.get(level)
        return node

    def _prune_path(self, filter: str) -> None:
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

    def _match_paths(self, topic: str) -> list[Node[Subscriber, Group]]:
        hits: list[Node[Subscriber, Group]] = []
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
