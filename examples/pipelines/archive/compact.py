"""One Parquet file for each topic root of a day that is over, instead of one for each batch.

    python examples/pipelines/archive/compact.py LAKE [--before 2026-11-15]

The new file is written aside, under a name that readers pass over. Once it is whole a mark (`_SUCCESS`) names
the directories that are in it; these go, and the new one takes the name `batch=-1`. A run that dies is
finished by the next: before the mark nothing was removed, after it nothing is read again. The pipeline may
run meanwhile: what it adds is in no mark. The last batch of the lake stays as it is, since a pipeline that
died before it noted the batch as done writes it again.
"""

import argparse
import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq

ASIDE, LIST, WHOLE, COMPACTED = "_compact", "_list", "_SUCCESS", "batch=-1"


def compact(lake: Path, before: date) -> int:
    """How many partitions were compacted."""
    last = max((_number(batch) for batch in lake.glob("date=*/root=*/batch=*")), default=0)
    count = 0
    for day in sorted(lake.glob("date=*")):
        if date.fromisoformat(day.name.removeprefix("date=")) < before:
            count += sum(_compact(root, last) for root in sorted(day.glob("root=*")))
    return count


def _number(batch: Path) -> int:
    return int(batch.name.removeprefix("batch="))


def _compact(partition: Path, last: int) -> bool:
    aside = partition / ASIDE
    if not (aside / WHOLE).exists():
        batches = sorted(batch for batch in partition.glob("batch=*") if _number(batch) < last)
        if len(batches) < 2:
            return False
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        files = [str(file) for batch in batches for file in sorted(batch.glob("*.parquet"))]
        rows = ds.dataset(files, format="parquet")
        # Times as Spark writes them: it does not read the nanoseconds that Arrow would write.
        with pq.ParquetWriter(
            aside / "part-0.parquet", rows.schema, use_deprecated_int96_timestamps=True
        ) as writer:
            for piece in rows.to_batches():
                writer.write_batch(piece)
        (aside / LIST).write_text("\n".join(batch.name for batch in batches))
        (aside / LIST).replace(aside / WHOLE)
    for name in (aside / WHOLE).read_text().splitlines():
        if (partition / name).exists():
            shutil.rmtree(partition / name)
    aside.rename(partition / COMPACTED)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Compact the days of a lake that are over.")
    parser.add_argument("lake", type=Path)
    parser.add_argument("--before", type=date.fromisoformat, default=datetime.now(UTC).date())
    given = parser.parse_args()
    print(f"{compact(given.lake, given.before)} partitions compacted")


if __name__ == "__main__":
    main()
