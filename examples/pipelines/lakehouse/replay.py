"""Publish a Delta Lake table of messages to topics, as it is or as it was at an earlier version.

    python examples/pipelines/lakehouse/replay.py TABLE --jars JARS                              # its versions
    python examples/pipelines/lakehouse/replay.py TABLE --jars JARS --version 3 --below replay   # publish one

The messages come to `replay/` and their old topic, in the order of each shard. The writer is named after the
table and its version, so a replay that is repeated, for instance after it died half way, publishes nothing
twice.
"""

import argparse
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def session(jars: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("replay")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def show_versions(spark: SparkSession, table: str) -> None:
    """A line for each version: its number and how many rows the table had."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("version").collect()
    for version in sorted(row.version for row in history):
        rows = spark.read.format("delta").option("versionAsOf", version).load(table).count()
        print(f"version {version}: {rows} messages")


def publish(spark: SparkSession, table: str, version: int, below: str, url: str) -> None:
    rows = (
        spark.read.format("delta")
        .option("versionAsOf", version)
        .load(table)
        # One partition for each shard, so that the order of a topic is kept.
        .repartition("shard")
        .sortWithinPartitions("offset")
        .select(f.concat(f.lit(f"{below}/"), "topic").alias("topic"), "payload")
    )
    writing = rows.write.format("millrace").mode("append").option("url", url)
    # `batch` stays 0: a replay is one batch of a writer of its own.
    writing.option("writer", f"replay.{os.path.basename(table.rstrip('/'))}.{version}").option(
        "batch", "0"
    ).save()


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish a Delta Lake table of messages to topics.")
    parser.add_argument("table")
    parser.add_argument("--jars", required=True, help="the jars of Delta Lake, separated by commas")
    parser.add_argument("--version", type=int, help="without it, the versions are listed")
    parser.add_argument("--below", default="replay", help="the topic level before the old topics")
    parser.add_argument("--url", default="http://127.0.0.1:18831")
    given = parser.parse_args()
    spark = session(given.jars)
    try:
        if given.version is None:
            show_versions(spark, given.table)
        else:
            publish(spark, given.table, given.version, given.below, given.url)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
