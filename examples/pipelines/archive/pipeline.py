"""Archive: every message of a stream into a Parquet lake, by date and by the first level of its topic.

    millrace pipeline run examples/pipelines/archive/pipeline.py --set lake=/tmp/lake --set stream=telemetry
    python examples/pipelines/archive/compact.py /tmp/lake

Files lie in `date=.../root=.../batch=N`. A batch that is repeated after a crash has the same rows (its
offsets are in the checkpoint) and replaces its own directories: nothing is there twice. `compact.py` makes
one file of the many of a day that is over.
"""

from pyspark.sql import functions as f


def build(flow):
    lake = flow.setting("lake")
    messages = flow.source(flow.setting("stream", "default"))
    rows = messages.withColumn("date", f.to_date("timestamp")).withColumn(
        "root", f.element_at(f.split("topic", "/"), 1)
    )

    def write(batch, number: int) -> None:
        (
            batch.withColumn("batch", f.lit(number))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy("date", "root", "batch")
            .parquet(lake)
        )

    flow.sink("archive", rows, each_batch=write)
