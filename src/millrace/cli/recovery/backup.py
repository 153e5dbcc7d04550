"""`millrace backup`: the definitions and messages of a running cluster, in a directory."""

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.shared.common import AsJson, example, print_done, print_warning, single
from millrace.cli.shared.http_options import DEFAULT, HttpUrl

app = single()


@app.command(epilog=example("millrace backup /backups/monday --url http://admin@n1:18831"))
def backup(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A new directory, or one with an unfinished backup, which is continued."
        ),
    ],
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Copy the definitions of streams and groups, and the messages of every stream that keeps a log, to a
    directory: Parquet where PyArrow is installed, lines of JSON otherwise. Each shard is copied up to where
    it was committed when its stream's turn came; every file is proved at the end. After an interruption the
    same command goes on. Users, rules and tokens are in it, secrets as hashes, if whoever asks is an
    administrator. Sessions are not in it."""
    from millrace.cli.recovery.transfer_options import Progress, files, reader
    from millrace.transfer.backup import back_up

    progress = Progress(is_quiet=json)
    with files():
        definitions, manifests = back_up(reader(url), directory, progress)
    progress.end()
    counts = {
        name: {str(record.shard): record.rows for record in manifest.shards}
        for name, manifest in manifests.items()
    }
    access = definitions.access
    if access is None:
        print_warning("users, rules and tokens are not in it: only an administrator may copy them")
    rows = sum(manifest.rows for manifest in manifests.values())
    print_done(
        f"backed up {len(definitions.streams)} streams with {rows} messages and {len(definitions.groups)} "
        f"groups to {directory}; every file was proved",
        as_json=json,
        directory=str(directory),
        id=definitions.id,
        messages=rows,
        streams=counts,
        groups=[group["name"] for group in definitions.groups],
        users=None if access is None else len(access["users"]),
        gone=sum(record.gone for manifest in manifests.values() for record in manifest.shards),
    )
