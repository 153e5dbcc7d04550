"""`millrace user`: the users who may connect, at every node of a cluster."""

from typing import Annotated
from urllib.parse import quote

import typer

from millrace.broker.access import Role
from millrace.cli.access.access_options import (
    AccessOptions,
    NodeOptions,
    PasswordFile,
    PasswordStdin,
    password_text,
    read_password,
)
from millrace.cli.shared.common import Yes, confirm, example, family
from millrace.cli.shared.option_groups import takes

app = family(
    "Users, their passwords and roles. A change holds at every node of the cluster at once. The first user "
    "is an administrator; from then on nobody comes in without a name. With --users, --data or --config the "
    "commands edit a users file instead, which the first start of a cluster loads."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="User name.")]
Roles = Annotated[
    list[Role] | None,
    typer.Option(
        "--role",
        help="Role for administration: admin may do everything, operator all but users, observer "
        "may look. Several may be given.",
    ),
]


def _path(name: str) -> str:
    return f"/v1/users/{quote(name, safe='')}"


@app.command(
    epilog=example(
        "millrace user add root --role admin", "millrace user add ann --password-stdin < password.txt"
    )
)
@takes(AccessOptions)
def add(
    name: Name,
    given: AccessOptions,
    role: Roles = None,
    password_stdin: PasswordStdin = False,
    password_file: PasswordFile = None,
    no_password: Annotated[
        bool,
        typer.Option("--no-password", help="The user has no password and logs in by token or certificate."),
    ] = False,
) -> None:
    """Add a user."""
    from millrace.errors import ConfigError
    from millrace.node.access.passwords import hash_password
    from millrace.node.access.users import change

    path = given.file
    if path is not None and (role or no_password):
        raise ConfigError(
            "a users file has no roles and no users without password; who has the rule allow all '#' in it "
            "becomes an administrator"
        )
    password = b"" if no_password else read_password(password_stdin, password_file)
    if path is not None:
        password_hash = hash_password(password)
        change(path, lambda content: content.with_user(name, password_hash))
        given.print_done(f"added user {name} in {path}", user=name, file=str(path))
        return
    roles = [one.value for one in role or ()]
    body = {"name": name, "roles": roles} | ({} if no_password else {"password": password_text(password)})
    made = given.node.call("POST", "/v1/users", body)
    given.print_done(f"added user {name}", user=name, roles=made["roles"])


@app.command(epilog=example("millrace user passwd ann"))
@takes(AccessOptions)
def passwd(
    name: Name,
    given: AccessOptions,
    password_stdin: PasswordStdin = False,
    password_file: PasswordFile = None,
) -> None:
    """Change the password of a user; connections that came by the old one end."""
    from millrace.node.access.passwords import hash_password
    from millrace.node.access.users import change

    path = given.file
    password = read_password(password_stdin, password_file)
    if path is not None:
        password_hash = hash_password(password)
        change(path, lambda content: content.with_password(name, password_hash))
        given.print_done(f"changed the password of {name} in {path}", user=name, file=str(path))
        return
    given.node.call("PATCH", _path(name), {"password": password_text(password)})
    given.print_done(f"changed the password of {name}", user=name)


@app.command(epilog=example("millrace user role ann operator", "millrace user role ann"))
@takes(NodeOptions)
def role(
    name: Name,
    given: NodeOptions,
    roles: Annotated[
        list[Role] | None,
        typer.Argument(metavar="[ROLE]...", help="The roles. Without any, the user loses all roles."),
    ] = None,
) -> None:
    """Give a user these roles and no others: admin, operator, observer."""
    changed = given.node.call("PATCH", _path(name), {"roles": [one.value for one in roles or ()]})
    sentence = f"user {name} is now {' and '.join(changed['roles']) or 'without a role'}"
    given.print_done(sentence, user=name, roles=changed["roles"])


@app.command(epilog=example("millrace user remove ann"))
@takes(AccessOptions)
def remove(name: Name, given: AccessOptions, yes: Yes = False) -> None:
    """Remove a user with the user's access rules and tokens; the user's connections end."""
    from millrace.node.access.users import Users, change

    path = given.file
    if path is None:
        confirm(f"Remove user {name} with all rules and tokens of that user?", yes=yes)
        gone = given.node.call("DELETE", _path(name))["rules_removed"]
        given.print_done(f"removed user {name}, with {gone} rules", user=name, rules_removed=gone)
        return
    rules_before = 0

    def removed(content: Users) -> Users:
        nonlocal rules_before
        rules_before = len(content.rules)
        return content.without_user(name)

    if name in given.load_file().hashes:
        confirm(f"Remove user {name} with all rules of that user?", yes=yes)
    after = change(path, removed)
    gone = rules_before - len(after.rules)
    sentence = f"removed user {name}, with {gone} rules, from {path}"
    given.print_done(sentence, user=name, rules_removed=gone, file=str(path))


@app.command("list", epilog=example("millrace user list --json"))
@takes(AccessOptions)
def list_(given: AccessOptions) -> None:
    """List the users."""
    if given.file is not None:
        content = given.load_file()
        rows = [
            {"user": name, "rules": sum(rule.user == name for rule in content.rules)}
            for name in content.hashes
        ]
        given.print_rows(rows, "user", "rules")
        return
    rows = [
        {
            "user": row["name"],
            "rules": row["rules"],
            "roles": row["roles"] if given.json else " ".join(row["roles"]),
            "password": row["has_password"] if given.json else "yes" if row["has_password"] else "no",
            "tokens": row["tokens"],
        }
        for row in given.rows("/v1/users")
    ]
    given.print_rows(rows, "user", "rules", "roles", "password", "tokens")
