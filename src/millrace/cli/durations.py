"""Times as people write them on a command line."""

import re

from millrace.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}


def seconds(text: str) -> float:
    """`100ms`, `1.5s`, `2m`, `1h`, `7d`; a plain number is seconds. ConfigError for anything else."""
    found = _DURATION.fullmatch(text)
    if found is None or not float(found[1]):
        raise ConfigError(f"{text!r} is not a time such as 100ms, 1.5s or 2m")
    return float(found[1]) * _UNITS_S[found[2]]
