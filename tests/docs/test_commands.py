"""Every command in a code block of the README and of docs/ exists, with its options.

This reads the commands and runs none of them; `test_pages.py` runs those of the pages for newcomers.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from millrace.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from blocks import blocks  # noqa: E402

# The base of all errors of wrong use. Its home differs between versions of typer.
_WrongUse: Any = next(one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException")
_LANGUAGES = ("", "console", "sh", "bash")
_ENDS = {"|", "<", "&", "&&", "||", ";", ">", "2>", ")"}


def pages() -> list[Path]:
    folders = (ROOT / "docs", ROOT / "deploy", ROOT / "examples")
    found = [page for folder in folders for page in sorted(folder.rglob("*.md"))]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *found]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Where a command stands, and its words up to the first pipe or the like."""
    for page in pages():
        if page.name in ("cli.md", "design.md"):
            continue  # made from the program itself; a grammar of commands, with alternatives in brackets
        for block in blocks(page.read_text()):
            if block.language not in _LANGUAGES:
                continue
            body = block.body.replace("\\\n> ", "").replace("\\\n", "")
            for number, line in enumerate(body.splitlines(), block.line):
                if block.language == "console" and not line.startswith("$ "):
                    continue
                plain = re.sub(r"^(\S*/)?(?=(millrace|make|python) )", "", line.removeprefix("$ "))
                if re.match(r"(millrace|make|python) [a-z-]", plain):
                    lexer = shlex.shlex(plain, posix=True, punctuation_chars=True)
                    lexer.commenters = "#"
                    lexer.whitespace_split = True
                    words = list(lexer)
                    end = next((n for n, word in enumerate(words) if word in _ENDS), len(words))
                    yield f"{page.relative_to(ROOT)}:{number}: {line}", words[:end]


def parse(words: list[str]) -> None:
    """Raise what the program would answer to wrong words and options."""
    command: Any = typer.main.get_command(app)
    context, name = None, "millrace"
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, words[:1], parent=context)
        found, command, words = command.resolve_command(context, words)
        name = found or name
    command.make_context(name, words, parent=context)


def test_every_millrace_command_exists_with_its_options() -> None:
    wrong, count = [], 0
    for place, words in commands():
        if words[0] != "millrace" or "..." in words:
            continue
        count += 1
        try:
            parse(words[1:])
        except typer.Exit:
            pass  # --help and --version
        except _WrongUse as error:
            wrong.append(f"{place}\n    {error.format_message()}")
    assert not wrong, "\n".join(wrong)
    assert count > 60, "the search finds the commands that are there"


def test_every_command_in_a_sentence_exists_with_its_options() -> None:
    """Placeholders such as NAME may stand in it, and what a command must have may be missing."""
    wrong, count = [], 0
    for page in pages():
        if page.name in ("cli.md", "design.md"):
            continue
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for found in re.findall(r"`millrace ([a-z][^`]*)`", text):
            if "..." in found:
                continue
            count += 1
            try:
                parse(shlex.split(found))
            except typer.Exit:
                pass
            except _WrongUse as error:
                if re.match(r"No such|Got unexpected", error.format_message()):
                    wrong.append(f"{page.relative_to(ROOT)}: millrace {found}\n    {error.format_message()}")
    assert not wrong, "\n".join(wrong)
    assert count > 60, "the search finds the commands that are there"


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    wrong = [
        place
        for place, words in commands()
        if words[0] == "make" and not {word for word in words[1:] if "=" not in word} <= targets
    ]
    assert not wrong


def test_every_module_that_is_run_exists() -> None:
    wrong = [
        place
        for place, words in commands()
        if words[:2] == ["python", "-m"] and find_spec(words[2].replace("http.server", "http")) is None
    ]
    assert not wrong


def test_a_wrong_option_is_seen() -> None:
    with pytest.raises(_WrongUse, match="qoss"):
        parse(["pub", "a", "b", "--qoss", "1"])
