"""The filters that one other node wants, kept so that a hundred thousand of them cost little.

A filter is one string in a set: no tree, no object per level. A topic is looked up by writing, for each shape
in use, the one filter of that shape that would take it, and asking the set (`kernels/filters.py`). That costs
one lookup per shape and node; it happens once per route, never per message.

A filter `$share/NAME/FILTER` stands for a group that has a member at that node.
"""

from collections.abc import Iterable

from millrace.kernels import shape_of

_SHARE = "$share/"


class FilterTable:
    """Which filters, and which groups under which filter."""

    __slots__ = ("_count", "filters", "groups", "shapes")

    def __init__(self, filters: Iterable[str] = ()) -> None:
        self.filters: set[str] = set()
        # Filter -> the groups that read it, by their whole key.
        self.groups: dict[str, set[str]] = {}
        # How many filters and groups have a shape.
        self.shapes: dict[str, int] = {}
        self._count = 0
        for filter in filters:
            self.add(filter)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, filter: str) -> bool:
        return filter in self.groups.get(_inner(filter), ()) if _is_group(filter) else filter in self.filters

    def add(self, filter: str) -> bool:
        """False where it is there already."""
        if filter in self:
            return False
        self._count += 1
        inner = _inner(filter)
        if _is_group(filter):
            self.groups.setdefault(inner, set()).add(filter)
        else:
            self.filters.add(filter)
        shape = shape_of(inner)
        if shape is not None:
            self.shapes[shape] = self.shapes.get(shape, 0) + 1
        return True

    def discard(self, filter: str) -> bool:
        """False where it is not there."""
        if filter not in self:
            return False
        self._count -= 1
        inner = _inner(filter)
        if _is_group(filter):
            keys = self.groups[inner]
            keys.discard(filter)
            if not keys:
                del self.groups[inner]
        else:
            self.filters.discard(filter)
        shape = shape_of(inner)
        if shape is not None:
            self.shapes[shape] -= 1
            if not self.shapes[shape]:
                del self.shapes[shape]
        return True

    def all(self) -> set[str]:
        return self.filters.union(*self.groups.values())


def _is_group(filter: str) -> bool:
    return filter.startswith(_SHARE)


def _inner(filter: str) -> str:
    return filter.split("/", 2)[2] if filter.startswith(_SHARE) else filter
