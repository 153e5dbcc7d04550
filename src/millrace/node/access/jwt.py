"""JSON web tokens (RFC 7519) as a proof of who somebody is, signed by an authority that the operator trusts.

The key decides, never the token: a key has one kind, from its file, and the algorithms of that kind, and the
token's `alg` has to be one of them. So no public key is ever a secret for HMAC, and `none` is no algorithm.
Keys that a token brings along (`jwk`, `jku`, `x5c`, `x5u`) are not looked at.

The file of keys is a JWKS document (RFC 7517), a public key or certificate in PEM, or a secret of at least 32
bytes for HS256, HS384 and HS512. All but the last need the package `cryptography` (decision 050).
"""

import base64
import hashlib
import hmac
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millrace.broker.access import EVERYBODY, Action, Effect, Role, Rule
from millrace.broker.meta.access import check_name
from millrace.errors import ConfigError, LocalError
from millrace.limits import JWT_BYTES_MAX, JWT_KEYS_MAX, JWT_RULES_MAX
from millrace.node.access.identity import Identity, Proof
from millrace.node.authority import NO_CRYPTOGRAPHY
from millrace.node.config import Jwt
from millrace.node.tls import FromFiles

_SHAPE = re.compile(rb"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_SECRET_BYTES_LEAST = 32
_RSA_BITS_LEAST = 2048
_HASHES = {"256": hashlib.sha256, "384": hashlib.sha384, "512": hashlib.sha512}
_CURVES = {"ES256": ("P-256", "secp256r1", 32), "ES384": ("P-384", "secp384r1", 48)}
_CURVES["ES512"] = ("P-521", "secp521r1", 66)

Verify = Callable[[str, bytes, bytes], bool]
"""Whether, under this algorithm, the signature is that of the text."""


class BadToken(LocalError):
    """The token proves nothing; the text says why, for the operator."""


class Key(NamedTuple):
    algorithms: frozenset[str]
    verify: Verify
    id: str = ""


def is_jwt(secret: bytes) -> bool:
    """Whether this has the form of a JSON web token."""
    return _SHAPE.fullmatch(secret) is not None


# ------------------------------------------------------------------------------------------- keys


def _hmac_key(secret: bytes) -> tuple[frozenset[str], Verify]:
    if len(secret) < _SECRET_BYTES_LEAST:
        # RFC 7518, 3.2: as long as the output of the hash; whoever can guess it can be anybody.
        raise ConfigError(f"a secret for HS256 has at least {_SECRET_BYTES_LEAST} bytes")

    def verify(algorithm: str, text: bytes, signature: bytes) -> bool:
        made = hmac.new(secret, text, _HASHES[algorithm[2:]]).digest()
        return hmac.compare_digest(made, signature)

    return frozenset(("HS256", "HS384", "HS512")), verify


def _public_key(key: Any) -> tuple[frozenset[str], Verify]:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    digests = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}

    def verify_rsa(algorithm: str, text: bytes, signature: bytes) -> bool:
        digest = digests[algorithm[2:]]
        scheme: Any = padding.PKCS1v15()
        if algorithm.startswith("PS"):
            scheme = padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH)
        try:
            key.verify(signature, text, scheme, digest)
        except InvalidSignature:
            return False
        return True

    def verify_ec(algorithm: str, text: bytes, signature: bytes) -> bool:
        size = _CURVES[algorithm][2]
        if len(signature) != 2 * size:
            return False
        pair = int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big")
        try:
            key.verify(encode_dss_signature(*pair), text, ec.ECDSA(digests[algorithm[2:]]))
        except InvalidSignature:
            return False
        return True

    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _RSA_BITS_LEAST:
            raise ConfigError(f"an RSA key has at least {_RSA_BITS_LEAST} bits")
        return frozenset(f"{kind}{bits}" for kind in ("RS", "PS") for bits in digests), verify_rsa
    if isinstance(key, ec.EllipticCurvePublicKey):
        # RFC 7518, 3.4: each algorithm has its curve.
        fitting = frozenset(name for name, (_, curve, _) in _CURVES.items() if curve == key.curve.name)
        if fitting:
            return fitting, verify_ec
    raise ConfigError("a public key is RSA, or of the curve P-256, P-384 or P-521")


def _of_jwk(jwk: Any) -> Key | None:
    """A key of a JWKS document; None for one that is not for signatures."""
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
        return None
    kind = jwk.get("kty")
    if kind == "oct":
        algorithms, verify = _hmac_key(_unpacked(str(jwk["k"])))
    elif kind in ("RSA", "EC"):
        from cryptography.hazmat.primitives.asymmetric import ec, rsa

        if kind == "RSA":
            key: Any = rsa.RSAPublicNumbers(_number(jwk["e"]), _number(jwk["n"])).public_key()
        else:
            curves = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
            curve = curves[str(jwk["crv"])]
            key = ec.EllipticCurvePublicNumbers(_number(jwk["x"]), _number(jwk["y"]), curve).public_key()
        algorithms, verify = _public_key(key)
    else:
        return None
    if "alg" in jwk:
        algorithms &= {str(jwk["alg"])}
    return Key(algorithms, verify, str(jwk.get("kid", ""))) if algorithms else None


def _of_pem(content: bytes) -> Key:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    if b"PRIVATE KEY" in content:
        raise ConfigError("this is a private key: the node needs the public one alone")
    if b"BEGIN CERTIFICATE" in content:
        return Key(*_public_key(load_pem_x509_certificate(content).public_key()))
    return Key(*_public_key(load_pem_public_key(content)))


def read_keys(file: str) -> tuple[Key, ...]:
    """The keys in a file; ConfigError says what is wrong with it, and shows nothing of it."""
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"jwt.keys_file: {error.strerror}: {file}") from None
    try:
        if content.lstrip().startswith(b"{"):
            found = [_of_jwk(one) for one in _object(content)["keys"]]
            keys = tuple(key for key in found if key is not None)
        elif b"-----BEGIN" in content:
            keys = (_of_pem(content),)
        else:
            keys = (Key(*_hmac_key(content.rstrip(b"\r\n"))),)
    except ImportError:
        raise ConfigError(f"jwt.keys_file: {NO_CRYPTOGRAPHY}") from None
    except ConfigError as error:
        raise ConfigError(f"jwt.keys_file: {error}: {file}") from None
    except (ValueError, KeyError, TypeError, BadToken):
        raise ConfigError(f"jwt.keys_file: neither a JWKS document nor a key in PEM: {file}") from None
    if not 0 < len(keys) <= JWT_KEYS_MAX:
        raise ConfigError(f"jwt.keys_file: {len(keys)} keys for signatures, 1 to {JWT_KEYS_MAX} do: {file}")
    return keys


# ----------------------------------------------------------------------------------------- tokens


@dataclass(frozen=True, slots=True)
class Tokens:
    """Checks tokens against one reading of the keys."""

    settings: Jwt
    keys: tuple[Key, ...]

    def identity(self, token: bytes, wall_us: int) -> Identity:
        """Whom the token names. BadToken where it proves nothing, or not now."""
        claims = self._claims(token)
        expires_us = self._check_times(claims, wall_us)
        self._check_parties(claims)
        name = claims.get(self.settings.user_claim)
        if not isinstance(name, str):
            raise BadToken(f"it has no claim {self.settings.user_claim} with a name")
        try:
            check_name(name)
            rules, roles = self._granted(claims)
        except LocalError as error:
            raise BadToken(str(error)) from None
        return Identity(
            username=name,
            proof=Proof.JWT,
            expires_us=expires_us,
            granted_rules=rules,
            granted_roles=roles,
            needs_user=self.settings.known_users_only,
        )

    def _claims(self, token: bytes) -> Mapping[str, Any]:
        """What is signed, once the signature is right."""
        if len(token) > JWT_BYTES_MAX or not is_jwt(token):
            raise BadToken("it has not the form of a token")
        text, _, signature = token.rpartition(b".")
        head, _, body = text.partition(b".")
        header = _object(_unpacked(head.decode()))
        if "crit" in header or "enc" in header:
            # RFC 7515, 4.1.11: what must be understood, and is not, makes it invalid.
            raise BadToken("it needs extensions that are not known here")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str):
            raise BadToken("its header names no algorithm")
        fitting = [
            key
            for key in self.keys
            if algorithm in key.algorithms and (key_id is None or not key.id or key.id == key_id)
        ]
        if not fitting:
            raise BadToken(f"no key is for the algorithm {algorithm[:16]!r} and the key id it names")
        sealed = _unpacked(signature.decode())
        if not any(key.verify(algorithm, text, sealed) for key in fitting):
            raise BadToken("its signature is wrong")
        return _object(_unpacked(body.decode()))

    def _check_times(self, claims: Mapping[str, Any], wall_us: int) -> int:
        """When it ends, in microseconds since 1970, the skew of clocks included."""
        skew_us = self.settings.clock_skew_s * 1_000_000
        end_us = _time_us(claims, "exp")
        if end_us is None:
            raise BadToken("it has no end (claim exp)")
        if wall_us >= end_us + skew_us:
            raise BadToken("it is over (claim exp)")
        for claim in ("nbf", "iat"):
            begin_us = _time_us(claims, claim)
            if begin_us is not None and wall_us < begin_us - skew_us:
                raise BadToken(f"its time has not begun (claim {claim})")
        return end_us + skew_us

    def _check_parties(self, claims: Mapping[str, Any]) -> None:
        settings = self.settings
        if settings.issuer and claims.get("iss") != settings.issuer:
            raise BadToken("it is from another issuer (claim iss)")
        audience = claims.get("aud", [])
        audiences = audience if isinstance(audience, list) else [audience]
        if settings.audience or audiences:
            # RFC 7519, 4.1.3: a token for others is refused, also by one who has no name.
            if settings.audience not in audiences:
                raise BadToken("it is for another audience (claim aud)")

    def _granted(self, claims: Mapping[str, Any]) -> tuple[tuple[Rule, ...], tuple[Role, ...]]:
        settings = self.settings
        rules = _texts(claims, settings.rules_claim)
        roles = _texts(claims, settings.roles_claim)
        known = {role.value: role for role in Role}
        return tuple(map(granted_rule, rules)), tuple(known[name] for name in roles if name in known)


def for_tokens(settings: Jwt) -> FromFiles[Tokens] | None:
    """What checks tokens, made again when the file of keys changes; None where no keys are configured."""
    file = settings.keys_file
    if not file:
        return None
    return FromFiles("the keys of jwt.keys_file", [file], lambda: Tokens(settings, read_keys(file)))


def granted_rule(text: str) -> Rule:
    """An allow rule written publish:FILTER, subscribe:FILTER or all:FILTER; LocalError for anything else."""
    action, colon, filter = text.partition(":")
    if not colon or action not in {one.value for one in Action}:
        raise LocalError(f"{text[:80]!r} is not publish:FILTER, subscribe:FILTER or all:FILTER")
    return Rule(user=EVERYBODY, effect=Effect.ALLOW, action=Action(action), filter=filter)


def _texts(claims: Mapping[str, Any], claim: str) -> list[str]:
    value = claims.get(claim, []) if claim else []
    texts = value.split() if isinstance(value, str) else value
    if (
        not isinstance(texts, list)
        or len(texts) > JWT_RULES_MAX
        or not all(isinstance(t, str) for t in texts)
    ):
        raise BadToken(f"its claim {claim} is no list of at most {JWT_RULES_MAX} texts")
    found: list[str] = texts
    return found


def _time_us(claims: Mapping[str, Any], claim: str) -> int | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadToken(f"its claim {claim} is no time")
    if not 0 <= value < 2**40:
        raise BadToken(f"its claim {claim} is out of range")
    return int(value * 1_000_000)


def _unpacked(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise BadToken("a part of it is not base64") from None


def _number(text: Any) -> int:
    return int.from_bytes(_unpacked(str(text)), "big")


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content, object_pairs_hook=_once_each)
    except (ValueError, RecursionError):
        raise BadToken("a part of it is not JSON") from None
    if not isinstance(found, dict):
        raise BadToken("a part of it is no JSON object")
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """RFC 7519, 4: a claim stands once; two readers must not see two different ones."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found
