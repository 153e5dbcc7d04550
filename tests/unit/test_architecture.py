"""What the pictures of docs/understand/architecture.md name exists, and each picture stays short."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "millrace"
PICTURES = re.findall(
    r"```path\n(.*?)```", (ROOT / "docs" / "understand" / "architecture.md").read_text(), re.DOTALL
)
STEP = re.compile(r"^(?:[A-Z]| ) {2}(\S+\.py) +(\S+) {2,}\S")


def steps(picture: str) -> list[tuple[str, str]]:
    found = []
    for line in picture.splitlines():
        if line.strip().startswith("---"):
            continue
        match = STEP.match(line)
        assert match is not None, f"not a step of a picture: {line!r}"
        found.append((match[1], match[2]))
    return found


def names_in(path: Path) -> set[str]:
    """Functions, and methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = {m.name for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)}
            names |= {f"{node.name}.{method}" for method in methods}
    return names


def test_there_is_a_picture_for_every_path() -> None:
    assert len(PICTURES) == 8


@pytest.mark.parametrize("picture", PICTURES)
def test_what_a_picture_names_exists(picture: str) -> None:
    for file, name in steps(picture):
        path = SOURCE / file
        assert path.is_file(), f"{file} is not there"
        assert name in names_in(path), f"{file} has no {name}"


@pytest.mark.parametrize("picture", PICTURES)
def test_a_path_enters_no_file_by_many_functions(picture: str) -> None:
    """Two at most: what goes in, and the answer that comes back."""
    named: dict[str, set[str]] = {}
    for file, name in steps(picture):
        named.setdefault(file, set()).add(name)
    assert {file: names for file, names in named.items() if len(names) > 2} == {}
