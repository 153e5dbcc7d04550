"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the authentication method of MQTT 5: a client proves that it knows a
password without sending it, and the node proves that it knows the user.

The node keeps keys, made when a password is set, from which nobody can log in without breaking SHA-256 or
guessing the password. An exchange for a name that is no user, or has no keys, looks like any other until its
end. Channel binding is not offered.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from collections.abc import Callable

from millrace.broker.meta.access import ScramKeys
from millrace.node.access.identity import Identity

METHOD = "SCRAM-SHA-256"
_SALT_BYTES = 16
_NONCE_BYTES = 18
_MESSAGE_BYTES_MAX = 4_096
_PRINTABLE = re.compile(r"[\x21-\x2b\x2d-\x7e]{8,512}")
_FORBIDDEN = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def make_keys(password: bytes, iterations: int, salt: bytes | None = None) -> ScramKeys:
    """The keys of a password; takes milliseconds, and lets go of the interpreter lock."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, iterations)
    return ScramKeys(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.sha256(_hmac(salted, b"Client Key")).digest(),
        server_key=_hmac(salted, b"Server Key"),
    )


def prepared(password: bytes) -> bytes:
    """The password as SASLprep (RFC 4013) has it, so that two ways to type it are the same; as it is where
    that does not apply."""
    try:
        text = password.decode()
    except UnicodeDecodeError:
        return password
    kept = (character for character in text if not stringprep.in_table_b1(character))
    mapped = "".join(" " if stringprep.in_table_c12(character) else character for character in kept)
    found = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not found or any(is_in(character) for character in found for is_in in _FORBIDDEN):
        return password
    right_to_left = [stringprep.in_table_d1(character) for character in found]
    if any(right_to_left):
        is_mixed = any(map(stringprep.in_table_d2, found))
        if is_mixed or not (right_to_left[0] and right_to_left[-1]):
            return password
    return found.encode()


class ScramExchange:
    """One exchange. `keys_of`: the keys of a user, invented ones for nobody; `prove`: told the outcome, and
    who the client is then, None where that cannot be."""

    def __init__(
        self,
        keys_of: Callable[[str], ScramKeys],
        prove: Callable[[str, bool], Identity | None],
    ) -> None:
        self._keys_of = keys_of
        self._prove = prove
        self._first = ""
        self._header = ""
        self._user = ""
        self._nonce = ""
        self._challenge = ""
        self._keys: ScramKeys | None = None

    def step(self, client_id: str, data: bytes | None) -> tuple[bool | None, bytes | None, Identity | None]:
        try:
            if data is None or len(data) > _MESSAGE_BYTES_MAX:
                raise ValueError("no message, or one that is too long")
            text = data.decode()
            if self._keys is None:
                return None, self._begin(text), None
            return self._end(text, self._keys)
        except (ValueError, binascii.Error):
            # What is not of the right form proves nothing, and is told nothing.
            return False, None, None

    def _begin(self, text: str) -> bytes:
        binding, _, rest = text.partition(",")
        authorization, _, bare = rest.partition(",")
        if binding not in ("n", "y") or authorization:
            raise ValueError("channel binding, or another identity to act as")
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise ValueError("not the first message of a client")
        nonce = fields[1][2:]
        if not _PRINTABLE.fullmatch(nonce):
            raise ValueError("not a nonce")
        self._user = _name(fields[0][2:])
        self._header = f"{binding},,"
        self._first = bare
        self._nonce = nonce + secrets.token_urlsafe(_NONCE_BYTES)
        self._keys = keys = self._keys_of(self._user)
        salt = base64.b64encode(keys.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={keys.iterations}"
        return self._challenge.encode()

    def _end(self, text: str, keys: ScramKeys) -> tuple[bool | None, bytes | None, Identity | None]:
        bare, found, proof_text = text.rpartition(",p=")
        fields = bare.split(",")
        header = base64.b64encode(self._header.encode()).decode()
        if not found or fields[:2] != [f"c={header}", f"r={self._nonce}"]:
            raise ValueError("not the last message of this exchange")
        proof = base64.b64decode(proof_text, validate=True)
        said = f"{self._first},{self._challenge},{bare}".encode()
        is_right = len(proof) == 32 and hmac.compare_digest(
            hashlib.sha256(_xor(proof, _hmac(keys.stored_key, said))).digest(), keys.stored_key
        )
        identity = self._prove(self._user, is_right)
        if identity is None:
            return False, None, None
        return True, b"v=" + base64.b64encode(_hmac(keys.server_key, said)), identity


def invented_keys(secret: bytes, user: str, iterations: int) -> ScramKeys:
    """For a name without keys: always the same salt, and keys that no password has."""
    return ScramKeys(
        salt=_hmac(secret, b"salt" + user.encode())[:_SALT_BYTES],
        iterations=iterations,
        stored_key=_hmac(secret, b"stored" + user.encode()),
        server_key=_hmac(secret, b"server" + user.encode()),
    )


def _name(text: str) -> str:
    """A user name as it stands in a message: , and = are written =2C and =3D."""
    name = text.replace("=2C", ",").replace("=3D", "=")
    if not text or "=" in text.replace("=2C", "").replace("=3D", ""):
        raise ValueError("not a user name")
    return name


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
