"""Source and sink over HTTPS: an authority of our own, and a token that is scoped to what the query needs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.processes import BrokerProcess, millrace
from millrace.client.http import Http

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path]]:
    """A node with HTTPS by the certificates of `millrace tls init`, where nobody comes in without a name.
    The directory has the authority (ca.pem) and a token for the topics below `secure/` (token)."""
    directory = tmp_path_factory.mktemp("secure")

    def run(*words: str, stdin: str = "") -> str:
        done = millrace(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    users = str(directory / "users.toml")
    run("user", "add", "ann", "--password-stdin", "--users", users, stdin="wonder\n")
    run("acl", "add", "ann", "allow", "all", "#", "--users", users)
    found = json.loads(run("tls", "init", str(directory), "--json"))["settings"]["tls"]
    settings = [f"tls.certificate={found['certificate']}", f"tls.key={found['key']}"]
    settings += ["listeners.https=127.0.0.1:0", f"access.users_file={users}", "access.anonymous=never"]
    node = BrokerProcess(directory / "node", *(word for one in settings for word in ("--set", one)))
    try:
        node.wait_ready()
        http = Http(node.url.replace("http://", "http://ann@"), password="wonder")
        http.call("POST", "/v1/streams", {"name": "secure", "filters": ["secure/#"], "shards": 2})
        http.call("POST", "/v1/streams", {"name": "closed", "filters": ["closed/#"], "shards": 1})
        made = http.call("POST", "/v1/tokens", {"name": "spark", "user": "ann", "allow": ["all:secure/#"]})
        (directory / "token").write_text(f"{made['token']}\n")
        yield node, directory
    finally:
        node.stop()
        print(node.log)


def test_rows_go_out_and_come_back_over_https_with_a_token(
    spark: "SparkSession", secure: tuple[BrokerProcess, Path]
) -> None:
    node, directory = secure
    url = f"https://127.0.0.1:{node.ports['https']}"
    access = {"url": url, "caFile": str(directory / "ca.pem"), "tokenFile": str(directory / "token")}
    rows = spark.range(500).selectExpr("concat('secure/', id % 7) AS topic", "cast(id AS string) AS payload")
    rows.write.format("millrace").options(**access).mode("append").save()
    query = (
        spark.readStream.format("millrace")
        .options(**access, stream="secure", startingOffsets="earliest")
        .load()
        .selectExpr("replace(topic, 'secure/', 'secure/copy/') AS topic", "payload")
        .writeStream.format("millrace")
        .options(**access)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(240)
    read = spark.read.format("millrace").options(**access, stream="secure", topics="secure/copy/#").load()
    assert sorted(int(row.payload) for row in read.collect()) == list(range(500))
    # What the token does not allow is refused, though its user may.
    with pytest.raises(Exception, match=r"(?i)not allow|may not|forbidden|403"):
        elsewhere = rows.selectExpr("'closed/t' AS topic", "payload")
        elsewhere.write.format("millrace").options(**access).mode("append").save()


@pytest.mark.parametrize("missing", ["caFile", "tokenFile"])
def test_without_the_authority_or_the_token_nothing_is_read(
    spark: "SparkSession", secure: tuple[BrokerProcess, Path], missing: str
) -> None:
    """The error says what is missing: a certificate that cannot be trusted, or a name."""
    node, directory = secure
    access = {
        "url": f"https://127.0.0.1:{node.ports['https']}",
        "caFile": str(directory / "ca.pem"),
        "tokenFile": str(directory / "token"),
        "connectTimeout": "2s",
        "requestTimeout": "2s",
    }
    del access[missing]
    with pytest.raises(Exception, match="(?i)certificate" if missing == "caFile" else "(?i)user name"):
        spark.read.format("millrace").options(**access, stream="secure").load().count()
