"""Writing to a cluster in two steps: any node takes a request, and a node that is down is passed over.

Every request here may be sent again: what is staged is known by its key, and a batch is decided once. So a
request whose answer did not come goes to the next node, and round again for a while.
"""

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from millrace.client.http import Http, Timeouts, stream_path
from millrace.client.http_node import (
    JSON_HEADERS,
    Answer,
    HttpNode,
    NoAnswer,
    RequestBody,
    TimeLimit,
    json_body,
)
from millrace.errors import LocalError
from millrace.spark.options import RUN_VARIABLE

PATIENCE_S = 60.0
_ANSWER_TIMEOUT_S = 45.0
# A request to stage is answered once a majority has it on disk, which takes longer than a read.
_SWITCH_S = 5.0
_PACKETS_HEADERS = {"Content-Type": "application/vnd.millrace.packets"}
# Answers that another node, or the same one later, may better.
_AGAIN = frozenset((404, 409, 429, 500, 502, 503, 504, 507))


class Refused(LocalError):
    """A node refused a request, and no other node would accept it."""


class ClusterWriter:
    """Stages blocks and decides batches; every call is bounded in time."""

    def __init__(
        self,
        urls: Sequence[str],
        password: str | None = None,
        patience_s: float = PATIENCE_S,
        *,
        connect_s: float | None = None,
        request_s: float | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
    ) -> None:
        standard = Timeouts(switch_s=_SWITCH_S, answer_s=_ANSWER_TIMEOUT_S, patience_s=patience_s)
        timeouts = standard.changed(connect_s, request_s)
        self.http = Http(
            urls,
            password=password,
            timeouts=timeouts,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )

    def __enter__(self) -> "ClusterWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def streams(self) -> list[dict[str, Any]]:
        """What the node that answers first knows. It is the first to be asked from then on, so a node that
        accepts connections and never answers costs nothing."""

        def ask(node: HttpNode, limit: TimeLimit) -> list[dict[str, Any]]:
            return list(_taken(node.get(limit, "/v1/streams")).json()["streams"])

        return self.http.every(ask, what="the streams", suffices=bool)[0]

    def stage(self, stream: str, writer: str, batch: int, attempt: str, sections: RequestBody) -> None:
        """Returns once the sections are on the disks of a majority."""
        query = urlencode({"writer": writer, "batch": batch, "attempt": attempt})
        self._ask("POST", f"{stream_path(stream)}/stage?{query}", sections, _PACKETS_HEADERS)

    def commit(self, writer: str, batch: int, attempts: dict[str, dict[int, int]]) -> dict[str, Any]:
        """Decide a batch; the answer says whether it was decided before, and whether it is visible. The
        driver of a pipeline of the cluster says which run of it this is: that of an older run is refused."""
        run = os.environ.get(RUN_VARIABLE)
        body = json_body({"batch": batch, "attempts": attempts, **({"run": run} if run else {})})
        answer: dict[str, Any] = self._ask("POST", f"/v1/writers/{quote(writer, safe='')}/commit", body)
        return answer

    def abort(self, writer: str, batch: int, attempts: list[str]) -> None:
        body = json_body({"batch": batch, "attempts": attempts})
        self._ask("POST", f"/v1/writers/{quote(writer, safe='')}/abort", body)

    def _ask(
        self,
        method: str,
        path: str,
        body: RequestBody | None = None,
        headers: Mapping[str, str] = JSON_HEADERS,
    ) -> Any:
        def ask(node: HttpNode, limit: TimeLimit) -> Any:
            return _taken(node.request(limit, method, path, body, headers=headers)).json()

        return self.http.first(ask, what=f"{method} {path.partition('?')[0]}")


def _taken(answer: Answer) -> Answer:
    """The answer if it is a good one; Refused for one that no other node would better."""
    if answer.status < 300:
        return answer
    detail = str(answer.problem())
    raise NoAnswer(detail) if answer.status in _AGAIN else Refused(detail)
