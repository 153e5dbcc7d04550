"""Users, rules and tokens as state: what is refused, what goes along, and what can never be lost."""

import pytest

from millrace.broker.access import Action, Effect, Role, Rule
from millrace.broker.meta.access import AccessState, Token, User
from millrace.errors import LocalError

ROOT = User(name="root", password_hash="h", roles=(Role.ADMIN,))


def rule(user: str, filter: str) -> Rule:
    return Rule(user=user, effect=Effect.ALLOW, action=Action.ALL, filter=filter)


def with_root() -> AccessState:
    state = AccessState()
    state.add_user(ROOT)
    return state


@pytest.mark.parametrize(
    "user", [User(name="ann", password_hash="h"), User(name="ann", roles=(Role.ADMIN,))], ids=["user", "mute"]
)
def test_the_first_user_must_be_able_to_administer(user: User) -> None:
    """Otherwise nobody could let anybody in any more."""
    with pytest.raises(LocalError, match="first user must be an administrator"):
        AccessState().add_user(user)


def test_the_last_administrator_stays() -> None:
    state = with_root()
    state.add_user(User(name="ann", password_hash="h"))
    for change in (
        lambda: state.delete_user("root"),
        lambda: state.set_roles("root", (Role.OPERATOR,)),
        lambda: state.set_password("root", ""),
    ):
        with pytest.raises(LocalError, match="no administrator with a password would be left"):
            change()
    state.set_roles("ann", (Role.ADMIN,))
    state.delete_user("root")
    with pytest.raises(LocalError, match="no administrator"):
        state.delete_user("ann")
    assert list(state.users) == ["ann"]


def test_a_removed_user_takes_rules_and_tokens_along() -> None:
    state = with_root()
    state.add_user(User(name="ann"))
    state.add_rule(rule("ann", "a"))
    kept = state.add_rule(rule("*", "a"))
    state.add_token(Token(name="t", user="ann", digest="1"))
    state.add_token(Token(name="u", user="root", digest="2"))
    assert state.delete_user("ann") == 1
    assert [one.number for one in state.rules] == [kept]
    assert [token.name for token in state.tokens.values()] == ["u"]


def test_numbers_of_rules_are_never_used_again_and_a_position_orders_them() -> None:
    state = with_root()
    first, second = state.add_rule(rule("*", "a")), state.add_rule(rule("*", "b"))
    state.delete_rule(second)
    third = state.add_rule(rule("*", "c"), position=1)
    assert [one.number for one in state.rules] == [third, first]
    assert (first, second, third) == (1, 2, 3)
    state.add_rule(rule("*", "d"), position=9)
    assert state.rules[-1].rule.filter == "d", "behind the end is the end"


def test_changes_that_make_no_sense_are_refused() -> None:
    state = with_root()
    state.add_user(User(name="ann"))
    state.add_rule(rule("ann", "a"))
    state.add_token(Token(name="t", user="ann", digest="1"))
    before = (dict(state.users), list(state.rules), dict(state.tokens), state.version)
    for operation, expected in (
        (lambda: state.add_user(User(name="ann")), "user 'ann' exists"),
        (lambda: state.add_user(User(name="*")), "is a word of the access rules"),
        (lambda: state.add_user(User(name="a b")), "letters, digits"),
        (lambda: state.add_user(User(name="x" * 65)), "1 to 64 characters"),
        (lambda: state.add_user(User(name="ann\n")), "letters, digits"),
        (lambda: state.set_password("anm", "h"), "no user 'anm'; the nearest is 'ann'"),
        (lambda: state.add_rule(rule("bob", "a")), "no user 'bob'"),
        (lambda: state.add_rule(rule("ann", "a")), "rule 1 says the same"),
        (lambda: state.delete_rule(2), "there is no rule 2; there are 1"),
        (lambda: state.add_token(Token(name="t", user="ann", digest="2")), "token 't' exists"),
        (lambda: state.add_token(Token(name="s", user="bob", digest="2")), "no user 'bob'"),
        (
            lambda: state.add_token(Token(name="s", user="ann", digest="2", roles=(Role.OBSERVER,))),
            "user 'ann' is no observer",
        ),
        (lambda: state.delete_token("s"), "no token 's'"),
        (lambda: state.load((), (), only_first=True), "users and rules of its own"),
    ):
        with pytest.raises(LocalError, match=expected):
            operation()
    assert (dict(state.users), list(state.rules), dict(state.tokens), state.version) == before


def test_what_is_loaded_replaces_all_and_may_come_without_an_administrator() -> None:
    state = AccessState()
    state.load([User(name="old name", password_hash="h")], [rule("old name", "a")], only_first=True)
    state.add_token(Token(name="t", user="old name", digest="1"))
    state.load([User(name="old name", password_hash="i"), ROOT], [rule("*", "b")], only_first=False)
    assert list(state.users) == ["old name", "root"]
    assert [(one.number, one.rule.filter) for one in state.rules] == [(2, "b")]
    assert len(state.tokens) == 1, "its user is still there"
    state.load([ROOT], [], only_first=False)
    assert not state.tokens and not state.rules


def test_only_what_changes_rights_counts_as_a_change_of_the_rules() -> None:
    """A change of the rules makes every node look at every connection and route."""
    state = with_root()
    before = state.rules_version
    state.add_user(User(name="ann", password_hash="h"))
    state.set_password("ann", "i")
    state.add_token(Token(name="t", user="ann", digest="1"))
    state.delete_token("t")
    assert state.rules_version == before
    state.set_roles("ann", (Role.ADMIN,))
    state.add_rule(rule("ann", "a"))
    assert state.rules_version == before + 2


def test_a_token_expires_by_the_wall() -> None:
    assert not Token(name="t", user="u", digest="d").is_expired(1 << 60)
    token = Token(name="t", user="u", digest="d", expires_us=10)
    assert token.is_expired(10) and not token.is_expired(9)
