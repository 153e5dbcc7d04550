"""`millrace user`: the users who may connect, in the users file.

A running broker takes changes up on SIGHUP.
"""

import sys
from typing import Annotated

import typer

from millrace.cli.common import Yes, confirm, example, family, print_warning
from millrace.cli.option_groups import takes
from millrace.cli.users_file import UsersOptions

app = family("Users and their passwords. A running broker takes changes up on SIGHUP.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="User name.")]
PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
]


def _read_password(from_stdin: bool) -> bytes:
    from millrace.errors import ConfigError
    from millrace.limits import STRING_BYTES_TOP

    if from_stdin:
        return sys.stdin.buffer.readline(STRING_BYTES_TOP + 2).rstrip(b"\r\n")
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask for a password; use --password-stdin")
    typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return typed.encode()


@app.command(epilog=example("millrace user add ann", "millrace user add ann --password-stdin < password.txt"))
@takes(UsersOptions)
def add(name: Name, given: UsersOptions, password_stdin: PasswordStdin = False) -> None:
    """Add a user."""
    from millrace.node.access.users import change, hash_password

    path = given.path
    password_hash = hash_password(_read_password(password_stdin))
    change(path, lambda content: content.with_user(name, password_hash))
    given.print_done(f"added user {name} in {path}", path, user=name)


@app.command(epilog=example("millrace user passwd ann"))
@takes(UsersOptions)
def passwd(name: Name, given: UsersOptions, password_stdin: PasswordStdin = False) -> None:
    """Change the password of a user."""
    from millrace.node.access.users import change, hash_password

    path = given.path
    password_hash = hash_password(_read_password(password_stdin))
    change(path, lambda content: content.with_password(name, password_hash))
    given.print_done(f"changed the password of {name} in {path}", path, user=name)


@app.command(epilog=example("millrace user remove ann"))
@takes(UsersOptions)
def remove(name: Name, given: UsersOptions, yes: Yes = False) -> None:
    """Remove a user and the user's access rules."""
    from millrace.node.access.users import NO_RULES_WARNING, Users, change

    path = given.path
    rules_before = 0

    def removed(content: Users) -> Users:
        nonlocal rules_before
        rules_before = len(content.rules)
        return content.without_user(name)

    if name in given.load().hashes:
        confirm(f"Remove user {name} with all rules of that user?", yes=yes)
    after = change(path, removed)
    rules = rules_before - len(after.rules)
    sentence = f"removed user {name}, with {rules} rules, from {path}"
    given.print_done(sentence, path, user=name, rules_removed=rules)
    if rules and not after.rules:
        print_warning(NO_RULES_WARNING)


@app.command("list", epilog=example("millrace user list --json"))
@takes(UsersOptions)
def list_(given: UsersOptions) -> None:
    """List the users."""
    content = given.load()
    rows = [
        {"user": name, "rules": sum(rule.user == name for rule in content.rules)} for name in content.hashes
    ]
    given.print_rows(rows, "user", "rules")
