"""Log lines for people or one JSON object each, to standard error.

What a client chose (its id, a topic) may stand in a message. Control characters and line ends of every kind
are escaped, so that a message is one line whatever is in it, and a terminal does nothing that a client asks
for.
"""

import json
import logging
import sys
import time
from typing import Literal

# C0 and C1 controls, DEL, and what Unicode takes for the end of a line or paragraph.
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS}


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d} {record.levelname.lower():7} {record.name}"
        line = f"{head}: {record.getMessage().translate(_ESCAPES)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False).translate(_JSON_ESCAPES)


def configure(level: str, format: Literal["text", "json"]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if format == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("millrace").setLevel(level.upper())
