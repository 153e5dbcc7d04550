"""`millrace pub`: publish messages."""

import itertools
import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.common import AsJson, example, print_done, print_error, single
from millrace.cli.connecting import ConnectionOptions, Qos, Url, connected
from millrace.cli.option_groups import takes

if TYPE_CHECKING:
    from concurrent.futures import Future

    from millrace.types import Reason

app = single()

# Publishes on the way at once.
_WINDOW = 1_000


@app.command(
    epilog=example(
        "millrace pub sensors/room1 21.5",
        "millrace pub sensors/room1 21.5 -q 2 --retain --url mqtt://ann@broker.example:1883",
        "tail -f readings.txt | millrace pub sensors/room1 - --lines",
        "millrace pub sensors/room1 21.5 --every 100ms --keep-last 5 --backup mqtt://127.0.0.1:18840",
    )
)
@takes(ConnectionOptions)
def pub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to publish.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE|-", help="The message; - reads standard input.")],
    given: ConnectionOptions,
    url: Url = None,
    qos: Qos = 1,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Keep it for later subscribers.")] = False,
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat", metavar="N", min=1, help="Publish so many times. [default: 1; with --every for ever]"
        ),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="With -: each line is a message.")] = False,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Publish on an interval such as 100ms.")
    ] = None,
    keep_last: Annotated[
        int, typer.Option("--keep-last", metavar="N", min=1, help="With --every: messages to send again.")
    ] = 5,
    backup: Annotated[
        str | None, typer.Option("--backup", metavar="URL", help="With --every: the broker to switch to.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Publish a message and wait until the broker has it."""
    from millrace.errors import ConfigError

    if lines and message != "-":
        raise ConfigError("--lines reads standard input: put - in place of the message")
    if lines and repeat is not None:
        raise ConfigError("--lines and --repeat do not go together")
    if every is None and backup is not None:
        raise ConfigError("--backup is for a publisher with --every, which keeps messages to send again")
    if every is not None:
        if qos != 1 or retain or not given.is_mqtt_5:
            raise ConfigError("--every publishes with QoS 1 and MQTT 5, not retained")
        _publish_on_interval(topic, message, repeat, lines, url, backup, every, keep_last, json, **given.tls)
        return
    sent = _Sent()
    try:
        with connected(url, given, reconnect=False) as client:
            for payload in _payloads(message, repeat or 1, lines):
                sent.add(client.submit(topic, payload, qos=qos, retain=retain), len(payload))
            sent.wait()
    except KeyboardInterrupt:
        print_error(f"interrupted; {sent.published} of {sent.count} messages were published")
        raise typer.Exit(1) from None
    count = sent.count
    noun = "message" if count == 1 else "messages"
    outcome = "acknowledged" if qos else "not acknowledged at QoS 0"
    print_done(
        f"published {count} {noun} to {topic}, {outcome}",
        as_json=json,
        topic=topic,
        messages=count,
        bytes=sent.size_bytes,
        qos=qos,
        retain=retain,
    )


def _publish_on_interval(
    topic: str,
    message: str,
    repeat: int | None,
    lines: bool,
    urls: list[str] | None,
    backup: str | None,
    every: str,
    keep_last: int,
    json: bool,
    **tls: Any,
) -> None:
    from millrace.cli import failover
    from millrace.cli.contexts import mqtt_urls

    brokers = [*mqtt_urls(urls), *(mqtt_urls(backup) if backup else ())]
    payloads = _payloads(message, repeat, lines)
    try:
        done = failover.publish(topic, payloads, urls=brokers, every=every, keep_last=keep_last, **tls)
    except KeyboardInterrupt:
        print_error("interrupted")
        raise typer.Exit(1) from None
    print_done(
        f"published {done['acknowledged']} messages to {topic}, acknowledged; {done['given_up']} given up, "
        f"{done['switches']} switches, {done['refused']} acknowledgements refused",
        as_json=json,
        topic=topic,
        **done,
    )
    if done["given_up"]:
        raise typer.Exit(1)


class _Sent:
    """What is on its way, and what came of it; the first failure is raised."""

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self._pending: deque[Future[Reason]] = deque()

    def add(self, publish: "Future[Reason]", size_bytes: int) -> None:
        self.count += 1
        self.size_bytes += size_bytes
        self._pending.append(publish)
        while self._pending and (len(self._pending) >= _WINDOW or self._pending[0].done()):
            self._pending.popleft().result()

    def wait(self) -> None:
        while self._pending:
            self._pending.popleft().result()

    @property
    def published(self) -> int:
        unknown = [one for one in self._pending if not one.done() or one.cancelled() or one.exception()]
        return self.count - len(unknown)


def _payloads(message: str, repeat: int | None, lines: bool) -> Iterator[bytes]:
    from millrace.limits import PACKET_BYTES_TOP

    if lines:
        while line := sys.stdin.buffer.readline(PACKET_BYTES_TOP):
            yield line.removesuffix(b"\n").removesuffix(b"\r")
        return
    if message == "-":
        payload = sys.stdin.buffer.read(PACKET_BYTES_TOP)
    else:
        # Arguments that are not UTF-8 arrive with surrogates; they leave as the bytes they were.
        payload = message.encode(errors="surrogateescape")
    for _ in itertools.repeat(None) if repeat is None else range(repeat):
        yield payload
