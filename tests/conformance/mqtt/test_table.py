"""The tables themselves: every statement has a test or a reason, and never both."""

import ast
from collections import Counter

import pytest

from conformance.mqtt.table import HERE, STATEMENTS, read_table

DECORATORS = {"v5": "covers", "v311": "covers311"}


def covered(standard: str) -> set[str]:
    """The ids that tests name, read from their source, so that this test needs no other to be imported."""
    found = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == DECORATORS[standard]:
                    assert node.name.startswith("test_"), f"{path.name}: {node.name} is never run"
                    found |= {ast.literal_eval(argument) for argument in call.args}
    return found


def reasons(standard: str) -> dict[str, str]:
    return {row[0]: row[1] for row in read_table(f"reasons_{standard}.tsv")}


@pytest.mark.parametrize("standard", DECORATORS)
def test_every_statement_has_a_test_or_a_reason(standard: str) -> None:
    assert STATEMENTS[standard] - covered(standard) - set(reasons(standard)) == set()


@pytest.mark.parametrize("standard", DECORATORS)
def test_no_unknown_statement_is_named(standard: str) -> None:
    assert (covered(standard) | set(reasons(standard))) - STATEMENTS[standard] == set()


@pytest.mark.parametrize("standard", DECORATORS)
def test_a_statement_with_a_test_needs_no_reason(standard: str) -> None:
    assert covered(standard) & set(reasons(standard)) == set()


@pytest.mark.parametrize("standard", DECORATORS)
def test_the_tables_are_well_formed(standard: str) -> None:
    """Three columns, no id twice, numbered from 1 without a gap in each section."""
    rows = read_table(f"statements_{standard}.tsv")
    assert all(len(row) == 3 and row[1] in ("server", "client", "both") and row[2] for row in rows)
    ids = [row[0] for row in rows]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    sections: dict[str, set[int]] = {}
    for name in ids:
        section, _, number = name.removeprefix("MQTT-").rpartition("-")
        sections.setdefault(section, set()).add(int(number))
    # The only number the standards leave out: MQTT 5 has no [MQTT-2.2.1-1].
    sections.get("2.2.1", set()).add(1)
    assert [key for key, numbers in sections.items() if numbers != set(range(1, len(numbers) + 1))] == []
    assert len(ids) == {"v5": 251, "v311": 141}[standard]
    assert all(len(row) == 2 and row[1] for row in read_table(f"reasons_{standard}.tsv"))
