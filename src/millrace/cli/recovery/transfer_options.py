"""What the commands that copy messages between a cluster and files share."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millrace.cli.shared.contexts import PASSWORD_VARIABLE, http_urls
from millrace.cli.shared.tables import printable

if TYPE_CHECKING:
    from millrace.client.http import Http
    from millrace.spark.writing import ClusterWriter

# For how long the nodes are asked again when none has an answer, as while they elect a leader.
_PATIENCE_S = 30.0


def reader(url: str) -> "Http":
    from millrace.client.connection.tls import files_of_environment
    from millrace.client.http import Http, Timeouts

    return Http(
        http_urls(url),
        password=os.environ.get(PASSWORD_VARIABLE),
        timeouts=Timeouts(answer_s=30.0, patience_s=_PATIENCE_S),
        **files_of_environment(),
    )


def writer(url: str) -> "ClusterWriter":
    from millrace.client.connection.tls import files_of_environment
    from millrace.spark.writing import ClusterWriter

    return ClusterWriter(
        http_urls(url), os.environ.get(PASSWORD_VARIABLE), _PATIENCE_S, **files_of_environment()
    )


@contextmanager
def files() -> Iterator[None]:
    """What goes wrong with a file is said in a sentence, as what goes wrong with a node is."""
    from millrace.errors import LocalError

    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise LocalError(f"{where}{error.strerror or error}; the same command goes on from there") from error


class Progress:
    """Lines about how far it has come, to standard error: one that is written over on a terminal."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if not self._is_quiet:
            sys.stderr.write(f"\r\x1b[K{printable(text)}" if self._is_terminal else f"{printable(text)}\n")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_terminal and not self._is_quiet:
            sys.stderr.write("\r\x1b[K")
