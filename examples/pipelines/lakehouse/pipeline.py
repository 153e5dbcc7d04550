"""Lakehouse: every message of a stream into a Delta Lake table, each once, with the history of the table.

    millrace pipeline run examples/pipelines/lakehouse/pipeline.py --set table=/tmp/lake/plant --set stream=plant \\
        --conf spark.jars=JARS --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \\
        --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog

Delta Lake notes the query and the number of each batch that it has, so a batch that is repeated after a crash
changes nothing. `replay.py` publishes the table, as it is or as it was, to topics again.
"""

from pyspark.sql import functions as f


def build(flow):
    messages = flow.source(flow.setting("stream", "default"))
    rows = messages.select(
        *("topic", "shard", "offset", "timestamp", "payload", "qos", "retain", "publisher"),
        f.to_date("timestamp").alias("date"),
    )
    flow.sink("lake", rows, format="delta", path=flow.setting("table"))
