"""Replicas that do not have the same: a node that began from a snapshot hides nothing that another has."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from millrace.client.http import NobodyAnswers
from millrace.spark.offsets import Extent
from millrace.spark.reading import PATIENCE_S, ClusterReader, Expired

NEXT = 1_000
SHARD = 16


class Replica(BaseHTTPRequestHandler):
    """Answers as a node does that has the offsets [first, next) of one shard, each from its second."""

    first, next = 0, NEXT

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/blocks"):
            self._blocks(query["from"])
        elif parts.path.endswith("/offset"):
            offset = min(max(query["time_us"], self.first), self.next)
            self._answer(200, {"offset": offset, "first_offset": self.first, "next_offset": self.next})
        else:
            row = {"shard": SHARD, "first_offset": self.first, "next_offset": self.next, "bytes": 1}
            self._answer(200, {"replication": "quorum", "shard_list": [row]})

    def _blocks(self, offset: int) -> None:
        if offset < self.first:
            self._answer(410, {"detail": "gone", "earliest_offset": self.first})
        else:
            self._answer(200, {}, min(offset + 10, max(self.next, offset)))

    def _answer(self, status: int, fields: object, after: int = 0) -> None:
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Millrace-Next-Offset", str(after))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def replicas(
    *held: tuple[int, int], more: tuple[str, ...] = (), patience_s: float = PATIENCE_S
) -> Iterator[ClusterReader]:
    with ExitStack() as stack:
        urls = []
        for first, next in held:
            server = ThreadingHTTPServer(
                ("127.0.0.1", 0), type("One", (Replica,), {"first": first, "next": next})
            )
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            urls.append(f"http://127.0.0.1:{server.server_port}")
        yield stack.enter_context(ClusterReader((*urls, *more), patience_s=patience_s))


@pytest.mark.parametrize("held", ([(900, NEXT), (0, NEXT)], [(0, NEXT), (900, NEXT)]))
def test_what_one_node_does_not_have_is_had_from_another(held: list[tuple[int, int]]) -> None:
    with replicas(*held) as reader:
        extent = reader.extents("s")[SHARD]
        assert (extent.first, extent.next) == (0, NEXT)
        assert reader.blocks("s", SHARD, 500, 510)[1] == 510
        assert reader.offset_at("s", SHARD, extent, 500) == 500
        assert reader.offset_at("s", SHARD, extent, 0) == 0


def test_what_no_node_has_is_gone_and_the_first_that_any_has_is_named() -> None:
    with replicas((900, NEXT), (300, NEXT)) as reader, pytest.raises(Expired) as caught:
        reader.blocks("s", SHARD, 100, 200)
    assert caught.value.earliest == 300


def test_what_went_since_the_extent_was_asked_for_is_not_waited_for() -> None:
    with replicas((900, NEXT), (300, NEXT)) as reader:
        assert reader.offset_at("s", SHARD, Extent(first=0, next=NEXT), 100) == 300


def test_a_node_that_has_nothing_yet_does_not_say_where_the_shard_begins() -> None:
    with replicas((0, 0), (300, NEXT)) as reader:
        assert reader.extents("s")[SHARD] == Extent(first=300, next=NEXT, size_bytes=1)


def test_a_node_that_is_away_may_have_it_for_a_while() -> None:
    with replicas((900, NEXT), more=("http://127.0.0.1:1",), patience_s=0.1) as reader:
        with pytest.raises(Expired):
            reader.blocks("s", SHARD, 100, 200)
        with pytest.raises(NobodyAnswers):
            reader.blocks("s", SHARD, NEXT, NEXT + 1)
