"""The check of a password, and the short memory of those that were right.

Hashing is slow by design (tens of milliseconds, and it lets go of the interpreter lock), so `matches` belongs
in a worker thread. A success is remembered for a short time by a keyed digest of user, stored hash and
password, so that a fleet that reconnects does not pay again; `remembers` is that look-up alone and is fit for
the event loop. An unknown user costs the same work as a known one, so that the time of the answer does not
tell which names exist.
"""

import hashlib
import hmac
import os
from collections.abc import Container

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from millrace.errors import LocalError
from millrace.limits import STRING_BYTES_TOP

# The lighter of the two settings that OWASP names for Argon2id: many devices log in at once after an outage.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
# Well-formed, of the usual cost, and the hash of nothing known: the work done for an unknown user.
_UNKNOWN = f"$argon2id$v=19$m={_HASHER.memory_cost},t={_HASHER.time_cost},p=1${'A' * 22}${'A' * 43}"

# Long enough for a reconnecting fleet, short enough that a forgotten process holds no proof for long.
REMEMBERED_S = 60.0


def hash_password(password: bytes) -> str:
    """A fresh Argon2 hash; takes tens of milliseconds."""
    if not password:
        raise LocalError("the password is empty")
    if len(password) > STRING_BYTES_TOP:
        raise LocalError(f"the password has more than {STRING_BYTES_TOP} bytes")
    return _HASHER.hash(password)


def matches(stored: str, password: bytes) -> bool:
    """Whether the stored hash is that of this password. An empty hash matches nothing and costs the same.
    Slow: run it in a worker thread."""
    try:
        return _HASHER.verify(stored or _UNKNOWN, password) and bool(stored)
    except (Argon2Error, InvalidHashError):
        return False


class RightPasswords:
    """Which passwords were right a short time ago. A stored hash that changed voids what was remembered."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        # One entry for a user at most, so the number of users bounds it.
        self._remembered: dict[str, tuple[bytes, float]] = {}

    def remembers(self, username: str, stored: str, password: bytes, now_s: float) -> bool:
        """Whether this password was right a short time ago: microseconds, no hashing."""
        digest, until_s = self._remembered.get(username, (b"", 0.0))
        if not stored or now_s >= until_s:
            return False
        return hmac.compare_digest(digest, self._digest(username, stored, password))

    def remember(self, username: str, stored: str, password: bytes, now_s: float) -> None:
        self._remembered[username] = (self._digest(username, stored, password), now_s + REMEMBERED_S)

    def keep_only(self, usernames: Container[str]) -> None:
        """Forget users who are gone."""
        for name in [name for name in self._remembered if name not in usernames]:
            del self._remembered[name]

    def _digest(self, username: str, stored: str, password: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in (username.encode(), stored.encode(), password):
            digest.update(len(part).to_bytes(4, "big") + part)
        return digest.digest()
