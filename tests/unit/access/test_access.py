"""Access rules: order, names taken literally, defaults, and principals that are shared."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.access import ANONYMOUS, EVERYBODY, AccessRules, Action, Effect, Role, Rule
from millrace.broker.topics.filters import matches
from millrace.errors import ConfigError
from millrace.limits import ACCESS_RULES_MAX


def rule(line: str) -> Rule:
    user, effect, action, filter = line.split(" ")
    return Rule(user=user, effect=Effect(effect), action=Action(action), filter=filter)


def rules(*lines: str) -> AccessRules:
    return AccessRules(rule(line) for line in lines)


def test_without_rules_everybody_may_do_everything_but_publish_to_dollar_topics() -> None:
    principal = rules().principal(None, "c1")
    assert principal.unrestricted
    assert principal.may_publish("a/b")
    assert principal.may_subscribe("#")
    assert principal.may_subscribe("$SYS/#")
    assert principal.may_receive("$SYS/uptime")
    assert not principal.may_publish("$SYS/uptime")


def test_one_rule_of_anybody_closes_the_door_for_everybody_else() -> None:
    access = rules("ann allow all a/#")
    for principal in (access.principal("bob", "c"), access.principal(None, "c")):
        assert not principal.unrestricted
        assert not principal.may_publish("a/b")
        assert not principal.may_subscribe("a/b")
        assert not principal.may_receive("a/b")
    assert access.principal("ann", "c").may_publish("a/b")


def test_the_first_match_decides() -> None:
    principal = rules("ann deny publish a/secret", "ann allow publish a/#", "ann deny publish a/b").principal(
        "ann", "c"
    )
    assert not principal.may_publish("a/secret")
    assert principal.may_publish("a/b")
    assert not principal.may_publish("b")


def test_rules_of_the_user_come_before_those_of_everybody_wherever_they_stand() -> None:
    access = rules("* deny all a/#", "ann allow all a/#", "* allow all #")
    assert access.principal("ann", "c").may_publish("a/b")
    assert not access.principal("bob", "c").may_publish("a/b")
    assert access.principal("bob", "c").may_publish("b")


def test_rules_for_anonymous_and_for_everybody_apply_to_anonymous() -> None:
    access = rules(f"{ANONYMOUS} allow publish in/#", f"{EVERYBODY} allow subscribe out/#")
    nobody = access.principal(None, "c")
    assert nobody.may_publish("in/x")
    assert nobody.may_subscribe("out/#")
    ann = access.principal("ann", "c")
    assert not ann.may_publish("in/x")
    assert ann.may_subscribe("out/#")


@pytest.mark.parametrize("name", [ANONYMOUS, EVERYBODY])
def test_a_user_named_like_a_reserved_word_gets_only_the_rules_of_everybody(name: str) -> None:
    access = rules(f"{ANONYMOUS} allow publish in/#", f"{EVERYBODY} allow subscribe out/#")
    assert not access.principal(name, "c").may_publish("in/x")
    assert access.principal(name, "c").may_subscribe("out/#")


def test_publish_and_subscribe_are_apart() -> None:
    principal = rules("ann allow publish a", "ann allow subscribe b").principal("ann", "c")
    assert (principal.may_publish("a"), principal.may_subscribe("a"), principal.may_receive("a")) == (
        True,
        False,
        False,
    )
    assert (principal.may_publish("b"), principal.may_subscribe("b"), principal.may_receive("b")) == (
        False,
        True,
        True,
    )


def test_a_filter_wider_than_the_rule_is_refused() -> None:
    principal = rules("ann allow subscribe a/+").principal("ann", "c")
    assert principal.may_subscribe("a/+")
    assert principal.may_subscribe("a/b")
    assert not principal.may_subscribe("a/#")
    assert not principal.may_subscribe("+/b")
    assert not principal.may_subscribe("#")


def test_a_filter_that_touches_an_earlier_deny_is_refused_and_a_later_deny_is_without_effect() -> None:
    principal = rules(
        "ann deny subscribe a/secret/#", "ann allow subscribe a/#", "ann deny subscribe a/b"
    ).principal("ann", "c")
    assert not principal.may_subscribe("a/#")
    assert not principal.may_subscribe("a/+")
    assert not principal.may_subscribe("a/secret/x")
    assert principal.may_subscribe("a/b/#")
    assert principal.may_subscribe("a/b")
    assert not principal.may_receive("a/secret")
    assert principal.may_receive("a/b")


def test_sys_is_open_to_all_unless_denied() -> None:
    access = rules("ann allow all a", "bob deny subscribe $SYS/secret/#", "eve deny all $SYS/#")
    for user in ("ann", "nobody", None):
        assert access.principal(user, "c").may_subscribe("$SYS/#")
        assert access.principal(user, "c").may_receive("$SYS/uptime")
    assert not access.principal("bob", "c").may_subscribe("$SYS/#")
    assert access.principal("bob", "c").may_subscribe("$SYS/uptime")
    assert not access.principal("eve", "c").may_receive("$SYS/uptime")


def test_a_rule_cannot_open_dollar_topics_for_publishing() -> None:
    principal = rules("ann allow all $SYS/#", "ann allow all #").principal("ann", "c")
    assert not principal.may_publish("$SYS/x")
    assert not principal.may_publish("$other")
    assert principal.may_publish("a/$x")


def test_names_fill_their_place_inside_one_level() -> None:
    access = rules("* allow all home/%u/#", "* allow all dev-%c/in", "* allow all %c/%u")
    principal = access.principal("ann", "c1")
    assert principal.may_publish("home/ann/x")
    assert not principal.may_publish("home/bob/x")
    assert principal.may_publish("dev-c1/in")
    assert principal.may_publish("c1/ann")
    assert not principal.may_subscribe("home/+/#")
    assert principal.may_subscribe("home/ann/#")


@pytest.mark.parametrize("name", ["a/b", "+", "#", "a/#", "/", "a+", "b#", "+/x", ""])
def test_a_name_with_a_separator_or_wildcard_matches_nothing(name: str) -> None:
    access = rules("* allow all home/%u", "* allow all dev/%c", "* allow all x-%c/#")
    principal = access.principal(name, name)
    for topic in (f"home/{name}", f"dev/{name}", f"x-{name}/y", "home/ann", "dev/c", "home/a/b"):
        assert not principal.may_publish(topic)
        assert not principal.may_subscribe(topic)
        assert not principal.may_receive(topic)
    assert not principal.may_subscribe("home/#")


def test_a_name_is_no_template_and_cannot_reach_dollar_topics() -> None:
    access = rules("* allow all %c/x", "* allow subscribe %c/#")
    assert not access.principal("ann", "%u").may_publish("ann/x")
    assert access.principal("ann", "%u").may_publish("%u/x")
    assert not access.principal("ann", "$other").may_subscribe("$other/#")
    assert not access.principal("ann", "$other").may_receive("$other/y")


def test_a_rule_with_a_user_name_is_nothing_to_anonymous() -> None:
    principal = rules("* allow all home/%u", "* allow all open").principal(None, "c")
    assert not principal.may_publish("home/")
    assert not principal.may_publish("home/None")
    assert principal.may_publish("open")


def test_clients_for_whom_the_rules_are_equal_share_a_principal() -> None:
    access = rules("* allow subscribe out/#", "ann allow publish in", "bob allow publish in")
    ann = access.principal("ann", "c1")
    assert access.principal("ann", "c2") is ann
    assert access.principal("bob", "c3") is ann
    assert access.principal("eve", "c4") is access.principal(None, "c5")
    assert access.principal("eve", "c4") is not ann
    assert len({ann, access.principal("bob", "c9")}) == 1


def test_client_rules_give_a_principal_each() -> None:
    access = rules("* allow all dev/%c")
    one, two = access.principal("ann", "c1"), access.principal("ann", "c2")
    assert one is not two
    assert access.principal("bob", "c1") is one


@pytest.mark.parametrize(("subject", "username"), [("ann", "ann"), (ANONYMOUS, None)])
def test_client_rules_of_one_user_do_not_leak_to_the_next_client(subject: str, username: str | None) -> None:
    access = rules(f"{subject} allow all dev/%c", "bob allow all b")
    one, two = access.principal(username, "c1"), access.principal(username, "c2")
    assert (one.may_publish("dev/c1"), one.may_publish("dev/c2")) == (True, False)
    assert (two.may_publish("dev/c1"), two.may_publish("dev/c2")) == (False, True)
    assert access.principal("bob", "c1") is access.principal("bob", "c2")


def test_principals_nobody_holds_are_forgotten() -> None:
    access = rules("* allow all dev/%c")
    for number in range(1_000):
        access.principal("ann", f"c{number}")
    gc.collect()
    assert len(access._by_name) == len(access._by_rules) == 0


def test_a_successor_has_the_next_generation_and_its_own_principals() -> None:
    before = rules("* allow all #")
    after = before.successor([rule("* deny subscribe secret/#"), rule("* allow all #")])
    assert after.generation == before.generation + 1
    old, new = before.principal("ann", "c"), after.principal("ann", "c")
    assert old is not new
    assert (old.generation, new.generation) == (before.generation, after.generation)
    assert old.may_receive("secret/x")
    assert not new.may_receive("secret/x")


@pytest.mark.parametrize("filter", ["", "a/#/b", "a+", "+%u", "%c#", "$share/g/a"])
def test_a_rule_that_is_no_filter_is_refused(filter: str) -> None:
    with pytest.raises(ConfigError, match=r"filter"):
        Rule(user="ann", effect=Effect.ALLOW, action=Action.ALL, filter=filter)


def test_the_number_of_rules_has_a_bound() -> None:
    with pytest.raises(ConfigError, match="10001 access rules"):
        AccessRules([rule("ann allow all a")] * (ACCESS_RULES_MAX + 1))


def test_with_users_and_without_rules_everything_is_denied() -> None:
    """The broker does not open again because the last rule went."""
    access = AccessRules(has_users=True)
    for username in ("ann", None):
        principal = access.principal(username, "c")
        assert not principal.unrestricted
        assert not principal.may_publish("a") and not principal.may_subscribe("a")
        assert not principal.may_receive("a") and principal.may_receive("$SYS/uptime")


def test_an_administrator_may_do_what_no_rule_denies() -> None:
    access = AccessRules([rule("root deny all secret/#")], has_users=True, admins=["root"])
    root = access.principal("root", "c")
    assert root.may_publish("a") and root.may_receive("a/b") and not root.may_subscribe("#")
    assert not root.may_publish("secret/x") and not root.may_publish("$SYS/x")
    assert not access.principal("ann", "c").may_publish("a")


def test_only_an_allow_rule_of_their_own_lets_anonymous_clients_in() -> None:
    assert rules("anonymous deny all a", "anonymous allow publish b").allows_anonymous
    assert not rules("anonymous deny all a", "* allow all #").allows_anonymous


def test_a_token_may_do_what_its_user_and_its_scope_both_allow() -> None:
    access = rules("ann allow all home/%u/#", "ann allow publish log")
    scope = (rule("* allow publish home/#"), rule("* allow subscribe home/%u/in"))
    ann, token = access.principal("ann", "c"), access.principal("ann", "c", scope)
    assert token.may_publish("home/ann/x") and ann.may_publish("log")
    assert not token.may_publish("log"), "the scope does not name it"
    assert not token.may_publish("home/bob/x"), "the user may not"
    assert token.may_subscribe("home/ann/in") and not token.may_subscribe("home/ann/#")
    assert token.may_receive("home/ann/in") and not token.may_receive("home/ann/out")
    assert not token.may_receive("$SYS/uptime"), "a scope names all there is"
    assert access.principal("ann", "d", scope) is token, "one cached route serves all who may the same"


def test_a_scoped_token_of_an_administrator_is_scoped() -> None:
    access = AccessRules(has_users=True, admins=["root"])
    token = access.principal("root", "c", (rule("* allow publish a"),))
    assert token.may_publish("a") and not token.may_publish("b") and not token.may_subscribe("a")


def test_a_role_includes_those_below_it() -> None:
    assert Role.ADMIN.includes(Role.OBSERVER) and Role.OPERATOR.includes(Role.OPERATOR)
    assert not Role.OBSERVER.includes(Role.OPERATOR) and not Role.OPERATOR.includes(Role.ADMIN)


FILTERS = ("a", "a/b", "a/+", "a/#", "+/b", "#", "+", "b")
TOPICS = ("a", "a/b", "a/c", "a/b/c", "b", "c/b", "c")


@given(
    st.lists(st.tuples(st.sampled_from(Effect), st.sampled_from(FILTERS)), min_size=1, max_size=5),
    st.sampled_from(FILTERS),
)
def test_a_granted_filter_is_granted_whole(lines: list[tuple[Effect, str]], asked: str) -> None:
    """Everything a granted filter matches may be received; a filter of one topic is judged as that topic."""
    access = AccessRules(
        Rule(user="*", effect=effect, action=Action.SUBSCRIBE, filter=filter) for effect, filter in lines
    )
    principal = access.principal("ann", "c")
    if principal.may_subscribe(asked):
        assert all(principal.may_receive(topic) for topic in TOPICS if matches(asked, topic))
    for topic in TOPICS:
        assert principal.may_subscribe(topic) == principal.may_receive(topic)
