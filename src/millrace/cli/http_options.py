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
        help="HTTP address of the node, as http://USER@HOST:PORT; the password comes from "
        f"{PASSWORD_VARIABLE}.",
    ),
]
DEFAULT = "http://127.0.0.1:18831"


def door(url: str) -> "Http":
    """The node's HTTP door; what is wrong with the address is wrong use."""
    from millrace.client.http import Http

    return Http(url, password=os.environ.get(PASSWORD_VARIABLE))
