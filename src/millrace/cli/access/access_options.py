"""What `user`, `acl` and `token` share: whether they ask a node or edit a users file, and how they answer."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from millrace.cli.shared.common import AsJson, ConfigFile, load_config, print_done, print_rows
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, door

if TYPE_CHECKING:
    from millrace.client.http import Http
    from millrace.node.access.users import Users

_PAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """A node of the cluster, any one."""

    url: HttpUrl = DEFAULT
    json: AsJson = False

    @property
    def node(self) -> "Http":
        return door(self.url)

    def rows(self, path: str) -> list[dict[str, Any]]:
        """All rows of a list that comes in pages."""
        rows: list[dict[str, Any]] = []
        more = "&" if "?" in path else "?"
        cursor: str | None = ""
        while cursor is not None:
            page = self.node.get(f"{path}{more}limit={_PAGE}&cursor={quote(cursor, safe='')}")
            rows += page["items"]
            cursor = page["next"]
        return rows

    def print_done(self, sentence: str, **facts: Any) -> None:
        print_done(sentence, as_json=self.json, **facts)

    def print_rows(self, rows: list[dict[str, Any]], *columns: str) -> None:
        print_rows(rows, columns, as_json=self.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions(NodeOptions):
    """A node, or the users file for the first start of a cluster."""

    config: ConfigFile = None
    users: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="Edit this users file instead of asking a node."),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Edit the users file in this data directory instead."),
    ] = None

    @property
    def file(self) -> Path | None:
        """The users file, where one is meant."""
        if self.config is None and self.users is None and self.data is None:
            return None
        return load_config(self.config, data=self.data, users=self.users).users_path

    def load_file(self) -> "Users":
        """What the file says. A file that nobody named may be missing."""
        from millrace.node.access.users import load

        effective = load_config(self.config, data=self.data, users=self.users)
        return load(effective.users_path, missing_ok=not effective.access.users_file)


PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Read the password from the first line of a file."),
]


def read_password(from_stdin: bool, file: Path | None) -> bytes:
    """From standard input, a file or a prompt; never from an argument, which others on the machine see."""
    from millrace.errors import ConfigError
    from millrace.limits import STRING_BYTES_TOP

    if from_stdin and file is not None:
        raise ConfigError("give --password-stdin or --password-file, not both")
    if from_stdin:
        return sys.stdin.buffer.readline(STRING_BYTES_TOP + 2).rstrip(b"\r\n")
    if file is not None:
        try:
            with file.open("rb") as opened:
                return opened.readline(STRING_BYTES_TOP + 2).rstrip(b"\r\n")
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from error
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask for a password; use --password-stdin")
    typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return typed.encode()


def password_text(password: bytes) -> str:
    """A password as it goes to a node."""
    from millrace.errors import LocalError

    try:
        text = password.decode()
    except UnicodeDecodeError:
        raise LocalError("a password is UTF-8") from None
    if not text:
        raise LocalError("the password is empty")
    return text
