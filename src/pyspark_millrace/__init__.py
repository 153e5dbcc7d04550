"""Found by Spark under the name of the format: `spark.read.format("millrace")` needs no registration."""

from millrace.spark.source import MillraceSource as DefaultSource

__all__ = ["DefaultSource"]
