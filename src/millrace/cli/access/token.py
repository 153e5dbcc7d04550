"""`millrace token`: secrets that stand for a user, for programs."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from millrace.broker.access import Role
from millrace.cli.access.access_options import NodeOptions
from millrace.cli.shared.common import Yes, confirm, example, family
from millrace.cli.shared.option_groups import takes

app = family(
    "API tokens. A token stands for a user: as HTTP `Authorization: Bearer`, or as MQTT password with the "
    "user's name or the name `token`. It may be limited, may expire, and is revoked by its name. The secret "
    "is shown once, when it is made."
)

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_COLUMNS = ("name", "user", "allow", "roles", "expires")


@app.command(
    epilog=example(
        "millrace token create --name ci --user ann --expires 30d",
        "millrace token create --name door --user ann --allow 'publish:doors/#'",
    )
)
@takes(NodeOptions)
def create(
    given: NodeOptions,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Name of the token, by which it is listed and revoked."),
    ],
    user: Annotated[str, typer.Option("--user", metavar="USER", help="User for whom the token stands.")],
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long the token is valid, such as 12h, 30d or 8w. [default: never]"
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACTION:FILTER",
            help="Limit the token to this. ACTION is publish, subscribe or all. May be repeated.",
        ),
    ] = None,
    role: Annotated[
        list[Role] | None,
        typer.Option(
            "--role", help="Roles of the user that the token has too. [default: all; with --allow none]"
        ),
    ] = None,
) -> None:
    """Make a token and show it. It is shown only this once."""
    body: dict[str, Any] = {"name": name, "user": user}
    if expires is not None:
        body["expires_s"] = _seconds(expires)
    if allow:
        body["allow"] = allow
    if role:
        body["roles"] = [one.value for one in role]
    made = given.node.call("POST", "/v1/tokens", body)
    given.print_done(made["token"], **made)


@app.command("list", epilog=example("millrace token list"))
@takes(NodeOptions)
def list_(given: NodeOptions) -> None:
    """List the tokens, without their secrets."""
    rows = given.rows("/v1/tokens")
    if not given.json:
        rows = [{**row, **_words(row)} for row in rows]
    given.print_rows(rows, *_COLUMNS)


@app.command(epilog=example("millrace token revoke ci"))
@takes(NodeOptions)
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")],
    given: NodeOptions,
    yes: Yes = False,
) -> None:
    """Revoke a token; connections that came by it end."""
    confirm(f"Revoke token {name}? What uses it is refused from then on.", yes=yes)
    given.node.call("DELETE", f"/v1/tokens/{quote(name, safe='')}")
    given.print_done(f"revoked token {name}", name=name)


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time such as 12h, 30d or 8w", param_hint="--expires")
    return int(found[1]) * _UNITS_S[found[2]]


def _words(row: dict[str, Any]) -> dict[str, str]:
    """A row as people read it."""
    expires = "never"
    if row["expires_us"] is not None:
        at = datetime.fromtimestamp(row["expires_us"] / 1_000_000, UTC)
        expires = f"{at:%Y-%m-%d %H:%M} UTC" + (" (expired)" if row["is_expired"] else "")
    return {
        "allow": "all" if row["allow"] is None else " ".join(row["allow"]),
        "roles": "all" if row["roles"] is None else " ".join(row["roles"]) or "none",
        "expires": expires,
    }
