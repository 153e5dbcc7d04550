"""`millrace restore`: a backup into a running cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.shared.common import AsJson, Yes, confirm, example, print_done, print_warning, single
from millrace.cli.shared.http_options import DEFAULT, HttpUrl

if TYPE_CHECKING:
    from millrace.transfer.backup import Definitions, Restored

app = single()


@app.command(epilog=example("millrace restore /backups/monday --url http://admin@n1:18831"))
def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `millrace backup` wrote.")],
    groups_from: Annotated[
        str,
        typer.Option(
            "--groups-from",
            metavar="earliest|latest",
            help="Where groups begin: earliest, before all restored messages; latest, behind them.",
        ),
    ] = "earliest",
    users: Annotated[
        bool, typer.Option("--users", help="Add users, rules and tokens also where the cluster has its own.")
    ] = False,
    yes: Yes = False,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Make the streams and groups of a backup that are not there, and publish its messages, in order and each
    once. Every file is proved before anything is written. The same command goes on after an interruption, and
    does nothing when all is there. Offsets and times are new. Asks before it adds to streams that are
    there. Users, rules and tokens come last, and only where the cluster has none, unless --users says
    otherwise."""
    from millrace.cli.recovery.transfer_options import Progress, files, reader, writer
    from millrace.errors import ConfigError
    from millrace.transfer import backup

    if groups_from not in ("earliest", "latest"):
        raise ConfigError(f"--groups-from {groups_from!r}: expected earliest or latest")
    progress = Progress(is_quiet=json)
    with files():
        definitions = backup.read_backup(directory, progress)
    progress.end()
    present = backup.in_the_way(reader(url), definitions)
    if present:
        confirm(f"The cluster has {', '.join(present)} already. Add what is not there yet?", yes=yes)
    with files(), writer(url) as cluster:
        done = backup.restore(
            cluster, directory, definitions, progress, groups_from=groups_from, with_users=users
        )
    progress.end()
    _warn(definitions, done)
    _print(directory, done, as_json=json)


def _print(directory: Path, done: "Restored", *, as_json: bool) -> None:
    rows = sum(loaded.rows for loaded in done.loaded.values())
    repeated = sum(loaded.repeated for loaded in done.loaded.values())
    before = f"; {repeated} were there before" if repeated else ""
    print_done(
        f"restored {rows - repeated} of {rows} messages in {len(done.loaded)} streams, made "
        f"{len(done.created)} streams and {len(done.groups)} groups{before}",
        as_json=as_json,
        directory=str(directory),
        messages=rows,
        restored=rows - repeated,
        repeated=repeated,
        created=done.created,
        groups=done.groups,
        differing=done.differing,
        users=0 if done.access is None else done.access.users,
        left_out=done.left_out,
        streams={
            name: {str(shard): count for shard, count in sorted(loaded.shards.items())}
            for name, loaded in done.loaded.items()
        },
    )


def _warn(definitions: "Definitions", done: "Restored") -> None:
    """Of all that is in the backup and not in the cluster."""
    for name in done.differing:
        print_warning(f"stream {name} was there with other settings and keeps them")
    for name in done.left_out:
        print_warning(f"stream {name} is the broker's own: its messages stay in the backup")
    if definitions.access is None:
        print_warning("the backup has no users, rules and tokens: its maker was no administrator")
    elif done.access is None:
        print_warning("the cluster has users or rules of its own; those of the backup stay out (--users)")
    else:
        for name in done.access.differing:
            print_warning(f"user {name} was there and stays as it is")
