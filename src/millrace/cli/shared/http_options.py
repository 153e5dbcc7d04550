"""What the commands that speak HTTP share: which node, and as whom."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.shared.contexts import HTTP_DEFAULT, PASSWORD_VARIABLE, URL_VARIABLE, http_urls
from millrace.client.connection.tls import CA_VARIABLE

if TYPE_CHECKING:
    from millrace.client.http import Http

HttpUrl = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        show_default=f"{URL_VARIABLE}, the context, the local cluster or {HTTP_DEFAULT}",
        help="HTTP address of a node, as HOST:PORT, http://USER@HOST:PORT or https://, or of several with "
        "commas between them: one that does not answer is passed over. The password comes from "
        f"{PASSWORD_VARIABLE}, the authority to trust from {CA_VARIABLE}.",
    ),
]
# Nothing is said: the address comes from the environment, the context or the local cluster.
DEFAULT = ""


def door(url: str) -> "Http":
    """A client of these nodes; a wrong address is wrong use of the command."""
    from millrace.client.connection.tls import files_of_environment
    from millrace.client.http import Http

    return Http(http_urls(url), password=os.environ.get(PASSWORD_VARIABLE), **files_of_environment())


def ask(url: str, path: str, *, method: str = "GET", what: str, **query: Any) -> Any:
    """The answer of the administration interface. A node that does not have it is reported as such: `what`
    says what was asked for, such as `client 'x'`."""
    from millrace.client.http import HttpError
    from millrace.errors import LocalError

    try:
        return door(url).call(method, path, {} if method == "POST" else None, **query)
    except HttpError as error:
        # A path that the node does not know is answered without a reason of ours.
        if error.status in (404, 405, 501) and error.fields.get("detail") in (
            None,
            "Not Found",
            "Method Not Allowed",
        ):
            raise LocalError(
                f"the node cannot answer for {what}: it has no {path}; it is of an older version"
            ) from None
        raise


def pages(
    url: str, path: str, *, what: str, limit: int, **query: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """Up to `limit` rows of a paged list, and the nodes that did not answer for theirs."""
    rows: list[dict[str, Any]] = []
    missing: set[str] = set()
    cursor = None
    while len(rows) < limit:
        page = ask(url, path, what=what, limit=min(1000, limit - len(rows)), cursor=cursor, **query)
        rows += page["items"]
        missing.update(page.get("missing", ()))
        cursor = page.get("next")
        if cursor is None:
            break
    return rows, sorted(missing)
