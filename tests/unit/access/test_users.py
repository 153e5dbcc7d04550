"""The users file: what is written loads back, errors name the place."""

import os
import threading
from functools import partial
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.access import Action, Effect, Rule
from millrace.broker.topics.filters import is_valid
from millrace.errors import ConfigError, LocalError
from millrace.node.access.users import Users, change, load, parse, render

# Cheap, for tests that do not care about the strength of a hash.
HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(b"secret")
ALLOW = Rule(user="ann", effect=Effect.ALLOW, action=Action.PUBLISH, filter="a/#")
DENY = Rule(user="*", effect=Effect.DENY, action=Action.ALL, filter="b")


def names() -> st.SearchStrategy[str]:
    characters = st.characters(exclude_categories=["C", "Z"])
    return st.text(characters, min_size=1, max_size=9).filter(lambda name: name not in ("*", "anonymous"))


def filters() -> st.SearchStrategy[str]:
    """Filters of rules: any valid one but those of shared subscriptions, which a rule does not take."""
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
    return text.filter(lambda filter: is_valid(filter) and not filter.startswith("$share/"))


@given(st.lists(names(), unique=True), st.data())
def test_what_is_rendered_parses_back_equal(users: list[str], data: st.DataObject) -> None:
    subjects = st.sampled_from([*users, "*", "anonymous"])
    rule = st.builds(
        Rule, user=subjects, effect=st.sampled_from(Effect), action=st.sampled_from(Action), filter=filters()
    )
    content = Users(hashes=dict.fromkeys(users, HASH), rules=tuple(data.draw(st.lists(rule))))
    assert parse(render(content)) == content


def test_changes_are_on_disk_with_mode_0600_in_a_directory_that_was_made(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users.toml"
    mask = os.umask(0)
    try:
        change(path, lambda users: users.with_user("ann", HASH))
    finally:
        os.umask(mask)
    change(path, lambda users: users.with_rule(ALLOW).with_rule(DENY))
    assert load(path, missing_ok=False) == Users(hashes={"ann": HASH}, rules=(ALLOW, DENY))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(path.parent)) == ["users.toml", "users.toml.lock"]


def test_a_file_left_aside_by_a_crash_is_replaced_and_never_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "users.toml", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "users.toml.new").symlink_to(victim)
    change(path, lambda users: users.with_user("ann", HASH))
    assert victim.read_text() == "precious"
    assert "ann" in load(path, missing_ok=False).hashes


def test_a_path_that_is_a_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.touch(mode=0o600)
    link.symlink_to(real)
    change(link, lambda users: users.with_user("ann", HASH))
    assert link.is_symlink()
    assert "ann" in load(real, missing_ok=False).hashes


def test_a_refused_change_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    change(path, lambda users: users.with_user("ann", HASH))
    before = path.read_bytes()
    with pytest.raises(LocalError, match="no user 'bob'"):
        change(path, lambda users: users.without_user("bob"))
    assert path.read_bytes() == before


def test_changes_at_the_same_time_do_not_lose_each_other(tmp_path: Path) -> None:
    path, count = tmp_path / "users.toml", 8
    start = threading.Barrier(count)

    def add(name: str) -> None:
        start.wait(timeout=10)
        for user in (f"{name}-a", f"{name}-b", f"{name}-c"):
            change(path, partial(Users.with_user, name=user, password_hash=HASH))

    threads = [threading.Thread(target=add, args=(f"user{number}",)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(load(path, missing_ok=False).hashes) == 3 * count


def test_a_missing_file_is_empty_only_where_that_is_asked_for(tmp_path: Path) -> None:
    assert load(tmp_path / "absent", missing_ok=True) == Users()
    with pytest.raises(ConfigError, match="absent: no such file"):
        load(tmp_path / "absent", missing_ok=False)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.touch(mode=0o600)
    path.chmod(0o660)
    with pytest.raises(ConfigError, match="chmod 600"):
        load(path, missing_ok=False)


def rule_with(old: str, new: str) -> str:
    return f"rules = [{RULE.replace(old, new)}]\n"


RULE = '{ user = "*", effect = "allow", action = "all", filter = "a" }'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[users\n", "at line 1"),
        ("[user]\n", "unknown key 'user'"),
        ("users = 1\n", "users is a table"),
        ("rules = 1\n", "rules is an array"),
        ('[users]\nann = "plain"\n', "user 'ann': not an Argon2 hash"),
        ("[users]\nann = 1\n", "user 'ann': not an Argon2 hash"),
        (f'[users]\nann = "{HASH.replace("m=8", "m=9999999")}"\n', "user 'ann': the hash asks for more work"),
        (f'[users]\nann = "{HASH.replace("t=1", "t=101")}"\n', "user 'ann': the hash asks for more work"),
        (f'[users]\nanonymous = "{HASH}"\n', "'anonymous' is a word of the access rules"),
        (f'[users]\n"" = "{HASH}"\n', "a user name has 1 to"),
        (f'[users]\n"a\\nb" = "{HASH}"\n', "a user name has 1 to"),
        (f"rules = [{RULE}, 1]\n", "rule 2: expected"),
        (f"rules = [{RULE}, {RULE.replace('filter', 'topic')}]\n", "rule 2: expected"),
        (rule_with('"a"', "1"), "rule 1: user, effect, action and filter are text"),
        (f"rules = [{RULE}, {RULE.replace('*', 'bob')}]\n", "rule 2: there is no user 'bob'"),
        (rule_with("allow", "permit"), "rule 1 of '*': expected allow or deny"),
        (rule_with('"all"', '"write"'), "rule 1 of '*': expected allow or deny"),
        (rule_with('"a"', '"a/#/b"'), "rule 1 of '*': 'a/#/b' is not a topic filter"),
    ],
)
def test_an_error_names_the_file_and_the_line_user_or_rule(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, missing_ok=False)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_a_removed_user_takes_the_rules_along() -> None:
    users = Users().with_user("ann", HASH).with_rule(ALLOW).with_rule(DENY)
    assert users.without_user("ann") == Users(rules=(DENY,))


def test_changes_that_make_no_sense_are_refused() -> None:
    users = Users().with_user("ann", HASH).with_rule(ALLOW)
    bob = Rule(user="bob", effect=Effect.ALLOW, action=Action.ALL, filter="a")
    for operation, expected in (
        (lambda: users.with_user("ann", HASH), "user 'ann' exists"),
        (lambda: users.with_user("*", HASH), "is a word of the access rules"),
        (lambda: users.with_user("\udcff", HASH), "letters, digits and . _ - @"),
        (lambda: users.with_user("x" * 1_025, HASH), "a user name has 1 to"),
        (lambda: users.with_password("anm", HASH), "no user 'anm'; the nearest is 'ann'"),
        (lambda: users.with_rule(bob), "no user 'bob'"),
        (lambda: users.with_rule(ALLOW), "rule 1 says the same"),
        (lambda: users.without_rule(0), "there is no rule 0; there are 1"),
        (lambda: users.without_rule(2), "there is no rule 2; there are 1"),
    ):
        with pytest.raises(LocalError, match=expected):
            operation()
