"""`millrace tls`: certificates to begin with."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.shared.common import AsJson, Yes, confirm, example, family, print_json

app = family("Certificates for development, or for a closed network.")


@app.command(
    epilog=example(
        "millrace tls init tls",
        "millrace tls init /etc/millrace/tls --name broker.example --name 10.0.0.7 --client sensor-1",
    )
)
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="HOST", help="Name or address of a node. [default: localhost, 127.0.0.1, ::1]"
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="USER", help="User for whom a client certificate is made too."),
    ] = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Make an authority, and certificates for a node and for clients.

    Prints what to put into the configuration. Nodes get an authority of their own for the links between
    them, because whoever has a certificate of that one is a node. Keep ca.key and cluster-ca.key away from
    the nodes: whoever has them can make certificates.
    """
    from millrace.errors import LocalError
    from millrace.node import authority
    from millrace.node.config import toml_value

    names, clients = name or ["localhost", "127.0.0.1", "::1"], client or []
    authority.check(names, clients)
    there = [file for file in authority.files_of(directory, clients) if file.exists()]
    if there:
        confirm(
            f"{directory} has {there[0].name} and {len(there) - 1} more: replace them? Certificates of the "
            "old authority are not trusted any more.",
            yes=yes,
        )
    try:
        authority.make(directory, names, clients)
    except OSError as error:
        raise LocalError(f"{error.filename}: {error.strerror}") from None
    at = directory.absolute()
    settings = {
        "tls": {"certificate": at / "node.pem", "key": at / "node.key", "client_ca": at / "ca.pem"},
        "cluster": {
            "tls_cert": at / "cluster.pem",
            "tls_key": at / "cluster.key",
            "tls_ca": at / "cluster-ca.pem",
        },
    }
    if json:
        shown = {part: {key: str(file) for key, file in rows.items()} for part, rows in settings.items()}
        print_json({"directory": str(at), "authority": str(at / "ca.pem"), "settings": shown})
        return
    lines = [f"made certificates for {', '.join([*names, *clients])} in {at}"]
    lines.append(
        f"clients trust {at / 'ca.pem'} (--ca-file, or MILLRACE_CA_FILE); the configuration of a node:"
    )
    for part, rows in settings.items():
        lines += ["", f"[{part}]"]
        lines += [f"{key} = {toml_value(str(file))}" for key, file in rows.items()]
    sys.stdout.write("\n".join(lines) + "\n")
