"""Found by Spark under the name of the format: `spark.read.format("millrace")` needs no registration."""

from pathlib import Path

from millrace.errors import ConfigError
from millrace.spark.source import MillraceSource as DefaultSource

__all__ = ["DefaultSource", "jar"]

_JAR = Path(__file__).with_name("jars") / "millrace-spark.jar"


def jar() -> str:
    """The path of the jar with the source in Java, for `spark.jars`. ConfigError where it was not built."""
    if not _JAR.is_file():
        raise ConfigError(
            f"there is no {_JAR}: this package was built where no Java compiler was; `make jar` in its "
            "source makes it"
        )
    return str(_JAR)
