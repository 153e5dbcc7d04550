"""`millrace pub`: publish messages."""

import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.common import AsJson, example, print_done, print_error, single
from millrace.cli.connecting import (
    CaFile,
    CertFile,
    ClientId,
    Insecure,
    KeyFile,
    Mqtt,
    ProtocolVersion,
    Qos,
    Url,
    connected,
)

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
    )
)
def pub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to publish.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE|-", help="The message; - reads standard input.")],
    url: Url = None,
    qos: Qos = 1,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Keep it for later subscribers.")] = False,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, help="Publish the message so many times.")
    ] = 1,
    lines: Annotated[bool, typer.Option("--lines", help="With -: each line is a message.")] = False,
    client_id: ClientId = None,
    protocol: Mqtt = ProtocolVersion.MQTT_5,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    insecure: Insecure = False,
    json: AsJson = False,
) -> None:
    """Publish a message and wait until the broker has it."""
    from millrace.errors import ConfigError

    if lines and message != "-":
        raise ConfigError("--lines reads standard input: put - in place of the message")
    if lines and repeat > 1:
        raise ConfigError("--lines and --repeat do not go together")
    sent = _Sent()
    try:
        with connected(
            url,
            protocol=protocol,
            client_id=client_id,
            reconnect=False,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            insecure=insecure,
        ) as client:
            for payload in _payloads(message, repeat, lines):
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


def _payloads(message: str, repeat: int, lines: bool) -> Iterator[bytes]:
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
    for _ in range(repeat):
        yield payload
