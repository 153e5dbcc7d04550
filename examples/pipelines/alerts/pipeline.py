"""Alerts: one per episode and device, from state that outlives restarts.

    millrace stream create telemetry 'telemetry/#' --shards 2
    python examples/devices.py --seconds 120 --hot 2 &
    millrace pipeline run examples/pipelines/alerts/pipeline.py --set limit=30 --set after=3

A device that reports more than `limit` degrees `after` times in a row is in an episode: one message on
`alerts/DEVICE` when it begins, one when it ends. Spark keeps the count for each device (transformWithState);
with the exactly-once sink an episode is told once, whatever dies in between. A reading that is sent again
counts once. A device whose name cannot be part of a topic is passed over.
"""

import json
from collections.abc import Iterator

from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import Row

READING = "device string, sequence bigint, time_ms bigint, temperature double"
ALERT = "topic string, payload string"
# A level of a topic.
DEVICE = r"^[^+#/\x00]{1,200}$"


class Episodes(StatefulProcessor):
    """State of a device: hot readings in a row, whether an episode is on, and the last reading's number."""

    def __init__(self, limit: float, after: int) -> None:
        self._limit, self._after = limit, after

    def init(self, handle) -> None:
        self._state = handle.getValueState("episode", "hot int, is_on boolean, last bigint")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        (device,) = key
        hot, is_on, last = self._state.get() if self._state.exists() else (0, False, None)
        for row in sorted(rows, key=lambda row: row.sequence):
            if row.sequence == last:
                continue
            last = row.sequence
            hot = hot + 1 if row.temperature > self._limit else 0
            if hot >= self._after and not is_on:
                is_on = True
                yield self._alert(device, "begins", row)
            elif hot == 0 and is_on:
                is_on = False
                yield self._alert(device, "ends", row)
        self._state.update((hot, is_on, last))

    def close(self) -> None:
        pass

    def _alert(self, device: str, what: str, row: Row) -> Row:
        text = json.dumps({"device": device, "episode": what, "sequence": row.sequence})
        return Row(topic=f"alerts/{device}", payload=text)


def build(flow):
    limit, after = float(flow.setting("limit", "30")), int(flow.setting("after", "3"))
    messages = flow.source("telemetry", topics="telemetry/#")
    readings = messages.select(f.from_json(f.col("payload").cast("string"), READING).alias("reading")).select(
        "reading.*"
    )
    alerts = (
        readings.where(f.col("device").rlike(DEVICE))
        .where("sequence is not null and temperature is not null")
        .groupBy("device")
        .transformWithState(Episodes(limit, after), ALERT, "append", "none")
    )
    flow.sink("alerts", alerts)
