"""The Spark benchmark without Spark: what becomes of samples, and what Maven is asked for."""

import os
import time
from xml.etree import ElementTree

import pytest

from millrace.lab.bench import kafka, maven, spark_bench, spark_sides
from millrace.lab.bench.spark_bench import COUNT, TO_SINK, WRITE, Sample
from millrace.lab.bench.spark_sides import Cpu


def _sample(case: str, side: str, number: int, seconds: float, **more: object) -> Sample:
    cpu = Cpu(0.5 * seconds, 1.0 * seconds, 0.25 * seconds)
    fields = {"parts": 8, "rows": 1_000, **more}
    return Sample(case=case, side=side, round=number, seconds=seconds, cpu=cpu, **fields)  # type: ignore[arg-type]


def _lines(samples: list[Sample]) -> dict[str, dict[str, str]]:
    rows = spark_bench.table(spark_bench.figures(samples, 100), "millrace")
    return {row["case"]: row for row in rows}


def test_rates_are_medians_and_ratios_are_ours_by_theirs() -> None:
    samples = [_sample(COUNT, "millrace", n, s) for n, s in enumerate((0.25, 0.5, 9.0))]
    samples += [_sample(COUNT, "kafka-tuned", n, 2.0) for n in range(3)]
    lines = _lines(samples)
    assert lines[COUNT]["millrace"] == "2,000"
    assert lines[COUNT]["/ kafka-tuned"] == "4.00"
    assert lines[COUNT]["reach"] == ">= 3 x kafka-tuned: yes"
    assert lines[f"{COUNT}: CPU, broker"]["kafka-tuned"] == "1,000"


def test_a_micro_batch_is_a_cost_and_its_shards_are_named() -> None:
    samples = [_sample(TO_SINK, "millrace", 0, 1.0, parts=1, batch_ms=(300.0, 200.0, 250.0))]
    samples += [_sample(TO_SINK, "kafka", 0, 1.0, parts=1, batch_ms=(100.0,))]
    line = _lines(samples)[f"{TO_SINK}, 1 shard"]
    assert (line["millrace"], line["unit"], line["/ kafka"]) == ("250", "ms", "2.50")
    assert line["reach"] == "<= 1 x kafka: no"


def test_writes_show_whether_the_rate_falls_and_what_the_disk_holds() -> None:
    samples = [_sample(WRITE, "millrace", n, 1.0 + n, disk_bytes=200_000) for n in range(8)]
    lines = _lines(samples)
    assert lines["write, first 2 of 8 rounds"]["millrace"] == "750"
    assert lines["write, last 2 of 8 rounds"]["millrace"] == "134"
    assert lines["disk after a write"]["millrace"] == "2.00"


def test_without_a_peer_the_target_is_shown_and_not_judged() -> None:
    line = _lines([_sample(COUNT, "millrace", 0, 1.0)])[COUNT]
    assert line["reach"] == ">= 3 x kafka-tuned" and "/ kafka-tuned" not in line


def test_maven_is_asked_for_the_connector_alone_and_for_all_that_the_broker_needs() -> None:
    for artifacts, alone in ((kafka.BROKER, False), (kafka.CONNECTOR, True)):
        text = maven.pom(artifacts, alone=alone)
        names = [one.findtext("artifactId") for one in ElementTree.fromstring(text).iter("dependency")]
        assert names == [one.name for one in artifacts]
        assert ("<exclusion>" in text) is alone


def test_without_maven_there_are_no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert kafka.fetch_jars() is None


def test_the_account_of_this_process_is_its_cpu() -> None:
    own, _ = spark_sides._cpu_s(os.getpid())
    assert own == pytest.approx(time.process_time(), abs=0.5)
    assert spark_sides.descendants(os.getpid())[0] == os.getpid()
    assert spark_sides._cpu_s(2**30) == (0.0, 0.0)
