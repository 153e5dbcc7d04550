"""Write docs/reference/errors.md from the texts with which the code refuses and fails; --check compares."""

import ast
import sys
from collections.abc import Iterator

from generated_page import DOCS, write_or_check

from millrace.reasons import Reason

PAGE = DOCS / "reference" / "errors.md"
SOURCE = DOCS.parent / "src" / "millrace"
# Whoever asks for something by HTTP, and what other doors share with it.
_HTTP = ["node/doors/http", "node/access/caller.py", "node/json_form.py", "node/queue"]
# Part of the program, the folders of its texts, and who sees them.
PARTS = {
    "HTTP": (
        _HTTP,
        "Members `detail` of problem documents, after the status; the text port says those of the queue.",
    ),
    "Node, configuration and doors": (
        ["node", "settings.py", "local_cluster"],
        "Lines of the log, or the end of a command.",
    ),
    "Broker": (
        ["broker"],
        "Answers to clients: reason strings in MQTT 5, details of HTTP problems, errors of commands.",
    ),
    "Storage": (["storage"], "Lines of the log of a node; most of them end it."),
    "Command line": (["cli"], "Printed after `millrace:`, with status 1 or 2."),
    "Python clients": (["client"], "Texts of exceptions of `millrace.client`."),
    "Spark": (["spark"], "Texts of exceptions of the data source and of pipelines."),
}
_WORDS_MIN = 3
_INTRODUCTION = """\
# Errors

<!-- Written by tools/errors_page.py from the code: change the texts there, then run `make reference`. -->

Every text says what is wrong and, where there is something to do, what to do. Words in capitals stand
for what a message names in its place. What a node logs when something is wrong with a cluster is
explained, with what to do about it, in [Troubleshooting by
symptom](../how-to/operations.md#troubleshooting-by-symptom).

## MQTT reason codes

These are the codes of MQTT 5 that the code knows. A client of 3.1.1 gets the return code that comes
nearest, or its connection is closed. 0x83 means that the message was not on as many nodes as its stream
asks for within 10 s, 0x97 that a limit is reached or the disk is full, and 0x9C that the node was cut
off from the others.

| code | name |
|---|---|
"""


def _text(node: ast.expr) -> str | None:
    """The words of a string or a formatted string, with names in capitals in place of values."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            words = [
                part.value if isinstance(part, ast.Constant) else _placeholder(part)
                for part in parts
                if isinstance(part, ast.Constant | ast.FormattedValue)
            ]
            return "".join(str(word) for word in words)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            both = _text(left), _text(right)
            return None if None in both else f"{both[0]}{both[1]}"
    return None


def _placeholder(part: ast.FormattedValue) -> str:
    names = [node.id for node in ast.walk(part.value) if isinstance(node, ast.Name)]
    names += [node.attr for node in ast.walk(part.value) if isinstance(node, ast.Attribute)]
    kept = [name for name in names if name not in ("self", "str", "len", "sorted", "join")]
    return (kept[-1] if kept else "value").strip("_").upper()


def _raised(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        status = ""
        for argument in node.exc.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, int):
                status = f"{argument.value}: "
            text = _text(argument)
            if text is not None and len(text.split()) >= _WORDS_MIN:
                yield f"{status}{' '.join(text.split())}"
                break


def texts(folders: list[str]) -> set[str]:
    found: set[str] = set()
    for folder in folders:
        place = SOURCE / folder
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if folder == "node" and any(path.is_relative_to(SOURCE / one) for one in _HTTP):
                continue
            found |= set(_raised(ast.parse(path.read_text())))
    return found


def page() -> str:
    parts = [_INTRODUCTION]
    parts += [f"| 0x{int(one):02X} | {one.name.lower().replace('_', ' ')} |\n" for one in Reason]
    for name, (folders, about) in PARTS.items():
        lines = sorted(texts(folders), key=str.lower)
        parts.append(f"\n## {name}\n\n{about}\n\n")
        parts += [f"- `{line.replace('`', chr(39))}`\n" for line in lines]
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), sys.argv[1:]))
