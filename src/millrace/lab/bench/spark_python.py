"""The source in Python under another name: where the jar is in the session, `millrace` is the one in Java."""

from millrace.spark.source import MillraceSource

MILLRACE_PYTHON = "millrace-python"


class PythonSource(MillraceSource):
    @classmethod
    def name(cls) -> str:
        return MILLRACE_PYTHON
