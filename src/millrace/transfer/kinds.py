"""The two kinds of files that messages are kept in: Parquet, which needs PyArrow, and lines of JSON."""

from pathlib import Path

from millrace.errors import ConfigError
from millrace.transfer.formats import Format
from millrace.transfer.lines import Lines


def format_of(path: Path) -> Format:
    """By the ending of the name; ConfigError where it is none, or what it needs is not installed."""
    if path.suffix == ".parquet":
        return parquet()
    if path.suffix in (".ndjson", ".jsonl"):
        return Lines()
    raise ConfigError(f"{path.name!r}: the name of the file ends with .parquet or .ndjson")


def parquet() -> Format:
    if not has_parquet():
        raise ConfigError(
            "Parquet needs PyArrow: pip install 'millrace[spark]', or name a file that ends with .ndjson"
        )
    from millrace.transfer.parquet import Parquet

    return Parquet()


def has_parquet() -> bool:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


def best_format() -> Format:
    """Parquet where it can be written."""
    if has_parquet():
        return parquet()
    return Lines()


def format_named(suffix: str) -> Format:
    return format_of(Path(f"part{suffix}"))
