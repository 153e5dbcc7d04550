"""`millrace pub`: publish messages."""

import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from millrace.cli.messages.connecting import ConnectionOptions, Qos, Url, connected
from millrace.cli.shared.common import AsJson, duration_s, example, print_done, print_error, single
from millrace.cli.shared.option_groups import takes

if TYPE_CHECKING:
    from concurrent.futures import Future

    from millrace.reasons import Reason

app = single()

# Publishes on the way at once.
_WINDOW = 1_000
_EVERY_DEFAULT = "1s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatOptions:
    """What is published, how often and for how long."""

    file: Annotated[
        Path | None,
        typer.Option(
            "-f", "--file", metavar="FILE", help="The message is in this file; - is standard input."
        ),
    ] = None
    lines: Annotated[bool, typer.Option("--lines", help="With - or --file: each line is a message.")] = False
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat", metavar="N", min=1, help="How often to publish. [default: 1; with --every for ever]"
        ),
    ] = None
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Time between two publishes, such as 100ms.")
    ] = None
    lasting: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="How long to repeat, such as 30s. [--every is 1s then]"),
    ] = None
    keep_last: Annotated[
        int,
        typer.Option(
            "--keep-last",
            metavar="N",
            min=1,
            help="With --every: how many of the last messages to keep and send again.",
        ),
    ] = 5
    backup: Annotated[
        str | None,
        typer.Option(
            "--backup", metavar="URL", help="With --every: the broker to switch to when the first one fails."
        ),
    ] = None

    @property
    def interval(self) -> str | None:
        return self.every or (_EVERY_DEFAULT if self.lasting is not None else None)

    def check(self, message: str | None) -> None:
        """ConfigError for options that do not go together."""
        from millrace.errors import ConfigError

        if (message is None) is (self.file is None):
            raise ConfigError("give the message, - for standard input, or a file with -f FILE, one of them")
        if self.lines and message != "-" and self.file is None:
            raise ConfigError(
                "--lines reads standard input or a file: put - in place of the message, or -f FILE"
            )
        if self.lines and (self.repeat is not None or self.lasting is not None):
            raise ConfigError("--lines does not go together with --repeat or --for")
        for option, given in (("--every", self.every), ("--for", self.lasting)):
            if given is not None and not duration_s(given):
                raise ConfigError(f"{option}: a time is more than 0")
        if self.interval is None and self.backup is not None:
            raise ConfigError("--backup is for a publisher with --every, which keeps messages to send again")

    def payloads(self, message: str | None) -> Iterator[bytes]:
        """What to publish, one by one."""
        from millrace.limits import PACKET_BYTES_TOP

        if message is not None and message != "-":
            # Arguments that are not UTF-8 arrive with surrogates; they leave as the bytes they were.
            yield from self._again(message.encode(errors="surrogateescape"))
            return
        with _opened(self.file) as source:
            if not self.lines:
                yield from self._again(source.read(PACKET_BYTES_TOP))
                return
            while line := source.readline(PACKET_BYTES_TOP):
                yield line.removesuffix(b"\n").removesuffix(b"\r")

    def _again(self, payload: bytes) -> Iterator[bytes]:
        """The payload as often as wanted, and for as long."""
        end_s = math.inf if self.lasting is None else time.monotonic() + duration_s(self.lasting)
        count = self.repeat or (math.inf if self.interval is not None else 1)
        if self.lasting is not None:
            # Each is asked for when the one before has left, an interval before its own turn.
            assert self.interval is not None
            count = min(count, math.ceil(duration_s(self.lasting) / duration_s(self.interval)))
        sent = 0
        while sent < count and time.monotonic() < end_s:
            yield payload
            sent += 1


@contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
    """The file, or standard input where there is none or it is called -."""
    from millrace.errors import ConfigError

    if file is None or str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        source = file.open("rb")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    with source:
        yield source


@app.command(
    epilog=example(
        "millrace pub sensors/room1 21.5",
        "millrace pub sensors/room1 21.5 -q 2 --retain --url mqtt://ann@broker.example:1883",
        "millrace pub cameras/door -f picture.jpg",
        "millrace pub sensors/room1 21.5 --every 1s --for 30s",
        "tail -f readings.txt | millrace pub sensors/room1 - --lines",
        "millrace pub sensors/room1 21.5 --every 100ms --keep-last 5 --backup mqtt://127.0.0.1:18840",
    )
)
@takes(RepeatOptions, ConnectionOptions)
def pub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to publish.")],
    repeated: RepeatOptions,
    given: ConnectionOptions,
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE|-", help="The message; - reads standard input.")
    ] = None,
    url: Url = None,
    qos: Qos = 1,
    retain: Annotated[
        bool, typer.Option("-r", "--retain", help="Retain the message for later subscribers.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Publish a message and wait until the broker has it."""
    from millrace.errors import ConfigError

    repeated.check(message)
    if repeated.interval is not None:
        if qos != 1 or retain or not given.is_mqtt_5:
            raise ConfigError("--every and --for publish with QoS 1 and MQTT 5, not retained")
        _publish_on_interval(topic, message, repeated, url, json, **given.tls)
        return
    sent = _Sent()
    try:
        with connected(url, given, reconnect=False) as client:
            for payload in repeated.payloads(message):
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
    topic: str, message: str | None, repeated: RepeatOptions, urls: list[str] | None, json: bool, **tls: Any
) -> None:
    from millrace.cli.messages import failover
    from millrace.cli.shared.contexts import mqtt_urls

    brokers = [*mqtt_urls(urls), *(mqtt_urls(repeated.backup) if repeated.backup else ())]
    assert repeated.interval is not None
    try:
        done = failover.publish(
            topic,
            repeated.payloads(message),
            urls=brokers,
            every_s=duration_s(repeated.interval),
            keep_last=repeated.keep_last,
            **tls,
        )
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
