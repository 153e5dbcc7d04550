"""`millrace export`: the messages of a stream as a file."""

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.shared.common import AsJson, Yes, confirm, example, print_done, single
from millrace.cli.shared.http_options import DEFAULT, HttpUrl

app = single()


@app.command(
    epilog=example(
        "millrace export sensors sensors.parquet",
        "millrace export sensors yesterday.ndjson --shard 17 --from 5000 --to 9000",
    )
)
def export(
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="It ends with .parquet or .ndjson.")],
    start: Annotated[int | None, typer.Option("--from", metavar="OFFSET", min=0, help="The first.")] = None,
    end: Annotated[int | None, typer.Option("--to", metavar="OFFSET", min=0, help="Up to it.")] = None,
    shard: Annotated[int | None, typer.Option(metavar="N", help="Only this shard.")] = None,
    yes: Yes = False,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Write the messages of a stream to a file, up to where each shard ends now. Every block is proved by its
    checksums and the messages are counted. After an interruption the same command goes on where it was, out
    of FILE.parts beside the file."""
    from millrace.cli.recovery.transfer_options import Progress, files, reader
    from millrace.transfer import copying
    from millrace.transfer.kinds import format_of

    kind, parts = format_of(file), file.with_name(file.name + ".parts")
    if file.exists():
        confirm(f"Replace {file}?", yes=yes)
    progress = Progress(is_quiet=json)
    with files():
        copy = copying.Copy(reader(url), stream, parts, kind, progress)
        manifest = copy.run(shard=shard, start=start, end=end)
        copying.join(parts, manifest, file)
        copying.remove(parts, manifest.paths(parts))
    progress.end()
    counts = {str(record.shard): record.rows for record in manifest.shards}
    gone = sum(record.gone for record in manifest.shards)
    lost = f"; retention removed {gone} more meanwhile" if gone else ""
    words = ", ".join(f"shard {number}: {rows}" for number, rows in counts.items())
    print_done(
        f"exported {manifest.rows} messages of stream {stream} to {file} ({words}){lost}",
        as_json=json,
        stream=stream,
        file=str(file),
        messages=manifest.rows,
        shards=counts,
        gone=gone,
    )
