"""The users file: users and access rules for the first start of a cluster.

The file is TOML: `rules`, an array in the order in which rules are tried, and the table `[users]` with one
Argon2 hash each. `Users` is its content as a value; a command changes it by `change`, which holds a lock
beside the file, writes the new content aside, syncs and renames it, so that a broker that reloads meanwhile
sees the old file or the new one and two commands never lose each other's work.
"""

import fcntl
import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from argon2 import extract_parameters
from argon2.exceptions import InvalidHashError

from millrace.broker.access import ANONYMOUS, EVERYBODY, Action, Effect, Rule
from millrace.broker.meta.access import check_name
from millrace.errors import ConfigError, LocalError
from millrace.limits import ACCESS_RULES_MAX, USER_NAME_BYTES_MAX, USERS_MAX
from millrace.node.config import toml_value

# A hash comes from a file that people edit: bounds on the work that it may ask for at each login.
_MEMORY_COST_KIB_MAX = 1_048_576
_TIME_COST_MAX = 100


_HEADER = (
    "# Users and access rules. Change with `millrace user` and `millrace acl`; order of rules matters.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """The content of the file. Every change gives a new value; raises LocalError where it makes no sense."""

    hashes: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    def with_user(self, name: str, password_hash: str) -> "Users":
        """Adds a user."""
        check_name(name)
        if name in self.hashes:
            raise LocalError(f"user {name!r} exists; change the password with passwd")
        if len(self.hashes) >= USERS_MAX:
            raise LocalError(f"there are {USERS_MAX} users, the most")
        return replace(self, hashes={**self.hashes, name: password_hash})

    def with_password(self, name: str, password_hash: str) -> "Users":
        """Gives a user another password."""
        self._require(name)
        return replace(self, hashes={**self.hashes, name: password_hash})

    def without_user(self, name: str) -> "Users":
        """Removes a user with the user's rules: a later user of that name must not inherit them."""
        self._require(name)
        return Users(
            hashes={other: value for other, value in self.hashes.items() if other != name},
            rules=tuple(rule for rule in self.rules if rule.user != name),
        )

    def with_rule(self, rule: Rule) -> "Users":
        """Adds a rule after all others."""
        if rule.user not in (EVERYBODY, ANONYMOUS):
            self._require(rule.user)
        if rule in self.rules:
            raise LocalError(f"rule {self.rules.index(rule) + 1} says the same")
        if len(self.rules) >= ACCESS_RULES_MAX:
            raise LocalError(f"there are {ACCESS_RULES_MAX} rules, the most")
        return replace(self, rules=(*self.rules, rule))

    def without_rule(self, number: int) -> "Users":
        """Removes the rule of this number, counted from 1."""
        if not 1 <= number <= len(self.rules):
            raise LocalError(f"there is no rule {number}; there are {len(self.rules)}")
        return replace(self, rules=self.rules[: number - 1] + self.rules[number:])

    def _require(self, name: str) -> None:
        if name not in self.hashes:
            near = get_close_matches(name, list(self.hashes), n=1)
            raise LocalError(f"there is no user {name!r}" + (f"; the nearest is {near[0]!r}" if near else ""))


def _check_name(name: str) -> None:
    """For names in a file that people wrote, which may hold more than that of a new user."""
    if name in (EVERYBODY, ANONYMOUS):
        raise LocalError(f"{name!r} is a word of the access rules, not a name for a user")
    if not 0 < len(name.encode()) <= USER_NAME_BYTES_MAX or not name.isprintable():
        raise LocalError(f"a user name has 1 to {USER_NAME_BYTES_MAX} bytes, all printable: {name!r}")


def load(path: Path, *, missing_ok: bool) -> Users:
    """Reads the file; raises ConfigError with the line, the user or the rule that is wrong.

    With `missing_ok` an absent file is an empty one. A broker whose operator named the file must not pass
    it: no users and no rules means that everything is allowed.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except FileNotFoundError:
        if missing_ok:
            return Users()
        raise ConfigError(f"users file {path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"users file {path}: {error.strerror}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"users file {path}: others may write it; run chmod 600 {path}")
    try:
        return parse(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"users file {path}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"users file {path}: not TOML: {error}") from error
    except LocalError as error:
        raise ConfigError(f"users file {path}: {error}") from error


def parse(text: str) -> Users:
    """The value of a file's text."""
    document = tomllib.loads(text)
    for key in document:
        if key not in ("rules", "users"):
            raise ConfigError(f"unknown key {key!r}; known are rules and users")
    hashes, rules = document.get("users", {}), document.get("rules", [])
    if not isinstance(hashes, dict) or not isinstance(rules, list):
        raise ConfigError("users is a table, rules is an array")
    if len(hashes) > USERS_MAX or len(rules) > ACCESS_RULES_MAX:
        raise ConfigError(f"more than {USERS_MAX} users or {ACCESS_RULES_MAX} rules")
    for name, value in hashes.items():
        _check_name(name)
        _check_hash(name, value)
    return Users(
        hashes=hashes,
        rules=tuple(_parse_rule(number, rule, hashes) for number, rule in enumerate(rules, 1)),
    )


def _check_hash(name: str, value: Any) -> None:
    try:
        cost = extract_parameters(value if isinstance(value, str) else "")
    except InvalidHashError:
        raise ConfigError(f"user {name!r}: not an Argon2 hash; set one with millrace user passwd") from None
    if cost.memory_cost > _MEMORY_COST_KIB_MAX or cost.time_cost > _TIME_COST_MAX:
        raise ConfigError(f"user {name!r}: the hash asks for more work than a login may cost")


def _parse_rule(number: int, rule: Any, hashes: Mapping[str, Any]) -> Rule:
    keys = ("user", "effect", "action", "filter")
    if not isinstance(rule, dict) or set(rule) != set(keys):
        raise ConfigError(f"rule {number}: expected {{ user, effect, action, filter }}, found {rule!r}")
    if not all(isinstance(rule[key], str) for key in keys):
        raise ConfigError(f"rule {number}: user, effect, action and filter are text, found {rule!r}")
    user = rule["user"]
    if user not in hashes and user not in (EVERYBODY, ANONYMOUS):
        raise ConfigError(f"rule {number}: there is no user {user!r}")
    try:
        effect, action = Effect(rule["effect"]), Action(rule["action"])
    except ValueError:
        raise ConfigError(
            f"rule {number} of {user!r}: expected allow or deny, and publish, subscribe or all; "
            f"found {rule['effect']!r}, {rule['action']!r}"
        ) from None
    try:
        return Rule(user=user, effect=effect, action=action, filter=rule["filter"])
    except ConfigError as error:
        raise ConfigError(f"rule {number} of {user!r}: {error}") from None


def render(users: Users) -> str:
    """The text of the file, which `parse` reads back to an equal value."""
    lines = [_HEADER]
    lines.append("rules = [")
    lines += [
        f"    {{ user = {toml_value(rule.user)}, effect = {toml_value(rule.effect.value)}, "
        f"action = {toml_value(rule.action.value)}, filter = {toml_value(rule.filter)} }},"
        for rule in users.rules
    ]
    lines += ["]", "", "[users]"]
    lines += [f"{toml_value(name)} = {toml_value(value)}" for name, value in users.hashes.items()]
    return "\n".join(lines) + "\n"


def change(path: Path, operation: Callable[[Users], Users]) -> Users:
    """Applies the operation to the file's content, alone; returns the new content."""
    # A name that is a link stays one: the file it points to is replaced.
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(target.with_name(target.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            users = operation(load(target, missing_ok=True))
            _replace(target, render(users).encode())
        finally:
            os.close(lock)
    except OSError as error:
        raise LocalError(f"users file {path}: {error.strerror}") from error
    return users


def _replace(target: Path, content: bytes) -> None:
    """Writes aside, syncs, renames, syncs the directory. The caller holds the lock."""
    aside = target.with_name(target.name + ".new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        _keep_owner(target, file.fileno())
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(target)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _keep_owner(target: Path, descriptor: int) -> None:
    """Root may edit the file of a broker that runs as another user, which must still be able to read it."""
    if os.geteuid() == 0 and target.exists():
        before = target.stat()
        os.fchown(descriptor, before.st_uid, before.st_gid)
