"""Streams in Spark SQL: temporary views are read and written; tables of the catalog are refused clearly."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.test_sink_stream import payloads

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeStream = Callable[..., str]


@pytest.fixture
def table(spark: Any) -> Iterator[str]:
    yield "millrace_table"
    spark.sql("DROP TABLE IF EXISTS millrace_table")


def test_a_view_is_read_and_inserted_into(
    spark: Any, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """INSERT that names columns, one for the whole view with null where the broker decides, and one that
    would set an offset."""
    stream = make_stream(shards=2)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {stream} USING millrace "
        f"OPTIONS (url '{node.url}', stream '{stream}', topics '{stream}/#')"
    )
    spark.sql(f"INSERT INTO {stream} (topic, payload) VALUES ('{stream}/a', CAST('1' AS BINARY))")
    spark.sql(
        f"INSERT INTO {stream} SELECT '{stream}/b', null, null, null, CAST('2' AS BINARY), 2, true, null, "
        "'text/plain', null"
    )
    assert payloads(http, stream) == Counter([b"1", b"2"])
    rows = spark.sql(f"SELECT topic, qos, retain, content_type FROM {stream} ORDER BY topic").collect()
    assert [tuple(row) for row in rows] == [
        (f"{stream}/a", 1, False, None),
        (f"{stream}/b", 2, True, "text/plain"),
    ]
    with pytest.raises(Exception, match="there is no column 'offset' to write"):
        spark.sql(
            f"INSERT INTO {stream} (topic, payload, offset) SELECT '{stream}/c', payload, 1L FROM {stream}"
        )
    assert payloads(http, stream).total() == 2


def test_tables_of_the_catalog_are_refused(spark: Any, table: str) -> None:
    """Spark hands over no options of such a table, so a row would go to a node that nobody named. The source
    in Java sees that it is such a table; the one in Python only that there is no option."""
    view = "use CREATE TEMPORARY VIEW"
    options = "OPTIONS (url 'http://127.0.0.1:1', stream 's')"
    with pytest.raises(Exception, match=view):
        spark.sql(f"CREATE TABLE {table} USING millrace {options}")
    spark.sql(f"CREATE TABLE {table} (topic STRING, payload BINARY) USING millrace {options}")
    with pytest.raises(Exception, match=f"name what to read|{view}"):
        spark.sql(f"SELECT * FROM {table}").collect()
    with pytest.raises(Exception, match=f"name the nodes to write to|{view}"):
        spark.sql(f"INSERT INTO {table} VALUES ('a', CAST('x' AS BINARY))")


def test_a_write_without_an_address_is_refused(spark: Any) -> None:
    frame = spark.sql("select 'a' as topic, '1' as payload")
    with pytest.raises(Exception, match="name the nodes to write to"):
        frame.write.format("millrace").mode("append").save()
