"""SCRAM-SHA-256: the example of the standard, and what is refused."""

import base64
import hashlib
import hmac
import secrets

import pytest

from millrace.node.access.identity import Identity, Proof
from millrace.node.access.scram import ScramExchange, invented_keys, make_keys, prepared

KEYS = make_keys(b"pencil", 4096, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))


def exchange() -> ScramExchange:
    def prove(user: str, is_right: bool) -> Identity | None:
        return Identity(username=user, proof=Proof.PASSWORD) if is_right else None

    return ScramExchange(lambda user: KEYS, prove)


def answer(password: bytes, first: str, challenge: bytes, header: str = "n,,") -> tuple[bytes, bytes]:
    """What a client says last, and what it expects to hear."""
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password, base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    bare = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    said = f"{first},{challenge.decode()},{bare}".encode()
    sealed = hmac.digest(hashlib.sha256(client_key).digest(), said, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, sealed, strict=True))
    server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256")
    last = f"{bare},p={base64.b64encode(proof).decode()}".encode()
    return last, b"v=" + base64.b64encode(server)


def test_the_example_of_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 7677, section 3, byte by byte."""
    monkeypatch.setattr(secrets, "token_urlsafe", lambda count: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    run = exchange()
    verdict, challenge, _ = run.step("c", b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert verdict is None
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    verdict, last, identity = run.step(
        "c",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert verdict is True and last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert identity is not None and identity.username == "user"


@pytest.mark.parametrize(("password", "is_right"), [(b"pencil", True), (b"Pencil", False), (b"", False)])
def test_the_password_decides(password: bytes, is_right: bool) -> None:
    run = exchange()
    _, challenge, _ = run.step("c", b"n,,n=user,r=abcdefghijkl")
    assert challenge is not None
    last, expected = answer(password, "n=user,r=abcdefghijkl", challenge)
    verdict, heard, _ = run.step("c", last)
    assert (verdict, heard) == ((True, expected) if is_right else (False, None))


@pytest.mark.parametrize(
    "first",
    [
        None,
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abcdefghijkl,n=user",
        b"n,,n=user,r=short",
        b"n,,n=user,r=abc\x00defghij",
        b"n,,n=,r=abcdefghijkl",
        b"n,,n=us=er,r=abcdefghijkl",
        b"n,,m=ext,n=user,r=abcdefghijkl",
        b"p=tls-unique,,n=user,r=abcdefghijkl",
        b"n,a=root,n=user,r=abcdefghijkl",
        b"x" * 5_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_first_message_is_refused(first: bytes | None) -> None:
    assert exchange().step("c", first)[0] is False


def test_the_last_message_belongs_to_its_exchange() -> None:
    """An answer to another challenge, with other words around it, or without its proof, proves nothing."""
    for change in (
        lambda last, other: other,
        lambda last, other: last.replace(b"c=biws", b"c=eSws"),
        lambda last, other: last.partition(b",p=")[0],
        lambda last, other: last + b"A",
        lambda last, other: last[:-8],
        lambda last, other: b"",
    ):
        run, another = exchange(), exchange()
        first = b"n,,n=user,r=abcdefghijkl"
        _, challenge, _ = run.step("c", first)
        _, elsewhere, _ = another.step("c", first)
        assert challenge is not None and elsewhere is not None
        last, _ = answer(b"pencil", "n=user,r=abcdefghijkl", challenge)
        other, _ = answer(b"pencil", "n=user,r=abcdefghijkl", elsewhere)
        assert run.step("c", change(last, other))[0] is False


def test_a_name_that_is_nobody_has_the_same_salt_every_time() -> None:
    keys = [invented_keys(b"k" * 32, name, 4096) for name in ("x", "x", "y")]
    assert keys[0] == keys[1] and keys[0].salt != keys[2].salt and len(keys[0].salt) == 16


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0007", "\u0007"),
        ("\u06271", "\u06271"),
    ],
)
def test_passwords_are_prepared_as_the_standard_says(given: str, kept: str) -> None:
    """RFC 4013, section 3; what it forbids is taken as it is."""
    assert prepared(given.encode()) == kept.encode()
    assert prepared(b"\xff") == b"\xff"
