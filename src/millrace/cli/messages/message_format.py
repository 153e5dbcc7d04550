"""How `millrace sub` writes a message as a line: the payload, topic and payload, or as --format says."""

import string
import sys
import time
from collections.abc import Callable

from millrace.cli.shared.tables import printable
from millrace.errors import ConfigError

FIELDS = ("topic", "payload", "hex", "qos", "retain", "bytes", "time")

Line = Callable[[str, bytes, int, bool], bytes]
"""Makes a line of topic, payload, QoS and retain."""


def line_maker(format: str | None, *, verbose: bool) -> Line:
    """The function that writes a message. ConfigError for a format with a field that is not known."""
    if format is None:
        return lambda topic, payload, qos, retain: _plain(topic, payload, verbose)
    template = format.replace("\\t", "\t").replace("\\n", "\n")
    _check(template)

    def formatted(topic: str, payload: bytes, qos: int, retain: bool) -> bytes:
        text = payload.decode(errors="backslashreplace")
        is_terminal = sys.stdout.isatty()
        return (
            template.format(
                topic=printable(topic) if is_terminal else topic,
                payload=printable(text) if is_terminal else text,
                hex=payload.hex(),
                qos=qos,
                retain="retained" if retain else "",
                bytes=len(payload),
                time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            )
            + "\n"
        ).encode(errors="backslashreplace")

    return formatted


def _check(template: str) -> None:
    """Only plain fields: a format is no way to reach into the program."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        unknown = [name for name in names if name not in FIELDS]
        if not unknown:
            template.format(
                **dict.fromkeys(("topic", "payload", "hex", "retain", "time"), ""), qos=0, bytes=0
            )
    except ValueError as error:
        raise ConfigError(f"--format: {error}; a brace is written twice: {{{{ and }}}}") from None
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in FIELDS)
        raise ConfigError(f"--format does not know {{{unknown[0]}}}; there are {known}")


def _plain(topic: str, payload: bytes, verbose: bool) -> bytes:
    if sys.stdout.isatty():
        text = printable(payload.decode(errors="backslashreplace"))
        return f"{printable(topic)} {text}\n".encode() if verbose else f"{text}\n".encode()
    return (topic.encode() + b" " if verbose else b"") + payload + b"\n"
