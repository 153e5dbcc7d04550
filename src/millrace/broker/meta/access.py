"""Users, access rules and tokens: the part of the meta group's state that says who may do what.

One truth for the whole cluster [rule 31]. `AccessState` changes only by entries of the meta group's log, so
every node that applied the same entries has the same users. Nothing secret can be read from it: a password is
kept as an Argon2 hash and a token as the SHA-256 digest of 32 random bytes.

Once there is a user, there is an administrator with a password, and that stays so: the last one is neither
removed nor demoted. So the broker, once closed, does not open again by the removal of users or rules. Only
`load` may bring users without an administrator, because a users file of an older version may have none.

The number of a rule is its name for ever; its place among the others is where it stands in `rules`.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

import msgspec
from msgspec.structs import replace

from millrace.broker.access import ANONYMOUS, EVERYBODY, AccessRules, Role, Rule
from millrace.errors import LocalError
from millrace.limits import ACCESS_RULES_MAX, TOKENS_MAX, USERS_MAX

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_NAME_RULE = "has 1 to 64 characters, which are letters, digits and . _ - @"


class ScramKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What proves a password by SCRAM-SHA-256 (RFC 5802, section 3), made when the password is set."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    password_hash: str = ""
    """Argon2; empty for a user who comes by token or certificate alone."""
    roles: tuple[Role, ...] = ()
    scram: ScramKeys | None = None
    """Of the same password; None where it was set without."""

    @property
    def may_administer(self) -> bool:
        return Role.ADMIN in self.roles

    @property
    def is_lasting_admin(self) -> bool:
        """Can come and administer whatever becomes of tokens and certificates."""
        return self.may_administer and bool(self.password_hash)


class NumberedRule(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    rule: Rule


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that stands for a user, and may be good for less than the user is."""

    name: str
    user: str
    digest: str
    """SHA-256 of the secret, in hexadecimal digits."""
    scope: tuple[Rule, ...] | None = None
    """What it is limited to among what the user may do; None is everything."""
    roles: tuple[Role, ...] | None = None
    """The same for roles; None is all roles of the user."""
    expires_us: int = 0
    """Since 1970; 0 is never."""
    created_us: int = 0

    def is_expired(self, wall_us: int) -> bool:
        return bool(self.expires_us) and wall_us >= self.expires_us


class AccessState(msgspec.Struct):
    """Raises LocalError where a change makes no sense, and is then as it was before."""

    users: dict[str, User] = {}
    rules: list[NumberedRule] = []
    """In the order in which they are tried."""
    tokens: dict[str, Token] = {}
    """By digest."""
    next_rule: int = 1
    version: int = 0
    """Counts changes; 0 as long as nothing was ever set."""
    rules_version: int = 0
    """Counts those that change what somebody may do; adding a user or a token is none of them."""

    # -------------------------------------------------------------------------------------- users

    def add_user(self, user: User) -> None:
        check_name(user.name)
        if user.name in self.users:
            raise LocalError(f"user {user.name!r} exists; change the password with passwd")
        if len(self.users) >= USERS_MAX:
            raise LocalError(f"there are {USERS_MAX} users, the most")
        if not self.users and not user.is_lasting_admin:
            raise LocalError(
                "the first user must be an administrator with a password: millrace user add NAME --role admin"
            )
        self.users[user.name] = user
        self._changed(rules=bool(user.roles) or len(self.users) == 1)

    def set_password(self, name: str, password_hash: str, scram: ScramKeys | None = None) -> None:
        self._replace_user(replace(self.user(name), password_hash=password_hash, scram=scram))
        self._changed(rules=False)

    def set_roles(self, name: str, roles: tuple[Role, ...]) -> None:
        self._replace_user(replace(self.user(name), roles=roles))
        self._changed(rules=True)

    def delete_user(self, name: str) -> int:
        """Removes a user with the user's rules and tokens: a later user of that name must not inherit them.
        Returns how many rules went."""
        user = self.user(name)
        self._must_keep_admin(user, None)
        del self.users[name]
        kept = [one for one in self.rules if one.rule.user != name]
        removed, self.rules = len(self.rules) - len(kept), kept
        self.tokens = {digest: token for digest, token in self.tokens.items() if token.user != name}
        self._changed(rules=True)
        return removed

    def user(self, name: str) -> User:
        found = self.users.get(name)
        if found is None:
            near = get_close_matches(name, list(self.users), n=1)
            raise LocalError(f"there is no user {name!r}" + (f"; the nearest is {near[0]!r}" if near else ""))
        return found

    def _replace_user(self, user: User) -> None:
        self._must_keep_admin(self.users[user.name], user)
        self.users[user.name] = user

    def _must_keep_admin(self, before: User, after: User | None) -> None:
        is_less = before.is_lasting_admin and not (after is not None and after.is_lasting_admin)
        if is_less and sum(user.is_lasting_admin for user in self.users.values()) == 1:
            raise LocalError("no administrator with a password would be left")

    # -------------------------------------------------------------------------------------- rules

    def add_rule(self, rule: Rule, position: int = 0) -> int:
        """Puts the rule at this position, counted from 1, or after all others; returns its number."""
        if rule.user not in (EVERYBODY, ANONYMOUS):
            self.user(rule.user)
        same = next((one.number for one in self.rules if one.rule == rule), None)
        if same is not None:
            raise LocalError(f"rule {same} says the same")
        if len(self.rules) >= ACCESS_RULES_MAX:
            raise LocalError(f"there are {ACCESS_RULES_MAX} rules, the most")
        number = self.next_rule
        self.next_rule += 1
        at = position - 1 if position else len(self.rules)
        self.rules.insert(at, NumberedRule(number=number, rule=rule))
        self._changed(rules=True)
        return number

    def delete_rule(self, number: int) -> None:
        kept = [one for one in self.rules if one.number != number]
        if len(kept) == len(self.rules):
            raise LocalError(f"there is no rule {number}; there are {len(kept)}")
        self.rules = kept
        self._changed(rules=True)

    # ------------------------------------------------------------------------------------- tokens

    def add_token(self, token: Token) -> None:
        check_name(token.name, "a token's name")
        user = self.user(token.user)
        if any(other.name == token.name for other in self.tokens.values()):
            raise LocalError(f"token {token.name!r} exists; revoke it first or take another name")
        if len(self.tokens) >= TOKENS_MAX:
            raise LocalError(f"there are {TOKENS_MAX} tokens, the most")
        for role in token.roles or ():
            if not any(own.includes(role) for own in user.roles):
                raise LocalError(f"user {user.name!r} is no {role.value}, so a token of that user is none")
        self.tokens[token.digest] = token
        self._changed(rules=False)

    def delete_token(self, name: str) -> None:
        kept = {digest: token for digest, token in self.tokens.items() if token.name != name}
        if len(kept) == len(self.tokens):
            raise LocalError(f"there is no token {name!r}")
        self.tokens = kept
        self._changed(rules=False)

    # -------------------------------------------------------------------------------------- whole

    def load(self, users: Iterable[User], rules: Iterable[Rule], *, only_first: bool) -> None:
        """Takes all users and rules at once, in place of those there are; `only_first` refuses where there
        ever were any. A token stays where its user does."""
        if only_first and self.version:
            raise LocalError("the cluster has users and rules of its own")
        self.users = {user.name: user for user in users}
        self.rules = [NumberedRule(number=at, rule=rule) for at, rule in enumerate(rules, self.next_rule)]
        self.next_rule += len(self.rules)
        self.tokens = {digest: token for digest, token in self.tokens.items() if token.user in self.users}
        self._changed(rules=True)

    def rules_after(self, before: AccessRules) -> AccessRules:
        """The rules as the broker asks them, as the successor of those in force."""
        return before.successor(
            (one.rule for one in self.rules),
            has_users=bool(self.users),
            admins=(user.name for user in self.users.values() if user.may_administer),
            observers=(user.name for user in self.users.values() if user.roles),
        )

    def _changed(self, *, rules: bool) -> None:
        self.version += 1
        self.rules_version += rules


def check_name(name: str, what: str = "a user name") -> None:
    """Raises LocalError for a name that a new user or token may not have."""
    if name in (EVERYBODY, ANONYMOUS):
        raise LocalError(f"{name!r} is a word of the access rules, not a name for a user")
    if NAME.fullmatch(name) is None:
        raise LocalError(f"{what} {_NAME_RULE}: {name!r}")
