"""Tables for people: they fit the terminal, break no word, and write values as people do.

Where a table is too wide the least important columns are left out, and then the longest cells are shortened.
In a pipe nothing is left out or cut; programs read --json.
"""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

_GAP = 2
_CELL_LEAST = 8
_WIDTH_LEAST = 40
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_DURATIONS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """Text fit for a terminal: what a name or topic holds must not steer it."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def written(value: Any) -> str:
    """A value as a person would write it."""
    if value is None or value == "" or value == [] or value == {} or value == ():
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {written(inner)}" for key, inner in value.items())
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int):
        return f"{value[0]}:{value[1]}"
    if isinstance(value, list | tuple | set | frozenset):
        return " ".join(written(inner) for inner in value)
    return printable(str(value))


def duration(seconds: float) -> str:
    """`7d`, `1h30m`, `2.5s`: at most two units."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    left, parts = int(seconds), []
    for size_s, unit in _DURATIONS:
        if left >= size_s:
            parts.append(f"{left // size_s}{unit}")
            left %= size_s
    return "".join(parts[:2]) or "0s"


def size(count: float) -> str:
    """`512 B`, `1.5 GiB`."""
    for unit in _SIZES:
        if count < 1024 or unit == _SIZES[-1]:
            text = f"{count:.0f}" if unit == "B" or count >= 100 else f"{count:.1f}".removesuffix(".0")
            return f"{text} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes everything")


def when(time_us: int | None) -> str | None:
    """A moment as date and time of this machine's time zone; None stays None."""
    if time_us is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_us / 1e6))


def number(count: float) -> str:
    """`950`, `12.3k`, `4.1M`: short enough for a narrow column."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= limit:
            return f"{count / (1e3 if unit == 'k' else limit):.1f}{unit}"
    return f"{count:.0f}" if count == int(count) or count >= 100 else f"{count:.1f}"


def fact(name: str, value: Any) -> tuple[str, str]:
    """A field of an answer with its unit where people put it: (`retention age`, `7d`)."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_s"):
            return name.removesuffix("_s").replace("_", " "), duration(value) if value else "0"
        if name.endswith("_bytes") or name == "bytes":
            return name.replace("_bytes", "").replace("_", " "), size(value) if value else "0"
        if name.endswith("_ms"):
            return name.removesuffix("_ms").replace("_", " "), f"{written(value)} ms"
    return name.removesuffix("_us").replace("_", " "), written(value)


def width() -> int | None:
    """How wide a line may be; None in a pipe, where nothing is cut."""
    if not sys.stdout.isatty():
        return None
    return max(_WIDTH_LEAST, shutil.get_terminal_size().columns)


def print_facts(fields: Mapping[str, Any]) -> None:
    """Names and values below each other; long values go on in the next line, at a space."""
    import textwrap

    facts = [fact(name, value) for name, value in fields.items()]
    indent = max((len(name) for name, _ in facts), default=0) + _GAP
    fits = width()
    for name, value in facts:
        lines = [value]
        if fits is not None:
            lines = textwrap.wrap(value, max(_CELL_LEAST, fits - indent), break_long_words=False) or ["-"]
        for position, line in enumerate(lines):
            sys.stdout.write(f"{name if not position else '':{indent}}{line}\n")


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    optional: Sequence[str] = (),
    fits: int | None = None,
) -> tuple[list[str], list[str]]:
    """The lines of a table, the heading first, and the columns that it left out.

    `optional` are the columns that may be left out, the first to go in front; `fits` is how wide it may be.
    """
    from rich.cells import cell_len

    shown = list(columns)
    cells = {name: [written(row.get(name)) for row in rows] for name in columns}
    numeric = {
        name
        for name in columns
        if any(isinstance(row.get(name), int | float) for row in rows)
        and all(_is_number(row.get(name)) for row in rows)
    }
    widths = {
        name: max([len(_heading(name)), *(cell_len(cell) for cell in cells[name])], default=0)
        for name in columns
    }
    left_out = []
    for name in optional:
        if fits is not None and _total(widths, shown) > fits and name in shown and len(shown) > 1:
            shown.remove(name)
            left_out.append(name)
    while fits is not None and (over := _total(widths, shown) - fits) > 0:
        widest = max(shown, key=lambda name: widths[name])
        least = max(_CELL_LEAST, len(_heading(widest)))
        if widths[widest] <= least:
            break
        others = sorted((widths[name] for name in shown), reverse=True)
        target = max(least, widths[widest] - over, others[1] - 1 if len(others) > 1 else least)
        widths[widest] = min(target, widths[widest] - 1)
    lines = [_line([(_heading(name), widths[name], name in numeric) for name in shown])]
    lines += [
        _line([(cells[name][position], widths[name], name in numeric) for name in shown])
        for position in range(len(rows))
    ]
    return lines, left_out


def print_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, optional: Sequence[str] = ()
) -> None:
    lines, left_out = table(rows, columns, optional=optional, fits=width())
    styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    heading = f"{_BOLD}{lines[0]}{_PLAIN}" if styled else lines[0]
    sys.stdout.write("\n".join([heading, *lines[1:]]) + "\n")
    if not rows and sys.stdout.isatty():
        sys.stdout.write("(none)\n")
    elif left_out:
        note = f"(too narrow for: {', '.join(_heading(name) for name in left_out)}; --json shows all)"
        sys.stdout.write(f"{_DIM}{note}{_PLAIN}\n" if styled else f"{note}\n")


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _total(widths: Mapping[str, int], shown: Sequence[str]) -> int:
    return sum(widths[name] for name in shown) + _GAP * (len(shown) - 1)


def _line(cells: Sequence[tuple[str, int, bool]]) -> str:
    from rich.cells import cell_len

    parts = []
    for text, wide, is_right in cells:
        short = shortened(text, wide)
        padding = " " * (wide - cell_len(short))
        parts.append(padding + short if is_right else short + padding)
    return (" " * _GAP).join(parts).rstrip()


def shortened(text: str, wide: int) -> str:
    """The text in so many cells of the terminal, with a sign where something is missing."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= wide else set_cell_size(text, wide - 1) + "…"
