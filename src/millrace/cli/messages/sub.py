"""`millrace sub`: print the messages of some topics as they come."""

import base64
import json as encoding
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.messages.connecting import ConnectionOptions, Qos, Url, connected
from millrace.cli.messages.message_format import Line, line_maker
from millrace.cli.shared.common import duration_s, example, print_error, single
from millrace.cli.shared.option_groups import takes

if TYPE_CHECKING:
    from millrace.client.conversation.incoming import Message
    from millrace.client.subscriber import Sourced

app = single()

# Messages that the broker may send ahead of the output.
_WINDOW = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How the messages are printed, and when there were enough."""

    count: Annotated[
        int | None, typer.Option("-n", "--count", metavar="N", min=1, help="End after N messages.")
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            parser=duration_s,
            help="End after this time (plain numbers are seconds). It counts as a failure if --count "
            "was not reached by then.",
        ),
    ] = None
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic before each message.")] = (
        False
    )
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEXT",
            help="Print this, with {topic}, {payload}, {hex}, {qos}, {bytes}, {time}.",
        ),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object in each line.")] = False

    def line_maker(self) -> Line:
        """Makes a line of a message. ConfigError for a format with a field that is not known."""
        return line_maker(self.format, verbose=self.verbose)

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Around the work: ends it at Ctrl-C, and when nobody reads the output any more."""
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Exit(0 if self.count is None else 1) from None
        except BrokenPipeError:
            # The reader has all it wanted. Python would try to flush the pipe once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None

    def check(self, seen: int) -> None:
        """Call it with the number of messages at the end: fewer than were wanted is a failure."""
        if self.count is not None and seen < self.count:
            print_error(f"{seen} of {self.count} messages came within {self.timeout:g} s")
            raise typer.Exit(1)


@app.command(
    epilog=example(
        "millrace sub 'sensors/#' -v",
        "millrace sub 'sensors/#' --group workers --count 10 --json",
        "millrace sub 'sensors/#' --from earliest --url http://127.0.0.1:18831",
        "millrace sub 'sensors/#' --backup mqtt://127.0.0.1:18840",
        "millrace sub '$SYS/#' -v --timeout 15s --url mqtt://ann@broker.example:1883",
    )
)
@takes(Output, ConnectionOptions)
def sub(
    filters: Annotated[list[str], typer.Argument(metavar="FILTER", help="Topic filters.")],
    given: ConnectionOptions,
    output: Output,
    url: Url = None,
    qos: Qos = 1,
    group: Annotated[
        str | None, typer.Option("--group", metavar="G", help="Share the messages with others in group G.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET",
            help="Read stored messages from the logs by HTTP, from there on.",
        ),
    ] = None,
    backup: Annotated[
        str | None,
        typer.Option(
            "--backup",
            metavar="URL",
            help="A second broker: print each message once, and which broker sent it.",
        ),
    ] = None,
) -> None:
    """Print messages as they come, one in each line, until Ctrl-C."""
    if start is not None and group is not None:
        raise typer.BadParameter("a group has a cursor of its own: millrace group reset", param_hint="--from")
    if backup is not None and start is None and (group is not None or not given.is_mqtt_5):
        raise typer.BadParameter("goes with MQTT 5 and without --group", param_hint="--backup")
    line = output.line_maker()
    with output.until_stopped():
        if start is not None:
            seen = _read_log(filters, start, url, output, line)
        elif backup is not None:
            seen = _from_both(filters, url, backup, qos, output, line, **given.tls)
        else:
            seen = _from_one(filters, url, qos, group, given, output, line)
    output.check(seen)


def _from_one(
    filters: list[str],
    urls: list[str] | None,
    qos: int,
    group: str | None,
    given: ConnectionOptions,
    output: Output,
    line: Line,
) -> int:
    end_s = None if output.timeout is None else time.monotonic() + output.timeout
    seen = 0
    with (
        connected(urls, given, receive_maximum=min(output.count or _WINDOW, _WINDOW)) as client,
        client.subscribe(*filters, qos=qos, group=group, manual_ack=True) as messages,
        suppress(TimeoutError),
    ):
        while output.count is None or seen < output.count:
            message = messages.get(None if end_s is None else max(0.0, end_s - time.monotonic()))
            _write(_json_line(message) if output.json else _text_line(line, message))
            # Only now: what could not be written is for another member of the group.
            messages.ack(message)
            seen += 1
    return seen


def _from_both(
    filters: list[str], urls: list[str] | None, backup: str, qos: int, output: Output, line: Line, **tls: Any
) -> int:
    from millrace.cli.messages import failover
    from millrace.cli.shared.contexts import mqtt_urls

    def write(sourced: "Sourced") -> None:
        message = sourced.message
        if output.json:
            _write(_json_line(message, source=sourced.source))
        else:
            _write(f"{sourced.source} ".encode() + _text_line(line, message))

    return failover.subscribe(
        filters,
        primary=mqtt_urls(urls)[0],
        backup=backup,
        qos=qos,
        count=output.count,
        timeout_s=output.timeout,
        write=write,
        **tls,
    )


def _read_log(filters: list[str], start: str, urls: list[str] | None, output: Output, line: Line) -> int:
    from millrace.cli.messages import from_offset

    def write(message: dict[str, Any], payload: bytes) -> None:
        if output.json:
            _write(encoding.dumps(message, ensure_ascii=False).encode() + b"\n")
        else:
            _write(line(message["topic"], payload, message.get("qos", 0), bool(message.get("retain"))))

    return from_offset.read(filters, start, urls, count=output.count, timeout_s=output.timeout, write=write)


def _text_line(line: Line, message: "Message") -> bytes:
    return line(message.topic, message.payload, message.qos, message.retain)


def _write(data: bytes) -> None:
    from millrace.client.errors import ClientError

    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ClientError(f"cannot write the output: {error.strerror}") from error


def _json_line(message: "Message", **more: str) -> bytes:
    row: dict[str, Any] = {**more, "topic": message.topic, **_readable("payload", message.payload)}
    row["qos"] = message.qos
    row["retain"] = message.retain
    properties = message.properties
    for name in ("message_expiry_s", "content_type", "response_topic"):
        value = getattr(properties, name)
        if value is not None:
            row[name] = value
    if properties.correlation_data is not None:
        row["correlation_data"] = base64.b64encode(properties.correlation_data).decode()
    if properties.user:
        row["user"] = [list(pair) for pair in properties.user]
    return encoding.dumps(row, ensure_ascii=False).encode() + b"\n"


def _readable(name: str, data: bytes) -> dict[str, str]:
    """Bytes as text where they are text, otherwise as base64 that says so."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), "encoding": "base64"}
