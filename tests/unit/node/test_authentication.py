"""Who comes in: before the users are known nobody, then by name, token or as nobody in particular."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from argon2 import PasswordHasher

from millrace.broker.access import AccessRules, Action, Effect, Role, Rule
from millrace.broker.meta.access import AccessState, Token, User
from millrace.node.access.authentication import ANY_USER, Authentication, Refusals
from millrace.node.access.identity import NOBODY, Identity, Proof
from millrace.node.access.tokens import new_token

HERE, AWAY = ("127.0.0.1", 1), ("10.0.0.1", 1)
HASH, OTHER = (
    PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(text) for text in ("secret", "other")
)
SECRET, DIGEST = new_token()


class Node:
    """An authenticator, the state that it is told, and a wall clock."""

    def __init__(self, anonymous: Any = "loopback") -> None:
        self.wall_us = 1_000
        self.state = AccessState()
        self.authentication = Authentication(anonymous, wall_us=lambda: self.wall_us)

    def reload(self) -> None:
        self.authentication.reload(self.state, self.state.rules_after(AccessRules()))

    def verify(self, peer: Any, name: str | None = None, password: bytes = b"") -> Identity | None:
        async def ask() -> Identity | None:
            return await self.authentication.verify(peer, name, password)

        return asyncio.run(ask())


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.authentication.close()


def with_users(node: Node) -> Node:
    node.state.add_user(User(name="root", password_hash=HASH, roles=(Role.ADMIN,)))
    node.state.add_user(User(name="ann", password_hash=HASH, roles=(Role.OPERATOR,)))
    node.state.add_token(Token(name="t", user="ann", digest=DIGEST, expires_us=2_000))
    node.reload()
    return node


def test_before_the_users_are_known_nobody_comes_in(node: Node) -> None:
    """Rule 31: a node that has not applied users and rules serves nobody."""
    assert node.verify(HERE) is None
    assert node.verify(HERE, "ann", b"secret") is None
    assert node.authentication.verify_token(SECRET.encode()) is None
    assert not node.authentication.is_current(NOBODY, HERE)
    assert node.authentication.roles(NOBODY, HERE) == frozenset()


def test_without_users_this_machine_comes_in_under_any_name(node: Node) -> None:
    node.reload()
    assert node.verify(HERE) == node.verify(HERE, "whoever", b"x") == NOBODY
    assert node.verify(AWAY) is None
    assert node.authentication.roles(NOBODY, HERE) == {Role.ADMIN}
    assert node.authentication.roles(NOBODY, AWAY) == {Role.OBSERVER}


def test_with_users_this_machine_is_asked_for_a_name_like_any_other(node: Node) -> None:
    with_users(node)
    assert node.verify(HERE) is None
    assert not node.authentication.is_current(NOBODY, HERE), "who came before the first user goes"
    assert node.verify(HERE, "ann", b"wrong") is None
    assert node.verify(HERE, "ann") is None
    assert node.verify(HERE, "nobody", b"secret") is None
    found = node.verify(HERE, "ann", b"secret")
    assert found is not None and (found.username, found.proof) == ("ann", Proof.PASSWORD)


def test_a_rule_for_anonymous_lets_this_machine_in_and_one_for_everybody_does_not(node: Node) -> None:
    with_users(node)
    node.state.add_rule(Rule(user="*", effect=Effect.ALLOW, action=Action.ALL, filter="#"))
    node.reload()
    assert node.verify(HERE) is None
    node.state.add_rule(Rule(user="anonymous", effect=Effect.ALLOW, action=Action.PUBLISH, filter="in"))
    node.reload()
    assert node.verify(HERE) == NOBODY
    assert node.verify(AWAY) is None
    assert node.authentication.roles(NOBODY, HERE) == frozenset(), "it may administer nothing"


def test_a_login_ends_with_its_user_or_its_password(node: Node) -> None:
    with_users(node)
    ann = node.verify(AWAY, "ann", b"secret")
    assert ann is not None and node.authentication.is_current(ann, AWAY)
    node.state.set_password("ann", OTHER)
    node.reload()
    assert not node.authentication.is_current(ann, AWAY)
    assert node.verify(AWAY, "ann", b"secret") is None, "nothing is remembered of the old password"
    again = node.verify(AWAY, "ann", b"other")
    assert again is not None
    node.state.delete_user("ann")
    node.reload()
    assert not node.authentication.is_current(again, AWAY)
    assert node.verify(AWAY, "ann", b"other") is None


def test_a_password_that_changes_while_it_is_checked_is_refused(node: Node) -> None:
    with_users(node)

    async def race() -> Identity | None:
        asking = asyncio.create_task(node.authentication.verify(AWAY, "ann", b"secret"))
        await asyncio.sleep(0)
        node.state.set_password("ann", OTHER)
        return await asking

    assert asyncio.run(race()) is None


@pytest.mark.parametrize(("name", "comes_in"), [("ann", True), (ANY_USER, True), ("root", False)])
def test_a_token_is_a_password_for_its_user_and_for_the_name_token(
    node: Node, name: str, comes_in: bool
) -> None:
    found = with_users(node).verify(AWAY, name, SECRET.encode())
    assert (found is not None) is comes_in
    if found is not None:
        assert (found.username, found.proof) == ("ann", Proof.TOKEN)


def test_a_token_ends_by_its_time_its_name_and_its_user(node: Node) -> None:
    with_users(node)
    found = node.authentication.verify_token(SECRET.encode())
    assert found is not None and node.authentication.is_current(found, AWAY)
    node.wall_us = 2_000
    assert not node.authentication.is_current(found, AWAY)
    assert node.authentication.verify_token(SECRET.encode()) is None
    node.wall_us = 1_000
    node.state.delete_token("t")
    node.reload()
    assert not node.authentication.is_current(found, AWAY)
    assert node.authentication.verify_token(SECRET.encode()) is None


@pytest.mark.parametrize(
    ("roles", "expected"),
    [(None, {Role.OPERATOR}), ((), set()), ((Role.OBSERVER,), {Role.OBSERVER}), ((Role.ADMIN,), set())],
)
def test_a_token_has_no_role_that_its_user_has_not(
    node: Node, roles: tuple[Role, ...] | None, expected: set[Role]
) -> None:
    """Also where the user had it once and lost it since."""
    with_users(node)
    token = Token(name="u", user="ann", digest="d", roles=roles)
    identity = Identity(username="ann", proof=Proof.TOKEN, token=token)
    assert node.authentication.roles(identity, AWAY) == expected


def test_refusals_that_cost_nothing_are_told_once_a_second() -> None:
    now_s = 10.0
    refusals = Refusals(lambda: now_s)
    assert [refusals.told() for _ in range(1_000)] == ["", *[None] * 999]
    now_s = 11.0
    assert refusals.told() == " (and 999 refusals before it)"


def test_anonymous_always_comes_in_and_may_what_the_rules_say() -> None:
    node = with_users(Node("always"))
    assert node.verify(AWAY) == NOBODY
    node.authentication.close()
