"""What a kind of files that messages are kept in can do."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from millrace.spark.routes import Routes
    from millrace.spark.staging import Section

CHUNK_ROWS = 10_000
"""Messages that are imported in one step. It is part of what names an import: steps of another size are not
the same steps."""


class Part(Protocol):
    """A file that is being written."""

    def add(self, data: bytes, shard: int, start: int, end: int) -> int:
        """The messages from offset `start` to `end` of these blocks; returns how many there are. Every block
        is proved by its checksums."""

    def close(self) -> None:
        """Everything is in the file."""


class Chunk(Protocol):
    """Messages out of a file, in order."""

    @property
    def rows(self) -> int: ...

    def sections(self, routes: "Routes") -> "Iterator[Section]":
        """To be staged."""

    def forms(self) -> list[dict[str, Any]]:
        """To be published one by one, as the HTTP interface takes them."""


class Format(Protocol):
    suffix: str

    def begin(self, path: Path) -> Part: ...

    def count(self, path: Path) -> int:
        """How many messages a file holds."""

    def join(self, parts: Sequence[Path], target: Path) -> None:
        """One file out of several, in this order."""

    def chunks(self, path: Path) -> Iterator[Chunk]:
        """All messages, so many at a time."""
