"""What `user` and `acl` share: which users file they change, and how they answer."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.common import AsJson, ConfigFile, DataDirectory, load_config, print_done, print_rows

if TYPE_CHECKING:
    from millrace.node.access.users import Users


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersOptions:
    config: ConfigFile = None
    users: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="Users and access rules (access.users_file)."),
    ] = None
    data: DataDirectory = None
    json: AsJson = False

    @property
    def path(self) -> Path:
        return load_config(self.config, data=self.data, users=self.users).users_path

    def load(self) -> "Users":
        """What the file says. A file that nobody named may be missing."""
        from millrace.node.access.users import load

        effective = load_config(self.config, data=self.data, users=self.users)
        return load(effective.users_path, missing_ok=not effective.access.users_file)

    def print_done(self, sentence: str, path: Path, **facts: Any) -> None:
        print_done(sentence, as_json=self.json, **facts, file=str(path))

    def print_rows(self, rows: list[dict[str, Any]], *columns: str) -> None:
        print_rows(rows, columns, as_json=self.json)
