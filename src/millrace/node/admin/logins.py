"""Who is logged in at this node: random tokens in memory, bounded in number and in time.

A token stands for what was proved with it, a password or an API token of a user: `Authentication.is_current`
says whether that still holds. Once the user is gone or has another password, it is worth nothing. A restart
forgets all of them.
"""

import hashlib
import secrets
from dataclasses import dataclass

from millrace.limits import LOGINS_MAX
from millrace.node.access.identity import Identity

LIFE_S = 12 * 60 * 60
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class _PageLogin:
    identity: Identity
    until_s: float


class PageLogins:
    def __init__(self) -> None:
        # By a digest: who reads this memory from afar, by the time a look-up takes, learns no token.
        self._logins: dict[bytes, _PageLogin] = {}

    def __len__(self) -> int:
        return len(self._logins)

    def begin(self, identity: Identity, now_s: float) -> str:
        """A new token for whoever this is. The oldest login ends where there are too many."""
        self._forget_old(now_s)
        while len(self._logins) >= LOGINS_MAX:
            del self._logins[next(iter(self._logins))]
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._logins[_digest(token)] = _PageLogin(identity, now_s + LIFE_S)
        return token

    def find(self, token: str, now_s: float) -> Identity | None:
        """Who logged in. The caller asks whether that login still holds."""
        login = self._logins.get(_digest(token))
        return login.identity if login is not None and login.until_s > now_s else None

    def end(self, token: str) -> None:
        self._logins.pop(_digest(token), None)

    def _forget_old(self, now_s: float) -> None:
        # They are in the order of their end.
        while self._logins:
            first = next(iter(self._logins))
            if self._logins[first].until_s > now_s:
                return
            del self._logins[first]


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=32).digest()
