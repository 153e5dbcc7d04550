"""The SQL of pipelines: what is ours, what is Spark's, and where a statement ends. No Spark is started."""

from typing import Any

import pytest

from millrace.errors import ConfigError
from millrace.spark import sql


class Frame:
    def __init__(self, flow: "Recorder", text: str) -> None:
        self._flow, self._text = flow, text

    def createOrReplaceTempView(self, name: str) -> None:
        self._flow.calls.append(("view", name, self._text))


class Recorder:
    """A flow that writes down what it is asked for; it is its own session."""

    def __init__(self, **settings: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._settings = settings
        self.spark = self

    def sql(self, text: str) -> str:
        self.calls.append(("sql", text))
        return text

    def source(self, **options: str) -> Frame:
        return Frame(self, str(sorted(options.items())))

    def sink(self, name: str, frame: str, **options: str) -> None:
        self.calls.append(("sink", name, frame, options))

    def setting(self, name: str) -> str:
        return self._settings[name]


def run(text: str, **settings: str) -> list[tuple[Any, ...]]:
    flow: Any = Recorder(**settings)
    sql.build(flow, text)
    calls: list[tuple[Any, ...]] = flow.calls
    return calls


def test_statements_end_at_semicolons_that_are_not_quoted() -> None:
    text = "SELECT ';' -- one; two\n; /* ; */ SELECT \"a;b\", `c;d` ;; SELECT 'it''s;'"
    assert list(sql.statements(text)) == ["SELECT ';'", 'SELECT "a;b", `c;d`', "SELECT 'it''s;'"]


@pytest.mark.parametrize("text", [r"'it\'s; x'", r'"say \";\""', r"'\\'", r"r'\'", r'R"\d;"'])
def test_a_quote_behind_a_backslash_ends_nothing_except_in_raw_text(text: str) -> None:
    assert list(sql.statements(f"SELECT {text}; SELECT 2")) == [f"SELECT {text}", "SELECT 2"]


def test_hints_are_for_spark_and_other_comments_for_nobody() -> None:
    text = "SELECT /*+ BROADCAST(d) */ x /* + y; */ FROM t"
    assert list(sql.statements(text)) == ["SELECT /*+ BROADCAST(d) */ x   FROM t"]


def test_a_stream_is_a_view_over_the_source() -> None:
    assert run("create stream r using millrace options (stream 'plant', topics 'a/+,b/#')") == [
        ("view", "r", "[('stream', 'plant'), ('topics', 'a/+,b/#')]")
    ]
    assert run("CREATE STREAM everything") == [("view", "everything", "[]")]


def test_an_insert_is_a_sink_with_its_format_mode_and_options() -> None:
    text = "INSERT INTO hot-ones MODE update USING parquet OPTIONS (path = '/x/it''s') SELECT * FROM r"
    assert run(text) == [
        ("sql", "SELECT * FROM r"),
        ("sink", "hot-ones", "SELECT * FROM r", {"format": "parquet", "mode": "update", "path": "/x/it's"}),
    ]
    with_clause = "INSERT INTO out WITH a AS (SELECT 1) SELECT * FROM a"
    assert run(with_clause)[1] == (
        "sink",
        "out",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        {"format": "millrace", "mode": "append"},
    )


def test_everything_else_is_for_spark_and_settings_are_filled_in() -> None:
    assert run("CREATE TEMPORARY VIEW v AS SELECT '${who}'", who="ann") == [
        ("sql", "CREATE TEMPORARY VIEW v AS SELECT 'ann'")
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("CREATE STREAM r USING kafka", "only USING millrace"),
        ("CREATE STREAM r OPTIONS (stream plant)", "name 'value'"),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run(text)
