"""Users, access rules and tokens of the cluster. Any node answers, and takes changes to the meta group.

Observers see who there is and what the rules are; administrators change it. A user who came by password may
change that password, and make tokens that stand for the same user.
"""

from collections import Counter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from millrace.broker.access import EVERYBODY, Action, Effect, Role, Rule
from millrace.broker.entries.meta import (
    AccessEntry,
    AddRule,
    AddToken,
    AddUser,
    DeleteRule,
    DeleteToken,
    DeleteUser,
    SetPassword,
    SetRoles,
)
from millrace.broker.meta import state as meta
from millrace.broker.meta.access import AccessState, NumberedRule, ScramKeys, Token, User
from millrace.errors import LocalError
from millrace.node.access.caller import Caller
from millrace.node.access.identity import Proof
from millrace.node.access.tokens import new_token
from millrace.node.doors.http.admin import examples
from millrace.node.doors.http.answers import access as answers
from millrace.node.doors.http.answers.access import (
    MadeToken,
    RemovedUser,
    RoleName,
    RuleRow,
    TokenRow,
    UserRow,
)
from millrace.node.doors.http.answers.base import AnswerRoute, Page, example
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.guard import CallerIs, identify, observe
from millrace.node.doors.http.problems import Problem
from millrace.node.json_form import Form
from millrace.node.streams.definitions import Refused

Roles = Annotated[list[RoleName], Field(fail_fast=True, max_length=10)]
router = APIRouter(prefix="/v1", tags=["access"], dependencies=[Depends(identify)], route_class=AnswerRoute)

_EXPIRES_S_MAX = 10 * 366 * 24 * 60 * 60
_SCOPE_MAX = 100

Password = Annotated[str, Field(min_length=1, max_length=1_024, description="Kept as an Argon2 hash.")]
Limit = Annotated[int, Query(ge=1, le=1_000, description="Rows at most.")]
Cursor = Annotated[str, Query(description="`next` of the page before.")]
Search = Annotated[str, Query(description="Only rows that contain this text.")]


class NewUser(Form):
    name: str
    password: Password | None = None
    roles: Roles = []


class UserChange(Form):
    password: Password | None = None
    roles: Roles | None = None


class NewRule(Form):
    user: Annotated[str, Field(description="A user's name, * for everybody, or anonymous.")]
    effect: Literal["allow", "deny"]
    action: Literal["publish", "subscribe", "all"]
    filter: Annotated[str, Field(description="Topic filter; %u is the user name, %c the client id.")]
    position: Annotated[int, Field(ge=1)] | None = None
    """Counted from 1, which is before all others; after them if left out."""


class NewToken(Form):
    name: str
    user: str
    expires_s: Annotated[int, Field(ge=1, le=_EXPIRES_S_MAX)] | None = None
    allow: Annotated[list[str], Field(fail_fast=True, max_length=_SCOPE_MAX)] | None = None
    """Limits the token: publish:FILTER, subscribe:FILTER or all:FILTER. Without it, all the user may do."""
    roles: Roles | None = None
    """Roles of the user that the token has; without it, all of them, or none if `allow` limits it."""


# --------------------------------------------------------------------------------------------- users


@router.get(
    "/users",
    dependencies=[Depends(observe)],
    summary="All users",
    response_model=Page[UserRow],
    responses=example(examples.page(answers.USER)),
)
async def list_users(
    request: Request, limit: Limit = 100, cursor: Cursor = "", search: Search = ""
) -> Page[UserRow]:
    """The users, by name."""
    state = _state(request)
    names = sorted(name for name in state.users if name > cursor and search in name)
    return Page[UserRow](
        items=_user_rows(state, [state.users[name] for name in names[:limit]]),
        next=names[limit - 1] if len(names) > limit else None,
        missing=[],
    )


@router.post(
    "/users",
    status_code=201,
    summary="Add a user",
    response_model=UserRow,
    responses=example(answers.USER, 201),
)
async def create_user(request: Request, form: NewUser, caller: CallerIs) -> UserRow:
    """Add a user. The first one must be an administrator, and from then on nobody comes in without a name."""
    caller.must_be(Role.ADMIN)
    if form.name in _state(request).users:
        raise Problem(409, f"user {form.name!r} exists; change the password with passwd")
    password_hash, scram = await _hash(request, form.password)
    user = User(name=form.name, password_hash=password_hash, roles=roles_of(form.roles), scram=scram)
    await command(request, caller, AddUser(user), f"added user {form.name}")
    return _user_rows(_state(request), [user])[0]


@router.patch(
    "/users/{name:path}",
    summary="Change a user",
    response_model=UserRow,
    responses=example(answers.USER),
)
async def change_user(request: Request, name: str, form: UserChange, caller: CallerIs) -> UserRow:
    """Change the password, the roles or both. Connections that came by the old password end."""
    if form.roles is not None or caller.username != name or caller.proof is not Proof.PASSWORD:
        caller.must_be(Role.ADMIN)
    _known_user(request, name)
    if form.password is not None:
        password_hash, scram = await _hash(request, form.password)
        entry = SetPassword(name, password_hash, scram)
        await command(request, caller, entry, f"changed the password of {name}")
    if form.roles is not None:
        await command(request, caller, SetRoles(name, roles_of(form.roles)), f"changed the roles of {name}")
    return _user_rows(_state(request), [_known_user(request, name)])[0]


@router.delete(
    "/users/{name:path}",
    summary="Remove a user",
    response_model=RemovedUser,
    responses=example({"name": "ann", "rules_removed": 2}),
)
async def delete_user(request: Request, name: str, caller: CallerIs) -> RemovedUser:
    """Remove a user with the user's rules and tokens; the user's connections end."""
    caller.must_be(Role.ADMIN)
    _known_user(request, name)
    result = await command(request, caller, DeleteUser(name), f"removed user {name}")
    return RemovedUser(name=name, rules_removed=result.count)


# --------------------------------------------------------------------------------------------- rules


@router.get(
    "/rules",
    dependencies=[Depends(observe)],
    summary="All access rules",
    response_model=Page[RuleRow],
    responses=example(examples.page(answers.RULE)),
)
async def list_rules(
    request: Request,
    limit: Limit = 100,
    cursor: Cursor = "",
    search: Search = "",
    user: Annotated[str, Query(description="Only rules of this user.")] = "",
) -> Page[RuleRow]:
    """The access rules. Those of a user are tried first, then those of *; the first that matches decides."""
    rows = [
        _rule_row(one)
        for one in _state(request).rules
        if (not user or one.rule.user == user) and (search in one.rule.filter or search in one.rule.user)
    ]
    numbers = [str(row.number) for row in rows]
    begin = numbers.index(cursor) + 1 if cursor in numbers else 0
    page = rows[begin : begin + limit]
    return Page[RuleRow](
        items=page, next=str(page[-1].number) if begin + limit < len(rows) else None, missing=[]
    )


@router.post(
    "/rules",
    status_code=201,
    summary="Add an access rule",
    response_model=RuleRow,
    responses=example(answers.RULE, 201),
)
async def create_rule(request: Request, form: NewRule, caller: CallerIs) -> RuleRow:
    """Add a rule. It holds at once for clients that are connected, at every node."""
    caller.must_be(Role.ADMIN)
    rule = _rule(form.user, form.effect, form.action, form.filter)
    said = f"added the rule {form.user} {form.effect} {form.action} {form.filter}"
    result = await command(request, caller, AddRule(rule, form.position or 0), said)
    return _rule_row(NumberedRule(number=result.count, rule=rule))


@router.delete(
    "/rules/{number}",
    summary="Remove an access rule",
    response_model=RuleRow,
    responses=example(answers.RULE),
)
async def delete_rule(request: Request, number: int, caller: CallerIs) -> RuleRow:
    """Remove a rule. It holds at once for clients that are connected, at every node."""
    caller.must_be(Role.ADMIN)
    rules = _state(request).rules
    found = next((one for one in rules if one.number == number), None)
    if found is None:
        raise Problem(404, f"there is no rule {number}; there are {len(rules)}")
    await command(request, caller, DeleteRule(number), f"removed rule {number}")
    return _rule_row(found)


# -------------------------------------------------------------------------------------------- tokens


@router.get(
    "/tokens",
    dependencies=[Depends(observe)],
    summary="All tokens",
    response_model=Page[TokenRow],
    responses=example(examples.page(answers.TOKEN)),
)
async def list_tokens(
    request: Request, limit: Limit = 100, cursor: Cursor = "", search: Search = ""
) -> Page[TokenRow]:
    """The tokens, by name, without their secrets."""
    by_name = {token.name: token for token in _state(request).tokens.values()}
    names = sorted(
        name for name, token in by_name.items() if name > cursor and (search in name or search in token.user)
    )
    wall_us = server_of(request).machine_us()
    return Page[TokenRow](
        items=[_token_row(by_name[name], wall_us) for name in names[:limit]],
        next=names[limit - 1] if len(names) > limit else None,
        missing=[],
    )


@router.post(
    "/tokens",
    status_code=201,
    summary="Make a token",
    response_model=MadeToken,
    responses=example(answers.MADE_TOKEN, 201),
)
async def create_token(request: Request, form: NewToken, caller: CallerIs) -> MadeToken:
    """Make a token that stands for a user, whole or limited. The answer is the only place that shows it."""
    if caller.username != form.user or caller.proof is not Proof.PASSWORD:
        caller.must_be(Role.ADMIN)
    _known_user(request, form.user)
    secret, digest = new_token()
    wall_us = server_of(request).machine_us()
    roles = roles_of(form.roles) if form.roles is not None else (None if form.allow is None else ())
    token = Token(
        name=form.name,
        user=form.user,
        digest=digest,
        scope=None if form.allow is None else tuple(_scope_rule(text) for text in form.allow),
        roles=roles,
        expires_us=0 if form.expires_s is None else wall_us + form.expires_s * 1_000_000,
        created_us=wall_us,
    )
    await command(request, caller, AddToken(token), f"made token {form.name} for {form.user}")
    return MadeToken(**_token_row(token, wall_us).model_dump(), token=secret)


@router.delete(
    "/tokens/{name}",
    status_code=204,
    summary="Revoke a token",
)
async def revoke_token(request: Request, name: str, caller: CallerIs) -> None:
    """Revoke a token; connections that came by it end."""
    found = next((token for token in _state(request).tokens.values() if token.name == name), None)
    if found is None or caller.username != found.user or caller.proof is not Proof.PASSWORD:
        caller.must_be(Role.ADMIN)
    if found is None:
        raise Problem(404, f"there is no token {name!r}")
    await command(request, caller, DeleteToken(name), f"revoked token {name}")


# ------------------------------------------------------------------------------------------- helpers


def _state(request: Request) -> AccessState:
    return server_of(request).engine.access.state


def _known_user(request: Request, name: str) -> User:
    try:
        return _state(request).user(name)
    except LocalError as error:
        raise Problem(404, str(error)) from None


async def _hash(request: Request, password: str | None) -> tuple[str, ScramKeys | None]:
    if password is None:
        return "", None
    return await server_of(request).authentication.hash(password.encode())


async def command(request: Request, caller: Caller, entry: AccessEntry, said: str) -> meta.Result:
    """Change the state of the cluster; what makes no sense is a conflict with what is there."""
    try:
        result = await server_of(request).engine.definitions.command(entry)
    except Refused as error:
        raise Problem(409, str(error)) from None
    except LocalError as error:
        raise Problem(503, str(error), headers={"Retry-After": "1"}) from None
    record(request, caller, said)
    return result


def record(request: Request, caller: Caller, said: str) -> None:
    """Tell what an administrator did, in the events and in the audit."""
    who = "an administrator" if caller.username is None else repr(caller.username)
    server_of(request).events.record("access", "info", f"{who} {said}", user=caller.username)


def roles_of(names: list[RoleName]) -> tuple[Role, ...]:
    return tuple(role for role in Role if role.value in names)


def _rule(user: str, effect: str, action: str, filter: str) -> Rule:
    try:
        return Rule(user=user, effect=Effect(effect), action=Action(action), filter=filter)
    except LocalError as error:
        raise Problem(400, str(error)) from None


def _scope_rule(text: str) -> Rule:
    action, colon, filter = text.partition(":")
    if not colon or action not in {one.value for one in Action}:
        raise Problem(400, f"{text!r} is not publish:FILTER, subscribe:FILTER or all:FILTER")
    return _rule(EVERYBODY, "allow", action, filter)


def _user_rows(state: AccessState, users: list[User]) -> list[UserRow]:
    tokens = Counter(token.user for token in state.tokens.values())
    rules = Counter(one.rule.user for one in state.rules)
    return [
        UserRow(
            name=user.name,
            roles=role_names(user.roles),
            has_password=bool(user.password_hash),
            tokens=tokens[user.name],
            rules=rules[user.name],
        )
        for user in users
    ]


def _rule_row(one: NumberedRule) -> RuleRow:
    rule = one.rule
    values: dict[str, Any] = {"effect": rule.effect.value, "action": rule.action.value}
    return RuleRow(number=one.number, user=rule.user, filter=rule.filter, **values)


def _token_row(token: Token, wall_us: int) -> TokenRow:
    scope = token.scope
    return TokenRow(
        name=token.name,
        user=token.user,
        allow=None if scope is None else [f"{rule.action.value}:{rule.filter}" for rule in scope],
        roles=None if token.roles is None else role_names(token.roles),
        expires_us=token.expires_us or None,
        created_us=token.created_us,
        is_expired=token.is_expired(wall_us),
    )


def role_names(roles: tuple[Role, ...]) -> list[RoleName]:
    names: list[Any] = [role.value for role in roles]
    return names
