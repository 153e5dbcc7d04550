"""Temperatures above 90 go from the stream `plant` to topics `warnings/...`; a topic that has no room for
another level (a node takes 128, in 65,535 bytes) is passed over."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
URL = spark.conf.get("spark.millrace.url", "http://127.0.0.1:18831")

dp.create_sink("warnings", "millrace", {"url": URL})


@dp.temporary_view
def readings() -> DataFrame:
    source = spark.readStream.format("millrace").options(url=URL, stream="plant", startingOffsets="earliest")
    return source.load().selectExpr("topic", "payload", "cast(cast(payload as string) as double) as celsius")


@dp.append_flow(target="warnings")
def hot() -> DataFrame:
    return (
        spark.readStream.table("readings")
        .where("celsius > 90 and size(split(topic, '/')) < 128 and octet_length(topic) < 65000")
        .selectExpr("concat('warnings/', topic) as topic", "payload")
    )
