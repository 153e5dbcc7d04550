"""`millrace import`: a file of messages into a stream, once."""

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.shared.common import AsJson, example, print_done, single
from millrace.cli.shared.http_options import DEFAULT, HttpUrl

app = single()


@app.command(
    "import",
    epilog=example(
        "millrace import sensors sensors.parquet",
        "millrace import sensors sensors.parquet --again second-time",
    ),
)
def import_(
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="It ends with .parquet or .ndjson.")],
    again: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="Import a file once more that was imported before. Each new word imports it once more.",
        ),
    ] = "",
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Publish the messages of a file to a stream, in order and each once. The cluster remembers by the
    content of the file how far it has come: the same command goes on after an interruption, and does nothing
    when all of it is there. Topics must belong to the stream; offsets and times are new."""
    from millrace.cli.recovery.transfer_options import Progress, files, writer
    from millrace.errors import ConfigError
    from millrace.transfer.copying import digest
    from millrace.transfer.kinds import format_of
    from millrace.transfer.loading import Loading

    format_of(file)
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    progress = Progress(is_quiet=json)
    with files(), writer(url) as cluster:
        name = f"import-{digest(file, stream, again)[:40]}"
        loaded = Loading(cluster, stream, name, progress).run([file])
    progress.end()
    counts = {str(shard): rows for shard, rows in sorted(loaded.shards.items())}
    words = ", ".join(f"shard {shard}: {rows}" for shard, rows in counts.items()) or "none"
    before = f"; {loaded.repeated} were there before" if loaded.repeated else ""
    print_done(
        f"imported {loaded.rows - loaded.repeated} of {loaded.rows} messages to stream {stream} "
        f"({words}){before}",
        as_json=json,
        stream=stream,
        file=str(file),
        messages=loaded.rows,
        imported=loaded.rows - loaded.repeated,
        repeated=loaded.repeated,
        shards=counts,
    )
