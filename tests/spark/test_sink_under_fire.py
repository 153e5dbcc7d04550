"""The campaign of kills in small: driver, worker and node once each, and every row once."""

import asyncio
import shutil

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")

from campaigns.sink_under_fire import campaign

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.skipif(
    shutil.which("java") is None, reason="Java is not installed; Spark needs Java 17 or later"
)
def test_three_kills_lose_and_double_nothing() -> None:
    assert asyncio.run(campaign(3, 20_000, 1))
