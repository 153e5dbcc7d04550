"""Users, access rules and tokens as a whole, for backups: administrators copy them out and in.

What proves a password or a token is in a copy, as hashes. So a copy brings everybody back with the passwords
and tokens they have, and it is kept like a secret.
"""

import base64
import binascii
from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from millrace.broker.access import Action, Effect, Role, Rule
from millrace.broker.entries.meta import AddRule, AddToken, AddUser
from millrace.broker.meta.access import ScramKeys, Token, User
from millrace.errors import LocalError
from millrace.node.doors.http.access import command, record, role_names, roles_of
from millrace.node.doors.http.answers.access import AddedAccess, RoleName
from millrace.node.doors.http.answers.base import AnswerRoute, example
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.guard import CallerIs, identify
from millrace.node.doors.http.problems import Problem
from millrace.node.json_form import Form

router = APIRouter(prefix="/v1", tags=["access"], dependencies=[Depends(identify)], route_class=AnswerRoute)

Row = TypeVar("Row")
_PART_MAX = 500
_ARGON2 = "$argon2"
CopiedRoles = Annotated[list[RoleName], Field(fail_fast=True, max_length=10)]


class CopiedScram(Form):
    """What proves a password by SCRAM-SHA-256."""

    salt: Annotated[str, Field(description="In base64.")]
    iterations: Annotated[int, Field(ge=1, description="How often the password was hashed.")]
    stored_key: Annotated[str, Field(description="In base64.")]
    server_key: Annotated[str, Field(description="In base64.")]


class CopiedUser(Form):
    """A user, who keeps the password."""

    name: Annotated[str, Field(description="The user's name.")]
    password_hash: Annotated[str, Field(max_length=1_024, description="Argon2, or empty.")] = ""
    roles: Annotated[CopiedRoles, Field(description="What the user may administer.")] = []
    scram: Annotated[CopiedScram | None, Field(description="Of the same password.")] = None


class CopiedRule(Form):
    """An access rule. Its number is not copied."""

    user: Annotated[str, Field(description="A user's name, * for everybody, or anonymous.")]
    effect: Annotated[Literal["allow", "deny"], Field(description="What it decides.")]
    action: Annotated[Literal["publish", "subscribe", "all"], Field(description="About what.")]
    filter: Annotated[str, Field(description="Topic filter; %u is the user name, %c the client id.")]


class CopiedToken(Form):
    """A token, which stays good for who has its secret."""

    name: Annotated[str, Field(description="Name of the token.")]
    user: Annotated[str, Field(description="User for whom the token stands.")]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the secret.")]
    scope: Annotated[
        list[CopiedRule] | None,
        Field(fail_fast=True, max_length=100, description="What limits it; null is all the user may do."),
    ] = None
    roles: Annotated[CopiedRoles | None, Field(description="Null is all roles of the user.")] = None
    expires_us: Annotated[int, Field(ge=0, description="Microseconds since 1970; 0 is never.")] = 0
    created_us: Annotated[int, Field(ge=0, description="When it was made.")] = 0


class AccessCopy(Form):
    """Users, rules in the order in which they are tried, and tokens; or a part of them."""

    users: Annotated[
        list[CopiedUser], Field(fail_fast=True, max_length=_PART_MAX, description="With their hashes.")
    ] = []
    rules: Annotated[
        list[CopiedRule], Field(fail_fast=True, max_length=_PART_MAX, description="In their order.")
    ] = []
    tokens: Annotated[
        list[CopiedToken],
        Field(fail_fast=True, max_length=_PART_MAX, description="With their hashes."),
    ] = []
    next: Annotated[str | None, Field(description="Cursor of the next part; null in the last one.")] = None


@router.get(
    "/access",
    summary="A copy of users, rules and tokens",
    response_model=AccessCopy,
    responses=example({"users": [], "rules": [], "tokens": [], "next": None}),
)
async def copy_access(
    request: Request,
    caller: CallerIs,
    cursor: Annotated[str, Query(description="`next` of the part before.")] = "",
    limit: Annotated[int, Query(ge=1, le=_PART_MAX, description="Rows at most.")] = _PART_MAX,
) -> AccessCopy:
    """One part of a copy: users first, then rules, then tokens. Secrets are in it as hashes. Where something
    changed since the first part, the answer is 409: begin again."""
    caller.must_be(Role.ADMIN)
    state = server_of(request).engine.access.state
    first = _place(cursor, state.version)
    if not cursor:
        record(request, caller, "copied users, rules and tokens")
    part = AccessCopy(next=None)
    ends = accumulate((len(state.users), len(state.rules), len(state.tokens)))
    users_end, rules_end, end = ends
    chosen = range(first, min(first + limit, end))
    part.users = [_copied_user(one) for one in _slice(state.users.values(), chosen, 0, users_end)]
    part.rules = [_copied_rule(one.rule) for one in _slice(state.rules, chosen, users_end, rules_end)]
    part.tokens = [_copied_token(one) for one in _slice(state.tokens.values(), chosen, rules_end, end)]
    if chosen.stop < end:
        part.next = f"{state.version}:{chosen.stop}"
    return part


@router.post(
    "/access",
    summary="Add users, rules and tokens of a copy",
    response_model=AddedAccess,
    responses=example({"users": 12, "rules": 30, "tokens": 4, "differing": ["ann"]}),
)
async def add_access(request: Request, form: AccessCopy, caller: CallerIs) -> AddedAccess:
    """Add what is not there: users, then rules behind those that are there, then tokens. Who or what is there
    stays as it is. Where the cluster has no users, an administrator with a password must be among them."""
    caller.must_be(Role.ADMIN)
    users, rules, tokens = _taken(form)
    state = server_of(request).engine.access.state
    if users and not state.users and not any(user.is_lasting_admin for user in users):
        raise Problem(409, "the first users must have an administrator with a password among them")
    added = AddedAccess(users=0, rules=0, tokens=0, differing=[])
    for user in sorted(users, key=lambda user: not user.is_lasting_admin):
        there = state.users.get(user.name)
        if there is None:
            await command(request, caller, AddUser(user), f"added user {user.name} from a copy")
            added.users += 1
        elif there != user:
            added.differing.append(user.name)
    rules_there = {one.rule for one in state.rules}
    for rule in rules:
        if rule not in rules_there:
            said = f"{rule.user} {rule.effect.value} {rule.action.value} {rule.filter}"
            await command(request, caller, AddRule(rule, 0), f"added the rule {said} from a copy")
            added.rules += 1
    tokens_there = {token.name for token in state.tokens.values()}
    for token in tokens:
        if token.name not in tokens_there:
            await command(request, caller, AddToken(token), f"added token {token.name} from a copy")
            added.tokens += 1
    return added


# ------------------------------------------------------------------------------------------- helpers


def _place(cursor: str, version: int) -> int:
    """With which row a part begins."""
    if not cursor:
        return 0
    of_version, _, first = cursor.partition(":")
    if not (of_version.isdecimal() and first.isdecimal() and len(cursor) <= 40):
        raise Problem(400, f"cursor {cursor!r} is none of this list")
    if int(of_version) != version:
        raise Problem(409, "users, rules or tokens were changed since the first part: begin again")
    return int(first)


def _slice(rows: Iterable[Row], chosen: range, first: int, end: int) -> Iterable[Row]:
    """The chosen ones of `rows`, whose first one has the number `first`; `end` is behind their last."""
    return islice(rows, max(0, chosen.start - first), max(0, min(chosen.stop, end) - first))


def _copied_user(user: User) -> CopiedUser:
    scram = user.scram
    return CopiedUser(
        name=user.name,
        password_hash=user.password_hash,
        roles=role_names(user.roles),
        scram=None
        if scram is None
        else CopiedScram(
            salt=_text(scram.salt),
            iterations=scram.iterations,
            stored_key=_text(scram.stored_key),
            server_key=_text(scram.server_key),
        ),
    )


def _copied_rule(rule: Rule) -> CopiedRule:
    values: dict[str, Any] = {"effect": rule.effect.value, "action": rule.action.value}
    return CopiedRule(user=rule.user, filter=rule.filter, **values)


def _copied_token(token: Token) -> CopiedToken:
    return CopiedToken(
        name=token.name,
        user=token.user,
        digest=token.digest,
        scope=None if token.scope is None else [_copied_rule(rule) for rule in token.scope],
        roles=None if token.roles is None else role_names(token.roles),
        expires_us=token.expires_us,
        created_us=token.created_us,
    )


def _taken(form: AccessCopy) -> tuple[list[User], list[Rule], list[Token]]:
    """What a copy says, or 400 where that makes no sense."""
    try:
        return (
            [_user(one) for one in form.users],
            [_rule(one) for one in form.rules],
            [_token(one) for one in form.tokens],
        )
    except (LocalError, binascii.Error, ValueError) as error:
        raise Problem(400, f"this is no copy of users, rules and tokens: {error}") from None


def _user(copied: CopiedUser) -> User:
    if copied.password_hash and not copied.password_hash.startswith(_ARGON2):
        raise LocalError(f"the password of {copied.name!r} is no Argon2 hash")
    scram = copied.scram
    return User(
        name=copied.name,
        password_hash=copied.password_hash,
        roles=roles_of(copied.roles),
        scram=None
        if scram is None
        else ScramKeys(
            salt=base64.b64decode(scram.salt, validate=True),
            iterations=scram.iterations,
            stored_key=base64.b64decode(scram.stored_key, validate=True),
            server_key=base64.b64decode(scram.server_key, validate=True),
        ),
    )


def _rule(copied: CopiedRule) -> Rule:
    return Rule(
        user=copied.user,
        effect=Effect(copied.effect),
        action=Action(copied.action),
        filter=copied.filter,
    )


def _token(copied: CopiedToken) -> Token:
    return Token(
        name=copied.name,
        user=copied.user,
        digest=copied.digest,
        scope=None if copied.scope is None else tuple(_rule(one) for one in copied.scope),
        roles=None if copied.roles is None else roles_of(copied.roles),
        expires_us=copied.expires_us,
        created_us=copied.created_us,
    )


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()
