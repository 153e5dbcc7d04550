"""Small requests to a node's HTTP door, with the standard library alone."""

import json
import urllib.error
import urllib.request
from typing import Any

from millrace.errors import LocalError

_TIMEOUT_S = 10.0


def get_json(url: str) -> Any:
    """The JSON answer; LocalError with a sentence that says what to do where there is none."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise LocalError(f"{url} answered {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise LocalError(
            f"no answer from {url}: {reason}; is the node running? start one: millrace start"
        ) from error
