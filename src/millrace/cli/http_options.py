"""What the commands that speak HTTP share: which node, and as whom."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from millrace.client.http import Http

PASSWORD_VARIABLE = "MILLRACE_PASSWORD"

HttpUrl = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="HTTP address of the node, as http://USER@HOST:PORT, or of several with commas between them: "
        f"one that does not answer is passed over. The password comes from {PASSWORD_VARIABLE}.",
    ),
]
DEFAULT = "http://127.0.0.1:18831"


def door(url: str) -> "Http":
    """A client of these nodes; a wrong address is wrong use of the command."""
    from millrace.client.http import Http

    return Http(url, password=os.environ.get(PASSWORD_VARIABLE))
