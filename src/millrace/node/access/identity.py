"""Who a client or a caller turned out to be, and by what proof."""

from dataclasses import dataclass
from enum import Enum

from millrace.broker.access import Scope
from millrace.broker.meta.access import Token


class Proof(Enum):
    NONE = "none"
    """Nobody in particular."""
    CERTIFICATE = "certificate"
    """The name in a certificate that TLS has verified."""
    PASSWORD = "password"
    TOKEN = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One login. `Authentication.is_current` says whether it would still succeed."""

    username: str | None = None
    proof: Proof = Proof.NONE
    password_hash: str = ""
    """The hash that the password was checked against."""
    token: Token | None = None

    @property
    def scope(self) -> Scope:
        """What the token is limited to; None where nothing is."""
        return None if self.token is None else self.token.scope


NOBODY = Identity()
