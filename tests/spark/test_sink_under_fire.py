"""The campaign of kills in small: driver, worker and node die, and every row is there once."""

import asyncio
import shutil

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")

from campaigns.drivers import DECLARED, EACH, SINK
from campaigns.sink_under_fire import campaign

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.skipif(
    shutil.which("java") is None, reason="Java is not installed; Spark needs Java 17 or later"
)
@pytest.mark.parametrize(("kind", "kills"), [(SINK, 4), (EACH, 4), (DECLARED, 3)])
def test_a_few_kills_lose_and_double_nothing(kind: str, kills: int) -> None:
    assert asyncio.run(campaign(kills, 20_000, 1, kind))
