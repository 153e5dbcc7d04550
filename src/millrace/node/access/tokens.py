"""API tokens: how a secret is made, told from a password, and found again without being kept.

A token is 32 random bytes, so its plain SHA-256 digest is all that anybody needs to recognize it and nothing
that it could be found from; unlike a password it needs no slow hash.
"""

import hashlib
import re
import secrets

_PREFIX = "mrt_"
_SHAPE = re.compile(rb"mrt_[A-Za-z0-9_-]{43}")


def new_token() -> tuple[str, str]:
    """(the secret, which is shown once; its digest, which is kept)."""
    secret = _PREFIX + secrets.token_urlsafe(32)
    return secret, digest_of(secret.encode())


def is_token(secret: bytes) -> bool:
    """Whether this has the form of a token. What has it is never tried as a password."""
    return _SHAPE.fullmatch(secret) is not None


def digest_of(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
