"""`millrace acl`: the access rules, the same at every node of a cluster."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from millrace.broker.access import Action, Effect, Rule
from millrace.cli.access.access_options import AccessOptions
from millrace.cli.shared.common import Yes, confirm, example, family
from millrace.cli.shared.option_groups import takes

app = family(
    "Access rules: who may publish and subscribe where. The rules of a user are tried first, then those "
    "of *, each in the order of the list; the first that matches decides. As soon as there is a user or a "
    "rule, what no rule allows is denied. A change holds at every node of the cluster at once, also for "
    "clients that are connected. With --users, --data or --config the commands edit a users file instead, "
    "which the first start of a cluster loads."
)

_COLUMNS = ("number", "user", "effect", "action", "filter")


@app.command(
    epilog=example(
        "millrace acl add ann allow publish 'sensors/#'",
        "millrace acl add '*' allow all 'home/%u/#'",
        "millrace acl add anonymous deny subscribe '$SYS/#'",
    )
)
@takes(AccessOptions)
def add(
    user: Annotated[str, typer.Argument(metavar="USER", help="User name, * (everybody) or anonymous.")],
    effect: Annotated[Effect, typer.Argument(metavar="allow|deny", show_choices=False)],
    action: Annotated[Action, typer.Argument(metavar="publish|subscribe|all", show_choices=False)],
    filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Topic filter; %u is the user name, %c the client id.")
    ],
    given: AccessOptions,
    position: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Put the rule before the one that is Nth now. [default: last]"),
    ] = None,
) -> None:
    """Add a rule, after all others if no position is given."""
    from millrace.errors import ConfigError
    from millrace.node.access.users import change

    path = given.file
    rule = Rule(user=user, effect=effect, action=action, filter=filter)
    if path is not None:
        if position is not None:
            raise ConfigError("in a users file a rule is added after all others; move its line instead")
        number = len(change(path, lambda content: content.with_rule(rule)).rules)
        row = _row(number, rule) | {"file": str(path)}
    else:
        body = _row(0, rule) | ({} if position is None else {"position": position})
        body.pop("number")
        row = given.node.call("POST", "/v1/rules", body)
    given.print_done(f"added rule {row['number']}: {_words(row)}", **row)


@app.command(epilog=example("millrace acl list", "millrace acl remove 3"))
@takes(AccessOptions)
def remove(
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the rule, as the list shows it.")],
    given: AccessOptions,
    yes: Yes = False,
) -> None:
    """Remove a rule by its number. In a users file those after it move up; in a cluster numbers stay."""
    from millrace.node.access.users import Users, change

    path = given.file
    if path is None or number <= len(given.load_file().rules):
        confirm(f"Remove rule {number}" + ("?" if path is None else f" from {path}?"), yes=yes)
    if path is None:
        row = given.node.call("DELETE", f"/v1/rules/{number}")
        given.print_done(f"removed rule {number}: {_words(row)}", **row)
        return
    removed: list[Rule] = []

    def without(content: Users) -> Users:
        after = content.without_rule(number)
        removed.append(content.rules[number - 1])
        return after

    change(path, without)
    row = _row(number, removed[0])
    given.print_done(f"removed rule {number}: {_words(row)}", **row, file=str(path))


@app.command("list", epilog=example("millrace acl list", "millrace acl list --user ann --json"))
@takes(AccessOptions)
def list_(
    given: AccessOptions,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Only rules of this user.")
    ] = None,
) -> None:
    """List the rules with their numbers, in the order in which they are tried."""
    if given.file is None:
        rows = given.rows("/v1/rules" + (f"?user={quote(user, safe='')}" if user is not None else ""))
    else:
        content = given.load_file()
        rows = [
            _row(number, rule)
            for number, rule in enumerate(content.rules, 1)
            if user is None or rule.user == user
        ]
    given.print_rows(rows, *_COLUMNS)


def _row(number: int, rule: Rule) -> dict[str, Any]:
    return {
        "number": number,
        "user": rule.user,
        "effect": rule.effect.value,
        "action": rule.action.value,
        "filter": rule.filter,
    }


def _words(row: dict[str, Any]) -> str:
    return f"{row['user']} {row['effect']} {row['action']} {row['filter']}"
