"""Answers about users, access rules and tokens."""

from typing import Annotated, Any, Literal

from pydantic import Field

from millrace.node.doors.http.answers.base import Answer

RoleName = Literal["admin", "operator", "observer"]


class UserRow(Answer):
    name: Annotated[str, Field(description="The user's name.")]
    roles: Annotated[list[RoleName], Field(description="What the user may administer.")]
    has_password: Annotated[bool, Field(description="False: comes by token or certificate alone.")]
    tokens: Annotated[int, Field(description="How many tokens stand for this user.")]
    rules: Annotated[int, Field(description="How many access rules name this user.")]


class RemovedUser(Answer):
    name: Annotated[str, Field(description="Who is removed.")]
    rules_removed: Annotated[int, Field(description="How many rules named this user and are gone, too.")]


class RuleRow(Answer):
    number: Annotated[int, Field(description="The name of the rule: it stays, and is never used again.")]
    user: Annotated[str, Field(description="A user's name, * for everybody, or anonymous.")]
    effect: Annotated[Literal["allow", "deny"], Field(description="What it decides.")]
    action: Annotated[Literal["publish", "subscribe", "all"], Field(description="About what.")]
    filter: Annotated[str, Field(description="Topic filter; %u is the user name, %c the client id.")]


class TokenRow(Answer):
    name: Annotated[str, Field(description="Name of the token, by which it is listed and revoked.")]
    user: Annotated[str, Field(description="User for whom the token stands.")]
    allow: Annotated[
        list[str] | None, Field(description="ACTION:FILTER that limit it; null is all the user may do.")
    ]
    roles: Annotated[list[RoleName] | None, Field(description="Roles that it has; null is all of the user.")]
    expires_us: Annotated[int | None, Field(description="Microseconds since 1970; null is never.")]
    created_us: Annotated[int, Field(description="When it was made.")]
    is_expired: Annotated[bool, Field(description="Whether its time is over.")]


class MadeToken(TokenRow):
    token: Annotated[str, Field(description="The secret. It is shown here once and kept nowhere.")]


class AddedAccess(Answer):
    """What a copy brought that was not there."""

    users: Annotated[int, Field(description="Users that were added.")]
    rules: Annotated[int, Field(description="Rules that were added, behind those that were there.")]
    tokens: Annotated[int, Field(description="Tokens that were added.")]
    differing: Annotated[
        list[str],
        Field(description="Users who were there, and keep another password or other roles."),
    ]


USER: dict[str, Any] = {"name": "ann", "roles": ["operator"], "has_password": True, "tokens": 1, "rules": 2}
RULE: dict[str, Any] = {
    "number": 3,
    "user": "ann",
    "effect": "allow",
    "action": "publish",
    "filter": "sensors/#",
}
TOKEN: dict[str, Any] = {
    "name": "ci",
    "user": "ann",
    "allow": ["publish:sensors/#"],
    "roles": [],
    "expires_us": 1_795_000_000_000_000,
    "created_us": 1_792_400_000_000_000,
    "is_expired": False,
}
MADE_TOKEN: dict[str, Any] = TOKEN | {"token": "mrt_" + "x" * 43}
