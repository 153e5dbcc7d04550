"""The check of a password, and the short memory of those that were right."""

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import VerifyMismatchError

from millrace.errors import LocalError
from millrace.node.access import passwords as module
from millrace.node.access.passwords import REMEMBERED_S, RightPasswords, hash_password, matches
from millrace.node.access.tokens import digest_of, is_token, new_token

# Cheap, for tests that do not care about the strength of a hash.
HASH, OTHER = (
    PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(text) for text in ("secret", "other")
)


def test_a_password_is_right_or_wrong_and_may_be_any_bytes() -> None:
    stored = hash_password(b"\0\xff secret")
    assert matches(stored, b"\0\xff secret")
    assert not matches(stored, b"secret")
    assert not matches(stored, b"")
    assert not matches("", b"\0\xff secret")
    assert not matches("not a hash", b"x")


@pytest.mark.parametrize(
    ("password", "expected"), [(b"", "the password is empty"), (b"x" * 65_536, "more than 65535 bytes")]
)
def test_a_password_has_bounds(password: bytes, expected: str) -> None:
    with pytest.raises(LocalError, match=expected):
        hash_password(password)


def test_the_work_for_an_unknown_user_is_that_of_a_fresh_hash() -> None:
    assert extract_parameters(module._UNKNOWN) == extract_parameters(hash_password(b"x"))
    with pytest.raises(VerifyMismatchError):
        module._HASHER.verify(module._UNKNOWN, b"x")


def test_a_success_is_remembered_for_a_short_time() -> None:
    right = RightPasswords()
    assert not right.remembers("ann", HASH, b"secret", 100.0)
    right.remember("ann", HASH, b"secret", 100.0)
    assert right.remembers("ann", HASH, b"secret", 100.0 + REMEMBERED_S - 1)
    assert not right.remembers("ann", HASH, b"secret", 100.0 + REMEMBERED_S)
    assert not right.remembers("ann", HASH, b"wrong", 100.0)
    assert not right.remembers("bob", HASH, b"secret", 100.0)


def test_another_password_or_a_removed_user_voids_what_was_remembered() -> None:
    right = RightPasswords()
    for name in ("ann", "bob", "eve"):
        right.remember(name, HASH, b"secret", 0.0)
    right.keep_only({"ann": 1, "eve": 1})
    assert not right.remembers("ann", OTHER, b"secret", 1.0)
    assert not right.remembers("ann", "", b"secret", 1.0)
    assert not right.remembers("bob", HASH, b"secret", 1.0)
    assert right.remembers("eve", HASH, b"secret", 1.0)


def test_no_password_is_kept() -> None:
    right = RightPasswords()
    right.remember("ann", HASH, b"secret", 0.0)
    assert "secret" not in repr(vars(right))


def test_a_token_is_told_from_a_password_and_known_by_its_digest() -> None:
    (secret, digest), (other, _) = new_token(), new_token()
    assert secret != other
    assert is_token(secret.encode()) and digest_of(secret.encode()) == digest
    assert secret not in digest
    for password in (b"", b"mrt_", b"mrt_" + b"x" * 42, b"mrt_" + b"x" * 44, b"xmrt_" + b"x" * 43, b"\xff"):
        assert not is_token(password)
