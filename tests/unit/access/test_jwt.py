"""JSON web tokens: which prove who somebody is, and which prove nothing however they are dressed up."""

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.access import Role
from millrace.errors import ConfigError
from millrace.node.access.jwt import BadToken, Tokens, is_jwt, read_keys
from millrace.node.config import Jwt

SECRET = b"0123456789abcdef0123456789abcdef"
NOW_S = 1_800_000_000
RSA = rsa.generate_private_key(65537, 2048)
EC = {
    name: ec.generate_private_key(curve)
    for name, curve in (("ES256", ec.SECP256R1()), ("ES384", ec.SECP384R1()))
}
DIGESTS = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
GOOD = {"sub": "ann", "exp": NOW_S + 60}


def packed(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signature(algorithm: str, text: bytes, secret: bytes = SECRET) -> bytes:
    digest = DIGESTS[algorithm[2:]]
    if algorithm.startswith("HS"):
        return hmac.new(secret, text, getattr(hashlib, f"sha{algorithm[2:]}")).digest()
    if algorithm.startswith("RS"):
        return RSA.sign(text, padding.PKCS1v15(), digest)
    if algorithm.startswith("PS"):
        return RSA.sign(text, padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH), digest)
    size = {"256": 32, "384": 48}[algorithm[2:]]
    r, s = decode_dss_signature(EC[algorithm].sign(text, ec.ECDSA(digest)))
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def token(claims: Any = GOOD, algorithm: str = "HS256", secret: bytes = SECRET, **header: Any) -> bytes:
    text = f"{packed({'alg': algorithm, 'typ': 'JWT', **header})}.{packed(claims)}".encode()
    return text + b"." + packed(signature(algorithm, text, secret)).encode()


def public_pem(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


@pytest.fixture
def keys(tmp_path: Path) -> Any:
    def write(content: bytes | dict[str, Any]) -> Any:
        path = tmp_path / "keys"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read_keys(str(path))

    return write


def check(keys: Any, text: bytes, **settings: Any) -> Any:
    return Tokens(Jwt(**settings), keys).identity(text, NOW_S * 1_000_000)


@pytest.mark.parametrize(
    "algorithm", ["HS256", "HS384", "HS512", "RS256", "RS512", "PS256", "ES256", "ES384"]
)
def test_a_token_of_every_kind(keys: Any, algorithm: str) -> None:
    content = SECRET + b"\n"
    if algorithm[0] in "RP":
        content = public_pem(RSA)
    elif algorithm[0] == "E":
        content = public_pem(EC[algorithm])
    assert is_jwt(token(algorithm=algorithm))
    identity = check(keys(content), token(algorithm=algorithm))
    assert identity.username == "ann" and identity.expires_us == (NOW_S + 90) * 1_000_000


def test_the_example_of_the_standard(keys: Any) -> None:
    """RFC 7515, A.1: a signature of somebody else's making."""
    secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"
    text = (
        b"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6"
        b"Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    )
    found = keys({"keys": [{"kty": "oct", "k": secret}]})
    identity = Tokens(Jwt(user_claim="iss"), found).identity(text, 1_300_819_370 * 1_000_000)
    assert identity.username == "joe"


def test_keys_of_a_jwks_document_by_their_ids(keys: Any) -> None:
    numbers, point = RSA.public_key().public_numbers(), EC["ES256"].public_key().public_numbers()
    document = {
        "keys": [
            {
                "kty": "RSA",
                "kid": "r",
                "n": packed(numbers.n.to_bytes(256, "big")),
                "e": "AQAB",
                "alg": "RS256",
            },
            {
                "kty": "EC",
                "kid": "e",
                "crv": "P-256",
                "x": packed(point.x.to_bytes(32, "big")),
                "y": packed(point.y.to_bytes(32, "big")),
            },
            {"kty": "RSA", "use": "enc"},
            {"kty": "OKP", "crv": "X25519", "x": "AA"},
        ]
    }
    found = keys(document)
    assert check(found, token(algorithm="RS256", kid="r")).username == "ann"
    assert check(found, token(algorithm="ES256", kid="e")).username == "ann"
    for wrong in (token(algorithm="RS256", kid="e"), token(algorithm="RS512", kid="r"), token(kid="r")):
        with pytest.raises(BadToken, match="no key"):
            check(found, wrong)


def test_no_algorithm_is_no_signature(keys: Any) -> None:
    for algorithm in ("none", "None", "NONE", "", None, 5, ["HS256"]):
        head = packed({"alg": algorithm})
        for end in ("", packed(b""), packed(b"x")):
            with pytest.raises(BadToken):
                check(keys(SECRET), f"{head}.{packed(GOOD)}.{end}".encode())


def test_a_public_key_is_never_a_secret(keys: Any) -> None:
    """The oldest trick: sign with HMAC, and take the public key, which everybody has, as the secret."""
    for key in (RSA, EC["ES256"]):
        pem = public_pem(key)
        for secret in (pem, pem.strip(), pem + b"\n"):
            for algorithm in ("HS256", "HS384", "HS512"):
                with pytest.raises(BadToken, match="no key is for the algorithm"):
                    check(keys(pem), token(algorithm=algorithm, secret=secret))


def test_a_key_that_the_token_brings_along_counts_for_nothing(keys: Any) -> None:
    own = {"kty": "oct", "k": packed(b"x" * 32)}
    wrong = token(secret=b"x" * 32, jwk=own, jku="https://example.org/keys", x5u="https://example.org/c")
    with pytest.raises(BadToken, match="signature"):
        check(keys(SECRET), wrong)


@pytest.mark.parametrize(
    ("claims", "settings", "why"),
    [
        ({"sub": "ann"}, {}, "no end"),
        ({**GOOD, "exp": NOW_S - 31}, {}, "over"),
        ({**GOOD, "exp": "tomorrow"}, {}, "no time"),
        ({**GOOD, "exp": True}, {}, "no time"),
        ({**GOOD, "exp": 1e300}, {}, "out of range"),
        ({**GOOD, "nbf": NOW_S + 31}, {}, "not begun"),
        ({**GOOD, "iat": NOW_S + 31}, {}, "not begun"),
        (GOOD, {"issuer": "us"}, "issuer"),
        ({**GOOD, "iss": "them"}, {"issuer": "us"}, "issuer"),
        (GOOD, {"audience": "us"}, "audience"),
        ({**GOOD, "aud": "them"}, {"audience": "us"}, "audience"),
        ({**GOOD, "aud": ["them"]}, {}, "audience"),
        ({"exp": NOW_S + 60}, {}, "no claim sub"),
        ({**GOOD, "sub": 7}, {}, "no claim sub"),
        ({**GOOD, "sub": "*"}, {}, "word of the access rules"),
        ({**GOOD, "sub": "anonymous"}, {}, "word of the access rules"),
        ({**GOOD, "sub": "a/b"}, {}, "user name"),
        ({**GOOD, "rules": ["everything"]}, {"rules_claim": "rules"}, "publish:FILTER"),
        ({**GOOD, "rules": ["all:a/#/b"]}, {"rules_claim": "rules"}, "a/#/b"),
        ({**GOOD, "rules": {"a": 1}}, {"rules_claim": "rules"}, "no list"),
        ({**GOOD, "rules": ["all:a"] * 101}, {"rules_claim": "rules"}, "no list"),
        ([1], {}, "no JSON object"),
        (b'{"sub":"ann","sub":"root","exp":1800000060}', {}, "not JSON"),
        (b"[" * 5_000, {}, "not JSON"),
    ],
)
def test_claims_that_prove_nothing(keys: Any, claims: Any, settings: dict[str, str], why: str) -> None:
    with pytest.raises(BadToken, match=why):
        check(keys(SECRET), token(claims), **settings)


def test_clocks_may_be_apart_by_the_skew(keys: Any) -> None:
    for claims in ({**GOOD, "exp": NOW_S - 29}, {**GOOD, "nbf": NOW_S + 29}):
        assert check(keys(SECRET), token(claims)).username == "ann"
        with pytest.raises(BadToken):
            check(keys(SECRET), token(claims), clock_skew_s=0)


def test_claims_bring_rules_and_roles_where_the_settings_name_them(keys: Any) -> None:
    claims = {**GOOD, "aud": ["x", "us"], "iss": "i", "may": ["all:a/%u"], "roles": "observer unknown"}
    settings = {"audience": "us", "issuer": "i"}
    plain = check(keys(SECRET), token(claims), **settings)
    assert plain.granted_rules == () and plain.granted_roles == ()
    full = check(keys(SECRET), token(claims), **settings, rules_claim="may", roles_claim="roles")
    assert [rule.filter for rule in full.granted_rules] == ["a/%u"]
    assert full.granted_roles == (Role.OBSERVER,)


@given(st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_a_token_that_was_touched_proves_nothing(at: int, junk: bytes) -> None:
    """Whatever is put in, at whatever place: BadToken, and no other error."""
    found = _SECRET_KEYS
    good = token()
    at %= len(good)
    touched = good[:at] + junk + good[at + len(junk) :]
    if touched != good and touched.rstrip(b"=") != good:
        try:
            identity = check(found, touched)
        except BadToken:
            return
        # The last character of a signature has bits that say nothing.
        assert touched[:-1] == good[:-1] and identity.username == "ann"


def _secret_keys() -> Any:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(SECRET)
        file.flush()
        return read_keys(file.name)


_SECRET_KEYS = _secret_keys()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"short", "at least 32 bytes"),
        (b"{", "neither a JWKS"),
        (b'{"keys": []}', "0 keys"),
        (b'{"keys": [{"kty": "RSA", "n": "AQAB"}]}', "neither a JWKS"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "neither a JWKS"),
        (RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), "private key"),
        (public_pem(rsa.generate_private_key(65537, 1024)), "2048 bits"),
        (public_pem(ec.generate_private_key(ec.SECP256K1())), "P-256"),
    ],
)
def test_files_that_are_no_keys_are_told_and_not_shown(keys: Any, content: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        keys(content)
    assert content.decode(errors="replace")[:20] not in str(raised.value)
