"""`millrace group take|ack|nack`: be a member of a group by hand."""

import base64
from typing import Annotated, Any

import typer

from millrace.cli.shared.common import AsJson, duration_s, print_done, print_json, print_rows
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, door

Name = Annotated[str, typer.Argument(metavar="NAME")]
Receipts = Annotated[list[str], typer.Argument(metavar="RECEIPT", help="As `group take` prints it.")]


def take(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="At most so many.")] = 1,
    lease: Annotated[str, typer.Option("--lease", metavar="TIME", help="Ours for so long.")] = "30s",
    wait: Annotated[str | None, typer.Option("--wait", metavar="TIME", help="Wait so long for one.")] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge at once.")] = False,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Take the next messages; without an acknowledgement they are delivered again after the lease."""
    wait_ms = int(1000 * duration_s(wait)) if wait is not None else 0
    group = door(url)
    messages = group.take(name, count=count, lease_ms=int(1000 * duration_s(lease)), wait_ms=wait_ms)
    if json:
        print_json(messages)
    elif messages:
        print_rows([_row(one) for one in messages], ("topic", "payload", "receipt"), as_json=False)
    else:
        print_done(f"nothing waits in group {name}", as_json=False)
    if ack and messages:
        group.ack(name, *(one["receipt"] for one in messages))


def _row(message: dict[str, Any]) -> dict[str, Any]:
    payload = message["payload"]
    if message.get("encoding") == "base64":
        payload = base64.b64decode(payload).decode(errors="backslashreplace")
    return {**message, "payload": payload}


def ack(name: Name, receipts: Receipts, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Say that messages are done with."""
    _settled(name, receipts, door(url).ack(name, *receipts), "acknowledged", json)


def nack(
    name: Name,
    receipts: Receipts,
    delay: Annotated[str | None, typer.Option("--delay", metavar="TIME", help="Not before that.")] = None,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Give messages back, to be delivered again."""
    delay_ms = int(1000 * duration_s(delay)) if delay is not None else 0
    _settled(name, receipts, door(url).nack(name, *receipts, delay_ms=delay_ms), "given back", json)


def _settled(group: str, receipts: list[str], results: list[bool], word: str, as_json: bool) -> None:
    """Say what became of the receipts; exit status 1 unless all were still ours."""
    done = sum(results)
    late = "" if done == len(receipts) else f"; {len(receipts) - done} were no longer ours"
    print_done(f"{done} of {len(receipts)} {word} in group {group}{late}", as_json=as_json, results=results)
    if late:
        raise typer.Exit(1)
