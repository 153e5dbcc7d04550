"""Log lines for people or one JSON object each, to standard error.

A line for people begins with date and time of the machine's clock in its time zone. A JSON object has the
time as ISO 8601 with the offset, and the name of the node: logs of several nodes are put together and sorted.

What a client chose (its id, a topic) may stand in a message. Control characters and line ends of every kind
are escaped, so that a message is one line whatever is in it, and a terminal does nothing that a client asks
for.
"""

import json
import logging
import sys
import time
from datetime import datetime
from typing import Literal

# C0 and C1 controls, DEL, and what Unicode takes for the end of a line or paragraph.
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS}


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d} {record.levelname.lower():7} {record.name}"
        line = f"{head}: {record.getMessage().translate(_ESCAPES)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "node": self._node,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False).translate(_JSON_ESCAPES)


def configure(level: str, format: Literal["text", "json"], node: str) -> None:
    """Send the log of this process to standard error, in the name of the node."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(node) if format == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("millrace").setLevel(level.upper())
