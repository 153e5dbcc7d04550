"""`millrace sub`: print the messages of some topics as they come."""

import base64
import json as encoding
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.common import example, print_error, single
from millrace.cli.connecting import ConnectionOptions, Qos, Url, connected
from millrace.cli.message_format import Line, line_maker
from millrace.cli.option_groups import takes

if TYPE_CHECKING:
    from millrace.client.incoming import Message
    from millrace.client.subscriber import Sourced

app = single()

# Messages that the broker may send ahead of the output.
_WINDOW = 1_000


@app.command(
    epilog=example(
        "millrace sub 'sensors/#' -v",
        "millrace sub 'sensors/#' --format '{time} {topic} {payload}'",
        "millrace sub 'sensors/#' --group workers --count 10 --json",
        "millrace sub 'sensors/#' --from earliest --url http://127.0.0.1:18831",
        "millrace sub 'sensors/#' --backup mqtt://127.0.0.1:18840",
        "millrace sub '$SYS/#' -v --timeout 15 --url mqtt://ann@broker.example:1883",
    )
)
@takes(ConnectionOptions)
def sub(
    filters: Annotated[list[str], typer.Argument(metavar="FILTER", help="Topic filters.")],
    given: ConnectionOptions,
    url: Url = None,
    qos: Qos = 1,
    group: Annotated[
        str | None, typer.Option("--group", metavar="G", help="Share the messages with others in group G.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", metavar="N", min=1, help="End after N messages.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="S", min=0, help="End after S seconds; a failure if --count is not reached."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="earliest|latest|OFFSET", help="Read the logs by HTTP, from there on."
        ),
    ] = None,
    backup: Annotated[
        str | None,
        typer.Option(
            "--backup", metavar="URL", help="A second broker: each message once, and from which it came."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic before it.")] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEXT",
            help="Print this, with {topic}, {payload}, {hex}, {qos}, {bytes}, {time}.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object in each line.")] = False,
) -> None:
    """Print messages as they come, one in each line, until Ctrl-C."""
    line = line_maker(format, verbose=verbose)
    if start is not None:
        if group is not None:
            raise typer.BadParameter(
                "a group has a cursor of its own: millrace group reset", param_hint="--from"
            )
        _read_log(filters, start, url, count=count, timeout=timeout, line=line, json=json)
        return
    if backup is not None:
        if group is not None or not given.is_mqtt_5:
            raise typer.BadParameter("goes with MQTT 5 and without --group", param_hint="--backup")
        _from_both(filters, url, backup, qos, count=count, timeout=timeout, line=line, json=json, **given.tls)
        return
    end_s = None if timeout is None else time.monotonic() + timeout
    seen = 0
    try:
        with (
            connected(url, given, receive_maximum=min(count or _WINDOW, _WINDOW)) as client,
            client.subscribe(*filters, qos=qos, group=group, manual_ack=True) as messages,
        ):
            while count is None or seen < count:
                message = messages.get(None if end_s is None else max(0.0, end_s - time.monotonic()))
                _write(
                    _json_line(message)
                    if json
                    else line(message.topic, message.payload, message.qos, message.retain)
                )
                # Only now: what could not be written is for another member of the group.
                messages.ack(message)
                seen += 1
    except TimeoutError:
        if count is not None:
            print_error(f"{seen} of {count} messages came within {timeout:g} s")
            raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(0 if count is None else 1) from None
    except BrokenPipeError:
        # The reader has all it wanted. Python would try to flush the pipe once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _from_both(
    filters: list[str],
    urls: list[str] | None,
    backup: str,
    qos: int,
    *,
    count: int | None,
    timeout: float | None,
    line: Line,
    json: bool,
    **tls: Any,
) -> None:
    from millrace.cli import failover
    from millrace.cli.contexts import mqtt_urls

    def write(sourced: "Sourced") -> None:
        message = sourced.message
        if json:
            _write(_json_line(message, source=sourced.source))
        else:
            text = line(message.topic, message.payload, message.qos, message.retain)
            _write(f"{sourced.source} ".encode() + text)

    primary = mqtt_urls(urls)[0]
    try:
        seen = failover.subscribe(
            filters,
            primary=primary,
            backup=backup,
            qos=qos,
            count=count,
            timeout_s=timeout,
            write=write,
            **tls,
        )
    except KeyboardInterrupt:
        raise typer.Exit(0 if count is None else 1) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if count is not None and seen < count:
        print_error(f"{seen} of {count} messages came within {timeout:g} s")
        raise typer.Exit(1)


def _read_log(
    filters: list[str],
    start: str,
    urls: list[str] | None,
    *,
    count: int | None,
    timeout: float | None,
    line: Line,
    json: bool,
) -> None:
    from millrace.cli import from_offset

    def write(message: dict[str, Any], payload: bytes) -> None:
        if json:
            _write(encoding.dumps(message, ensure_ascii=False).encode() + b"\n")
        else:
            _write(line(message["topic"], payload, message.get("qos", 0), bool(message.get("retain"))))

    try:
        from_offset.read(filters, start, urls, count=count, timeout_s=timeout, write=write)
    except KeyboardInterrupt:
        raise typer.Exit(0 if count is None else 1) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
