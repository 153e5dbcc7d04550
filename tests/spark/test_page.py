"""The examples of docs/reference/spark.md, run at the node of the tests and in its directories."""

import re
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.filling import fill
from spark.test_sink_stream import payloads

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md"
_BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_examples_run(spark: Any, http: Http, node: BrokerProcess, tmp_path: Path) -> None:
    """Reading, a stream to Parquet, SQL, both ways of writing; those of pipelines are run elsewhere."""
    http.call("POST", "/v1/streams", {"name": "sensors", "filters": ["sensors/#"], "shards": 2})
    http.call("POST", "/v1/streams", {"name": "counts", "filters": ["counts/#"], "shards": 1})
    fill(node.port, [("sensors/hall/temp", b"21.%d" % n) for n in (1, 2, 3)])
    fill(node.port, [("sensors/hall/door", b"open")])
    text = PAGE.read_text().partition("\n## Pipelines")[0]
    text = text.replace(
        '.option("stream", "sensors")', f'.option("url", "{node.url}").option("stream", "sensors")'
    )
    text = text.replace("http://127.0.0.1:18831", node.url).replace("/tmp/spark-tour", str(tmp_path / "tour"))
    names: dict[str, Any] = {}
    languages = []
    for language, code in _BLOCK.findall(text):
        languages.append(language)
        if language == "sql":
            for statement in filter(str.strip, code.split(";")):
                spark.sql(statement).collect()
        else:
            exec(compile(code, str(PAGE), "exec"), names)
    assert languages == ["python", "python", "sql", "python", "python"]
    found = payloads(http, "sensors")
    # Four messages, one INSERT, a thousand rows of a batch write, and the three temperatures in Celsius.
    assert found.total() == 4 + 1 + 1_000 + 3 and found[b"21.1"] == 2
    assert payloads(http, "counts").total() == 7
    assert spark.read.parquet(str(tmp_path / "tour-table")).count() == 4
