"""What nodes say to each other about interest and retained messages: a closed union of plain values.

A node that wants to know another's filters gives it a number (`Hello`); everything it then hears about them
carries that number back, so that what a connection of earlier days still brings is told from what counts.
Retained values need no such number: their stamps say which is newer, however late they come.
"""

from typing import TypeAlias

from millrace.replication.contract import PeerBody

Stamp: TypeAlias = tuple[int, str]
"""Hybrid logical time (milliseconds of the wall clock and a counter of 16 bits), then the node that wrote:
two writes are never equal, and all nodes order them alike [rule 17]."""


class Hello(PeerBody, frozen=True, kw_only=True):
    """Tell me all your filters, and from now on every change, under this number."""

    session: int
    time: int
    """The sender's hybrid logical clock: what is written from now on at either end is later than what either
    end has seen, a deletion included, of which nothing else may be told."""


class Filters(PeerBody, frozen=True, kw_only=True):
    """One part of all filters as they were at `version`; with the last part they replace what was known."""

    session: int
    version: int
    part: int
    parts: int
    filters: tuple[str, ...]


class Change(PeerBody, frozen=True, kw_only=True):
    """What changed from the version before this one."""

    session: int
    version: int
    added: tuple[str, ...]
    withdrawn: tuple[str, ...]


class Known(PeerBody, frozen=True, kw_only=True):
    """The filters up to this version are known here: what is published here from now on goes by them."""

    session: int
    version: int


class Digest(PeerBody, frozen=True, kw_only=True):
    """Said once in a while, so that whoever missed the last word notices."""

    session: int
    version: int
    retained: int
    """All buckets of retained stamps together."""


class Summary(PeerBody, frozen=True, kw_only=True):
    """A checksum over the stamps in each bucket of topics."""

    buckets: tuple[int, ...]


class Stamps(PeerBody, frozen=True, kw_only=True):
    """Every topic of a bucket after `after` and up to `upto` (None: to its end), with its stamp."""

    bucket: int
    after: str
    upto: str | None
    entries: tuple[tuple[str, int, str], ...]


class Want(PeerBody, frozen=True, kw_only=True):
    """Send me what you have for these topics."""

    topics: tuple[str, ...]


class Value(PeerBody, frozen=True, kw_only=True):
    """A retained message, or with None its deletion. `is_live`: just published, so clients get it too."""

    topic: str
    time: int
    node: str
    value: bytes | None
    is_live: bool = False
