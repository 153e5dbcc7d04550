"""Who a client or a caller turned out to be, and by what proof."""

from dataclasses import dataclass
from enum import Enum

from millrace.broker.access import AccessRules, Principal, Role, Rule, Scope
from millrace.broker.meta.access import Token


class Proof(Enum):
    NONE = "none"
    """Nobody in particular."""
    CERTIFICATE = "certificate"
    """The name in a certificate that TLS has verified."""
    PASSWORD = "password"
    """Sent, or proved by SCRAM."""
    TOKEN = "token"
    JWT = "jwt"
    """A JSON web token."""
    HOOK = "hook"
    """The word of the authentication hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One login. `Authentication.is_current` says whether it would still succeed."""

    username: str | None = None
    proof: Proof = Proof.NONE
    password_hash: str = ""
    """The hash that the password was checked against."""
    token: Token | None = None
    expires_us: int = 0
    """Since 1970: when the proof ends by itself; 0 is never."""
    granted_rules: tuple[Rule, ...] = ()
    granted_roles: tuple[Role, ...] = ()
    """What the proof itself grants, beside what the cluster says of the user."""
    needs_user: bool = False
    """It holds only as long as there is a user of this name."""

    def principal(self, rules: AccessRules, username: str | None, client_id: str) -> Principal:
        return rules.principal(username, client_id, self.scope, self.granted_rules)

    @property
    def ends_by_time(self) -> bool:
        """Whether it may end though nobody changes anything."""
        return self.expires_us != 0 or (self.token is not None and self.token.expires_us != 0)

    @property
    def scope(self) -> Scope:
        """What the token is limited to; None where nothing is."""
        return None if self.token is None else self.token.scope


NOBODY = Identity()
