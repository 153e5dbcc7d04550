"""The edge function of `vibration.py` moved to Spark: the same inputs, from the log of the same stream.

millrace pipeline run examples/edge_and_spark/pipeline.py

The broker's function keeps its input in the log, so both may run side by side and be compared (`compare.py`).
"""

import vibration
from pyspark import cloudpickle
from pyspark.sql import functions as f

VERDICT = "machine string, payload string"


def build(flow):
    # The workers cannot import what lies beside this file: the function travels with the query.
    cloudpickle.register_pickle_by_value(vibration)
    judge = f.udf(lambda payload: vibration.verdict(bytes(payload)), VERDICT)
    inputs = flow.source("vibration", topics="vibration/#")
    verdicts = inputs.select(judge("payload").alias("verdict")).where("verdict is not null")
    flow.sink(
        "verdicts",
        verdicts.select(
            f.concat(f.lit("verdicts/spark/"), "verdict.machine").alias("topic"),
            f.col("verdict.payload").alias("payload"),
        ),
    )
