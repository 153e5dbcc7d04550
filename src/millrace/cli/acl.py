"""`millrace acl`: the access rules, in the users file.

A running broker takes changes up on SIGHUP.
"""

from typing import Annotated

import typer

from millrace.broker.access import Action, Effect, Rule
from millrace.cli.common import example, family, print_warning
from millrace.cli.option_groups import takes
from millrace.cli.users_file import UsersOptions

app = family(
    "Access rules: who may publish and subscribe where. The rules of a user are tried first, then those "
    "of *, each in the order of the list; the first that matches decides. With no rule at all everything "
    "is allowed; as soon as there is one, what no rule allows is denied. A running broker takes changes up "
    "on SIGHUP."
)


@app.command(
    epilog=example(
        "millrace acl add ann allow publish 'sensors/#'",
        "millrace acl add '*' allow all 'home/%u/#'",
        "millrace acl add anonymous deny subscribe '$SYS/#'",
    )
)
@takes(UsersOptions)
def add(
    user: Annotated[str, typer.Argument(metavar="USER", help="User name, * (everybody) or anonymous.")],
    effect: Annotated[Effect, typer.Argument(metavar="allow|deny", show_choices=False)],
    action: Annotated[Action, typer.Argument(metavar="publish|subscribe|all", show_choices=False)],
    filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Topic filter; %u is the user name, %c the client id.")
    ],
    given: UsersOptions,
) -> None:
    """Add a rule after all others."""
    from millrace.node.access.users import change

    path = given.path
    rule = Rule(user=user, effect=effect, action=action, filter=filter)
    number = len(change(path, lambda content: content.with_rule(rule)).rules)
    sentence = f"added rule {number}: {user} {effect.value} {action.value} {filter}"
    given.print_done(sentence, path, **_row(number, rule))


@app.command(epilog=example("millrace acl list", "millrace acl remove 3"))
@takes(UsersOptions)
def remove(
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the rule, as the list shows it.")],
    given: UsersOptions,
) -> None:
    """Remove a rule by its number; those after it move up."""
    from millrace.node.access.users import NO_RULES_WARNING, Users, change

    path = given.path
    removed: list[Rule] = []

    def without(content: Users) -> Users:
        after = content.without_rule(number)
        removed.append(content.rules[number - 1])
        return after

    after = change(path, without)
    (rule,) = removed
    sentence = f"removed rule {number}: {rule.user} {rule.effect.value} {rule.action.value} {rule.filter}"
    given.print_done(sentence, path, **_row(number, rule))
    if not after.rules:
        print_warning(NO_RULES_WARNING)


@app.command("list", epilog=example("millrace acl list", "millrace acl list --user ann --json"))
@takes(UsersOptions)
def list_(
    given: UsersOptions,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Only rules of this user.")
    ] = None,
) -> None:
    """List the rules with their numbers."""
    content = given.load()
    rows = [
        _row(number, rule)
        for number, rule in enumerate(content.rules, 1)
        if user is None or rule.user == user
    ]
    given.print_rows(rows, "number", "user", "effect", "action", "filter")


def _row(number: int, rule: Rule) -> dict[str, str | int]:
    return {
        "number": number,
        "user": rule.user,
        "effect": rule.effect.value,
        "action": rule.action.value,
        "filter": rule.filter,
    }
