"""`millrace init`: the files with which the first node of a cluster is started, and every other one."""

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.shared.common import AsJson, example, print_done, single

app = single()

_CONFIG_FILE = "millrace.toml"


@app.command(epilog=example("millrace init", "millrace init /etc/millrace"))
def init(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the files go.")] = Path(),
    json: AsJson = False,
) -> None:
    """Make a secret for a cluster, and a configuration that uses it.

    Nodes know each other by this secret: copy both files to every node and start each with
    --config millrace.toml --node-id NAME --peer HOST:PORT, all but the first with --join HOST:PORT too.
    Files that are there already are left as they are.
    """
    from millrace.errors import LocalError
    from millrace.local_cluster import SECRET_FILE
    from millrace.node.config import toml_value
    from millrace.node.peers.secret import make_secret_file

    secret, settings = directory.absolute() / SECRET_FILE, directory / _CONFIG_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_new = make_secret_file(secret)
        if not settings.exists():
            settings.write_text(
                "# Every setting with its default and meaning: millrace config\n"
                f"[cluster]\nsecret_file = {toml_value(str(secret))}\n"
            )
    except OSError as error:
        raise LocalError(f"{error.filename}: {error.strerror}") from None
    word = "made" if is_new else "kept"
    print_done(
        f"{word} {secret}; start the first node with: millrace start --config {settings} --peer HOST:PORT",
        as_json=json,
        secret_file=str(secret),
        config=str(settings),
        is_new=is_new,
    )
