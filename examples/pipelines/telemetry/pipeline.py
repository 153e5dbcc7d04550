"""Device telemetry: JSON over MQTT -> validated, deduplicated, averaged by window -> topics and a table.

    millrace stream create telemetry 'telemetry/#' --shards 2
    python examples/devices.py --seconds 120 &
    millrace pipeline run examples/pipelines/telemetry/pipeline.py --set tables=/tmp/telemetry

A reading is `{"device": "d7", "sequence": 12, "time_ms": 1789000000000, "temperature": 21.5}`. A device that
is not sure whether a reading arrived sends it again; (device, sequence) tells. What is no reading goes to
`dead-letter/telemetry` as it came, up to its first MiB; so do a device whose name cannot be part of a topic,
and a time more than an hour ahead of the broker's, which would move the watermark past every other device.
Averages go to `averages/DEVICE` and to a Parquet table, once their window is older than the watermark: a
reading that comes later than that is dropped.
"""

from pyspark.sql import functions as f

READING = "device string, sequence bigint, time_ms bigint, temperature double"
# A level of a topic.
DEVICE = r"^[^+#/\x00]{1,200}$"
AHEAD_MS_MAX = 3_600_000
PAYLOAD_BYTES_MAX = 1024 * 1024


def build(flow):
    window = flow.setting("window", "10 seconds")
    watermark = flow.setting("watermark", "1 minute")
    tables = flow.setting("tables")

    messages = flow.source("telemetry", topics="telemetry/#")
    parsed = messages.withColumn("reading", f.from_json(f.col("payload").cast("string"), READING))
    is_good = (
        f.col("reading.device").rlike(DEVICE)
        & f.col("reading.sequence").isNotNull()
        & f.col("reading.temperature").between(-80.0, 200.0)
        & f.col("reading.time_ms").between(0, f.unix_millis("timestamp") + AHEAD_MS_MAX)
    )
    is_good = f.coalesce(is_good, f.lit(False))

    readings = (
        parsed.where(is_good)
        .select("reading.*")
        .withColumn("time", f.timestamp_millis("time_ms"))
        .withWatermark("time", watermark)
        .dropDuplicatesWithinWatermark(["device", "sequence"])
    )
    averages = (
        readings.groupBy(f.window("time", window), "device")
        .agg(f.avg("temperature").alias("mean"), f.count("*").alias("readings"))
        .select(
            "device",
            f.col("window.start").alias("start"),
            f.col("window.end").alias("end"),
            "mean",
            "readings",
        )
    )
    messages_out = averages.select(
        f.concat(f.lit("averages/"), "device").alias("topic"),
        f.to_json(f.struct("device", "start", "end", "mean", "readings")).alias("payload"),
    )

    flow.sink("averages", messages_out)
    flow.sink("averages-table", averages, format="parquet", path=f"{tables}/averages")
    # A packet has room for a MiB and more, but the topic may be longer than the one it came on.
    bad = parsed.where(~is_good).select(
        f.substring("payload", 1, PAYLOAD_BYTES_MAX).alias("payload"),
        f.lit("dead-letter/telemetry").alias("topic"),
    )
    flow.sink("dead-letters", bad)
