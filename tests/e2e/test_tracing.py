"""Traces of publishes at real nodes, as a collector gets them by OTLP over HTTP."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.collector import Collector, Seen
from e2e.conftest import StartBroker
from e2e.http_calls import call
from e2e.processes import complaint, millrace, tool
from e2e.test_cluster import TIMEOUT_S, whole
from millrace.client import Client
from millrace.local_cluster import LocalCluster
from millrace.types import Properties
from waiting import until, until_async

otel = pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="no OpenTelemetry here: pip install 'millrace[otel]'"
)

SERVER, INTERNAL, PRODUCER = 2, 1, 4
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def only(spans: list[Seen]) -> Seen:
    assert len(spans) == 1, spans
    return spans[0]


def test_a_publish_is_followed_from_node_to_node(tmp_path: Path, collector: Collector) -> None:
    """The publisher's span is the parent of what the node does that takes the message in; a subscriber at
    another node gets the message with the user property as it was sent, and that node tells of it too."""

    async def body() -> None:
        options = ("--set", f"tracing.endpoint={collector.url}", "--set", "tracing.service=mill")
        async with LocalCluster(3, tmp_path, options=options) as cluster:
            await whole(cluster)
            first, _, third = cluster.nodes
            answer = await asyncio.to_thread(
                call, first.http_port, "POST", "/v1/streams", {"name": "s", "filters": ["s/#"]}
            )
            assert answer.status == 201, answer
            asked = Properties(user=(("unit", "C"), ("traceparent", TRACEPARENT)))
            async with (
                Client(first.url, client_id="meter") as publisher,
                Client(third.url, client_id="reader") as subscriber,
                subscriber.subscribe("s/#", qos=1) as messages,
            ):
                await publisher.publish("s/quiet", b"no trace", qos=1)
                await publisher.publish("s/a", b"21.5", qos=1, properties=asked)
                async for message in messages:
                    if message.topic == "s/a":
                        assert message.properties.user == asked.user
                        break
            await until_async(lambda: len(collector.spans) >= 3, "three spans", TIMEOUT_S)

    asyncio.run(body())
    receive, commit = only(collector.named("receive s")), only(collector.named("commit s"))
    deliver = only(collector.named("deliver s"))
    assert len(collector.spans) == 3
    assert {span.trace for span in collector.spans} == {TRACE}
    assert (receive.parent, receive.kind) == (SPAN, SERVER)
    assert (commit.parent, commit.kind) == (receive.span, INTERNAL)
    assert (deliver.parent, deliver.kind) == (receive.span, PRODUCER)
    assert (receive.service, receive.instance, deliver.instance) == ("mill", "n1", "n3")
    assert receive.start_ns == commit.start_ns < commit.end_ns <= receive.end_ns
    assert receive.attributes["messaging.destination.name"] == "s/a"
    assert receive.attributes["messaging.client.id"] == "meter"
    assert receive.attributes["millrace.replication"] == "quorum"
    assert deliver.attributes["millrace.receivers"] == 1
    assert deliver.attributes["millrace.offset"] == receive.attributes["millrace.offset"]


def test_the_header_of_an_http_request_goes_on_as_a_user_property(
    start_broker: StartBroker, collector: Collector
) -> None:
    broker = start_broker("--set", f"tracing.endpoint={collector.url}")
    port = broker.ports["http"]
    sent = call(port, "POST", "/v1/publish", {"topic": "s/a", "payload": "1"}, traceparent=TRACEPARENT)
    assert sent.status == 200, sent
    batch = {"messages": [{"topic": "s/a", "payload": "2"}]}
    assert call(port, "POST", "/v1/publish/batch", batch, traceparent=TRACEPARENT).status == 200
    call(port, "PUT", "/topic", {"topic": "s/q"})
    call(port, "PUT", "/message", {"topic": "s/q", "message": "3"}, traceparent=TRACEPARENT)
    # What is no traceparent is passed over, and one that the message has goes before.
    own = [["traceparent", f"00-{TRACE}-{SPAN}-00"]]
    form = {"topic": "s/a", "payload": "4", "user_properties": own}
    assert call(port, "POST", "/v1/publish", form, traceparent=TRACEPARENT).status == 200
    assert call(port, "POST", "/v1/publish", {"topic": "s/a"}, traceparent="nonsense").status == 200
    until(lambda: len(collector.named("receive default")) >= 3, "three traces")
    found = [span.attributes["messaging.destination.name"] for span in collector.named("receive default")]
    assert found == ["s/a", "s/a", "s/q"]
    shard = sent.json["shard"]
    rows = call(port, "GET", f"/v1/streams/default/shards/{shard}/messages").json["messages"]
    by_payload = {row["payload"]: row.get("user_properties") for row in rows}
    assert by_payload["1"] == by_payload["2"] == [["traceparent", TRACEPARENT]]
    assert by_payload["4"] == own and by_payload[""] is None


@pytest.mark.parametrize("replication", ["quorum", "leaderless"])
def test_one_message_of_so_many_is_traced_without_being_asked(
    start_broker: StartBroker, collector: Collector, replication: str
) -> None:
    """By any client, here one that knows no properties; each has a trace of its own that begins here."""
    broker = start_broker("--set", f"tracing.endpoint={collector.url}", "--set", "tracing.one_in=10")
    form = {"name": "s", "filters": ["s/#"], "replication": replication, "shards": 1}
    assert call(broker.ports["http"], "POST", "/v1/streams", form).status == 201
    command = [tool("mosquitto_pub"), "-p", str(broker.port), "-V", "mqttv311", "-q", "1", "-t", "s/a", "-l"]
    subprocess.run(command, input="\n".join(map(str, range(25))), text=True, check=True, timeout=30)
    until(lambda: len(collector.named("receive s")) >= 3, "three traces")
    received = collector.named("receive s")
    assert sorted(span.attributes["millrace.offset"] for span in received) == [0, 10, 20]
    assert all(not span.parent for span in received) and len({span.trace for span in received}) == 3
    assert {span.parent for span in collector.named("commit s")} == {span.span for span in received}
    assert {span.attributes["millrace.replication"] for span in received} == {replication}
    # Nobody subscribed.
    assert collector.named("deliver s") == []


def test_a_node_traces_no_more_in_a_second_than_it_may(
    start_broker: StartBroker, collector: Collector
) -> None:
    options = {"endpoint": collector.url, "one_in": "1", "per_second_max": "2"}
    broker = start_broker(*(word for key in options for word in ("--set", f"tracing.{key}={options[key]}")))
    messages = [{"topic": "s/a", "payload": str(number)} for number in range(200)]
    assert call(broker.ports["http"], "POST", "/v1/publish/batch", {"messages": messages}).status == 200
    until(lambda: collector.named("receive default"), "a trace")
    broker.stop()
    # All came within a second or two.
    assert len(collector.named("receive default")) <= 6


def test_a_collector_that_refuses_holds_nobody_up(start_broker: StartBroker, collector: Collector) -> None:
    """Messages go on, the log says so once, and the metrics count what was lost."""
    collector.is_refusing = True
    broker = start_broker("--set", f"tracing.endpoint={collector.url}", "--set", "tracing.one_in=1")
    port = broker.ports["http"]

    def metric(name: str) -> float:
        lines = call(port, "GET", "/metrics").body.decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    for number in range(3):
        before = collector.requests
        answer = call(port, "POST", "/v1/publish", {"topic": "s/a", "payload": str(number)})
        assert answer.status == 200 and answer.json["offset"] == number
        until(lambda before=before: collector.requests > before, "another request")  # type: ignore[misc]
    until(lambda: metric('millrace_trace_spans_dropped_total{reason="collector"}') == 6, "6 dropped")
    assert broker.log.count("does not take traces") == 1
    collector.is_refusing = False
    call(port, "POST", "/v1/publish", {"topic": "s/a", "payload": "again"})
    until(lambda: metric("millrace_trace_spans_sent_total") == 2, "two sent")
    assert "takes traces again" in broker.log


def test_a_wrong_address_is_refused_at_start(tmp_path: Path) -> None:
    done = millrace("start", "--data", str(tmp_path), "--set", "tracing.endpoint=collector:4317")
    assert "tracing.endpoint" in complaint(done) and "http://" in complaint(done)


def test_without_opentelemetry_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    """A package of that name that cannot be imported stands for one that is not there."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError\n")
    script = (
        "import sys\n"
        f"sys.path.insert(0, {json.dumps(str(tmp_path))})\n"
        "from millrace.cli.main import run\n"
        "sys.argv = ['millrace', 'start', '--data', 'd', '--mqtt', '127.0.0.1:0', '--http', '127.0.0.1:0',\n"
        "            '--set', 'tracing.endpoint=http://127.0.0.1:1']\n"
        "sys.exit(run())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert "pip install 'millrace[otel]'" in complaint(done)
