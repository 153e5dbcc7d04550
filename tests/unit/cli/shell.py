"""What a command answered to the shell."""

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]
