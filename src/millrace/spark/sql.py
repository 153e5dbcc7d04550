"""Pipelines in SQL: two statements of our own, everything else is Spark's.

    CREATE STREAM readings USING millrace OPTIONS (stream 'plant', topics 'plant/+/temperature');
    CREATE TEMPORARY VIEW warm AS SELECT * FROM readings WHERE ...;
    INSERT INTO warnings USING millrace OPTIONS (topic 'plant/warnings') SELECT ... AS payload FROM warm;

`CREATE STREAM` makes a streaming view; `INSERT INTO` names a sink, with a checkpoint under that name. Other
statements go to Spark as they are. `${name}` stands for a setting of the pipeline, in quotes or out of them.
"""

import re
from collections.abc import Iterator
from typing import Any

from millrace.errors import ConfigError
from millrace.limits import SQL_STATEMENTS_MAX
from millrace.spark.flow import FORMAT, Flow

_SETTING = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")
_OPTIONS = r"(?:\s+USING\s+(?P<format>[A-Za-z0-9_.]+))?(?:\s+OPTIONS\s*\((?P<options>.*?)\))?"
_STREAM = re.compile(rf"CREATE\s+STREAM\s+(?P<name>\w+){_OPTIONS}", re.IGNORECASE | re.DOTALL)
_INSERT = re.compile(
    rf"INSERT\s+INTO\s+(?P<name>[\w.-]+)(?:\s+MODE\s+(?P<mode>\w+))?{_OPTIONS}\s+(?P<query>(?:SELECT|WITH)\b.*)",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(r"\s*([A-Za-z0-9_.]+)\s*=?\s*'((?:[^']|'')*)'\s*(?:,|$)")
# Raw text, text in quotes (where a backslash is an escape), comments, the end of a statement, or any other
# character.
_PIECE = re.compile(
    r"""\b[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`"""
    r"""|--[^\n]*|/\*.*?\*/|;|.""",
    re.DOTALL,
)


def build(flow: Flow, text: str) -> None:
    """Run the statements of a SQL pipeline; ConfigError names the one that is wrong."""
    for count, statement in enumerate(statements(text)):
        if count >= SQL_STATEMENTS_MAX:
            raise ConfigError(f"a SQL pipeline has at most {SQL_STATEMENTS_MAX} statements")
        run(flow, _SETTING.sub(lambda found: flow.setting(found.group(1)), statement))


def statements(text: str) -> Iterator[str]:
    """The statements of a text, without comments but with hints (`/*+ ... */`); a semicolon in quotes ends
    nothing."""
    pieces: list[str] = []
    for found in _PIECE.finditer(text):
        piece = found.group()
        if piece == ";":
            if statement := "".join(pieces).strip():
                yield statement
            pieces = []
        elif piece.startswith(("--", "/*")) and not piece.startswith("/*+"):
            pieces.append(" ")
        else:
            pieces.append(piece)
    if statement := "".join(pieces).strip():
        yield statement


def run(flow: Flow, statement: str) -> None:
    made = _STREAM.fullmatch(statement)
    if made is not None:
        if (made["format"] or FORMAT).lower() != FORMAT:
            raise ConfigError(f"CREATE STREAM {made['name']}: only USING {FORMAT} makes a stream")
        flow.source(**options_of(statement, made["options"])).createOrReplaceTempView(made["name"])
        return
    inserted = _INSERT.fullmatch(statement)
    if inserted is not None:
        options: dict[str, Any] = {**options_of(statement, inserted["options"])}
        options["format"] = inserted["format"] or FORMAT
        options["mode"] = (inserted["mode"] or "append").lower()
        flow.sink(inserted["name"], flow.spark.sql(inserted["query"]), **options)
        return
    flow.spark.sql(statement)


def options_of(statement: str, text: str | None) -> dict[str, str]:
    """`name 'value', ...`; a quote in a value is doubled."""
    found: dict[str, str] = {}
    position, text = 0, (text or "").strip()
    while position < len(text):
        option = _OPTION.match(text, position)
        if option is None:
            first = statement.split("(", maxsplit=1)[0].strip()
            raise ConfigError(f"{first}: options are written as name 'value', ..., not {text[position:]!r}")
        found[option[1]] = option[2].replace("''", "'")
        position = option.end()
    return found
