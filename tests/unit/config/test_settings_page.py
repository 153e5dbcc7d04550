"""The page of all settings in the documentation is made from the settings.

After a change of one: pytest tests/unit/config/test_settings_page.py --rewrite
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from millrace.broker.groups.definitions import NewDurableGroup
from millrace.broker.streams.pair_spec import PairSpec, TopicClass
from millrace.broker.streams.stream import DEFAULT_SPEC, StreamSpec
from millrace.node.config import SECTIONS, SETTINGS, Address
from millrace.settings import Field

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "settings.md"

_HEAD = """# Settings

This page is made from the code: `pytest tests/unit/config/test_settings_page.py --rewrite`.

A number that has a unit is in the unit that its name ends in; text with another unit may stand for it, in the
configuration file, in `--set`, on the command line and in a JSON string: `7d`, `90s`, `1h30m`, `500ms`,
`512MiB`, `10GB`. A wrong value is refused with the same sentence everywhere: the
setting, what was given, what is expected.
"""
_STREAMS = """## Streams

`millrace stream create` and `alter`, `POST /v1/streams`, `PATCH /v1/streams/NAME`, and `[streams.NAME]` in
the configuration file. The last column says which replications a setting concerns; empty is all. The stream
`default` has other defaults: {default}.
"""
_PAIRS = """### Primary-backup

In the table `primary_backup` of a stream; on the command line they are options like the others.
"""
_CLASSES = """### Topic classes

In the list `topics` of `primary_backup`; on the command line `--topic-class FILTER=T,D,L,N`: period,
deadline, tolerance (`inf` is any) and retention.
"""
_GROUPS = """## Durable groups

`millrace group create` and `alter`, `POST /v1/groups` and `PATCH /v1/groups/NAME`; `start` only when a group
is made.
"""
_CONFIGURATION = """## Configuration

One TOML file (`--config`), environment variables `MILLRACE_SECTION__KEY`, and `--set section.key=value`, in
rising order. `millrace config` prints what is in force.
"""


def value(given: object) -> str:
    if isinstance(given, Address):
        return f"`{given}`"
    plain = msgspec.to_builtins(given)
    return "" if plain in ("", None, (), []) or isinstance(plain, dict) else f"`{plain}`"


def table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def of_struct(fields: Iterable[Field], *, has_options: bool = True) -> str:
    columns = ("setting", "option", "default", "allowed", "what it is", "concerns")
    rows = [
        (
            f"`{field.name}`",
            f"`{field.option}`" if has_options and field.name not in ("name", "primary_backup") else "",
            "required" if field.is_required else value(field.default),
            field.expected,
            field.description,
            ", ".join(field.kinds),
        )
        for field in fields
    ]
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    return table(tuple(columns[at] for at in kept), [tuple(row[at] for at in kept) for row in rows])


def page() -> str:
    plain = StreamSpec(name="s", filters=("s",))
    others = [
        f"`{name} = {msgspec.to_builtins(getattr(DEFAULT_SPEC, name))}`"
        for name in StreamSpec.fields()
        if name not in ("name", "filters") and getattr(DEFAULT_SPEC, name) != getattr(plain, name)
    ]
    parts = [
        _HEAD,
        _STREAMS.format(default=", ".join(others)),
        of_struct(StreamSpec.fields().values()),
        _PAIRS,
        of_struct(PairSpec.fields().values()),
        _CLASSES,
        of_struct(TopicClass.fields().values(), has_options=False),
        _GROUPS,
        of_struct(NewDurableGroup.fields().values()),
        _CONFIGURATION,
    ]
    for section in SECTIONS:
        fields = [SETTINGS[name] for name in SETTINGS if name.startswith(f"{section}.")]
        parts += [f"### {section}\n", of_struct(fields, has_options=False)]
    return "\n".join(parts)


def test_the_page_shows_every_setting_as_it_is(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page())
        return
    assert PAGE.read_text() == page(), "a setting changed: run again with --rewrite"
