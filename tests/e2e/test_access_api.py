"""Users, rules and tokens over HTTP at one node: what is answered, what is refused, and what ends."""

import base64
import socket
from pathlib import Path
from typing import Any

import pytest

from e2e.http_calls import Answer, call
from e2e.processes import millrace
from millrace.broker.access import Action, Effect, Rule
from millrace.client import Refused
from millrace.client.blocking import Client
from millrace.client.errors import ClientError
from millrace.node.access.passwords import hash_password
from millrace.node.access.users import Users, render
from millrace.testing import ThreadedBroker
from waiting import until

ROOT = {"name": "root", "password": "pw", "roles": ["admin"]}


class Door:
    """Requests as one caller; None is nobody."""

    def __init__(self, broker: ThreadedBroker, user: str | None = "root", password: str = "pw") -> None:
        self._port = broker.ports["http"]
        self._headers: dict[str, str] = {}
        if user is not None:
            text = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {text}"

    def __call__(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        answer: Answer = call(self._port, method, path, body, **{**self._headers, **headers})
        assert answer.status == status, answer
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        return answer.json if answer.body else None


def broker(**settings: Any) -> ThreadedBroker:
    return ThreadedBroker(listeners__http="127.0.0.1:0", **settings)


def may_publish(node: ThreadedBroker, user: str, password: str, topic: str) -> bool:
    with Client(node.url, username=user, password=password, reconnect=False) as client:
        try:
            client.publish(topic, "x", qos=1)
        except Refused:
            return False
        return True


def test_the_first_user_closes_the_broker_and_the_last_rule_does_not_open_it() -> None:
    with broker() as node:
        nobody, root = Door(node, None), Door(node)
        with Client(node.url, reconnect=False) as anonymous:
            anonymous.publish("a", "x", qos=1)
            refused = nobody("POST", "/v1/users", {"name": "ann", "password": "pw"}, 409)
            assert "first user must be an administrator" in refused["detail"]
            made = nobody("POST", "/v1/users", ROOT, 201)
            assert made == {
                "name": "root",
                "roles": ["admin"],
                "has_password": True,
                "tokens": 0,
                "rules": 0,
            }

            def has_ended() -> bool:
                try:
                    anonymous.publish("a", "x")
                except ClientError:
                    return True
                return False

            until(has_ended, "the connection without a name to end")
        with pytest.raises(Refused), Client(node.url, reconnect=False):
            pass
        for path in ("/status", "/metrics", "/v1/streams", "/v1/users"):
            nobody("GET", path, status=401)

        root("POST", "/v1/users", {"name": "ann", "password": "pw"}, 201)
        assert not may_publish(node, "ann", "pw", "a"), "there is no rule"
        allow = {"user": "ann", "effect": "allow", "action": "publish", "filter": "a"}
        rule = root("POST", "/v1/rules", allow, 201)
        assert may_publish(node, "ann", "pw", "a")
        assert root("DELETE", f"/v1/rules/{rule['number']}") == rule
        assert not may_publish(node, "ann", "pw", "a"), "the last rule went"
        assert may_publish(node, "root", "pw", "a"), "an administrator may what no rule denies"


def test_what_makes_no_sense_is_answered_with_a_problem() -> None:
    with broker() as node:
        Door(node, None)("POST", "/v1/users", ROOT, 201)
        root = Door(node)
        rule = {"user": "*", "effect": "allow", "action": "all", "filter": "a/#"}
        root("POST", "/v1/rules", rule, 201)
        for method, path, body, status, detail in (
            ("POST", "/v1/users", ROOT, 409, "user 'root' exists"),
            ("POST", "/v1/users", {"name": "a b"}, 409, "letters, digits"),
            ("POST", "/v1/users", {"name": "b", "roles": ["king"]}, 422, "roles"),
            ("PATCH", "/v1/users/rot", {"password": "x"}, 404, "nearest is 'root'"),
            ("PATCH", "/v1/users/root", {"roles": []}, 409, "no administrator"),
            ("DELETE", "/v1/users/root", None, 409, "no administrator"),
            ("DELETE", "/v1/users/ann", None, 404, "no user 'ann'"),
            ("POST", "/v1/rules", rule, 409, "rule 1 says the same"),
            ("POST", "/v1/rules", {**rule, "filter": "a/#/b"}, 400, "not a topic filter"),
            ("POST", "/v1/rules", {**rule, "user": "ann"}, 409, "no user 'ann'"),
            ("DELETE", "/v1/rules/7", None, 404, "there is no rule 7"),
            ("POST", "/v1/tokens", {"name": "t", "user": "ann"}, 404, "no user 'ann'"),
            ("POST", "/v1/tokens", {"name": "t", "user": "root", "allow": ["a"]}, 400, "publish:FILTER"),
            ("DELETE", "/v1/tokens/t", None, 404, "no token 't'"),
        ):
            assert detail in root(method, path, body, status)["detail"], (method, path)


def test_lists_come_in_pages() -> None:
    with broker() as node:
        Door(node, None)("POST", "/v1/users", ROOT, 201)
        root = Door(node)
        for name in ("ann", "bob", "carol"):
            root("POST", "/v1/users", {"name": name}, 201)
            body = {"user": name, "effect": "allow", "action": "all", "filter": name, "position": 1}
            root("POST", "/v1/rules", body, 201)
            root("POST", "/v1/tokens", {"name": f"t-{name}", "user": name}, 201)
        for path, key, expected in (
            ("/v1/users", "name", ["ann", "bob", "carol", "root"]),
            ("/v1/rules", "filter", ["carol", "bob", "ann"]),
            ("/v1/tokens", "name", ["t-ann", "t-bob", "t-carol"]),
        ):
            seen, cursor = [], ""
            while cursor is not None:
                page = root("GET", f"{path}?limit=2&cursor={cursor}")
                assert len(page["items"]) <= 2
                seen += [row[key] for row in page["items"]]
                cursor = page["next"]
            assert seen == expected
            assert [row[key] for row in root("GET", f"{path}?search=bob")["items"]] == [expected[1]]


def test_a_user_changes_the_own_password_and_makes_tokens_for_nobody_else() -> None:
    with broker() as node:
        Door(node, None)("POST", "/v1/users", ROOT, 201)
        root = Door(node)
        root("POST", "/v1/users", {"name": "ann", "password": "one"}, 201)
        ann = Door(node, "ann", "one")
        for method, path, body in (
            ("PATCH", "/v1/users/root", {"password": "x"}),
            ("PATCH", "/v1/users/ann", {"roles": ["admin"]}),
            ("POST", "/v1/tokens", {"name": "t", "user": "root"}),
            ("POST", "/v1/rules", {"user": "*", "effect": "allow", "action": "all", "filter": "#"}),
            ("POST", "/v1/users", {"name": "eve"}),
            ("DELETE", "/v1/users/root", None),
            ("GET", "/v1/users", None),
            ("GET", "/status", None),
            ("GET", "/v1/streams", None),
        ):
            ann(method, path, body, 403)
        secret = ann("POST", "/v1/tokens", {"name": "t", "user": "ann"}, 201)["token"]
        bearer = {"Authorization": f"Bearer {secret}"}
        ann("PATCH", "/v1/users/ann", {"password": "two"})
        ann("POST", "/v1/tokens", {"name": "u", "user": "ann"}, 401)
        # A token is no password: who finds one must not be able to keep the user out with it.
        Door(node, None)("PATCH", "/v1/users/ann", {"password": "three"}, 403, **bearer)
        Door(node, "ann", "two")("DELETE", "/v1/tokens/t", status=204)
        Door(node, None)("PATCH", "/v1/users/ann", {"password": "three"}, 401, **bearer)


def test_a_token_of_an_administrator_is_one_unless_it_is_limited() -> None:
    with broker() as node:
        Door(node, None)("POST", "/v1/users", ROOT, 201)
        root, nobody = Door(node), Door(node, None)

        def make(name: str, **more: Any) -> dict[str, str]:
            made = root("POST", "/v1/tokens", {"name": name, "user": "root", **more}, 201)
            return {"Authorization": f"Bearer {made['token']}"}

        whole, scoped = make("whole"), make("scoped", allow=["publish:a"])
        observer = make("observer", allow=[], roles=["observer"])
        nobody("POST", "/v1/users", {"name": "ann"}, 201, **whole)
        nobody("POST", "/v1/users", {"name": "bob"}, 403, **scoped)
        nobody("GET", "/status", status=403, **scoped)
        nobody("GET", "/status", **observer)
        publish = {"topic": "a", "payload": "x"}
        nobody("POST", "/v1/publish", publish, **scoped)
        nobody("POST", "/v1/publish", {**publish, "topic": "b"}, 403, **scoped)
        nobody("POST", "/v1/publish", publish, 403, **observer)
        assert may_publish(node, "token", scoped["Authorization"].split()[1], "a")
        assert not may_publish(node, "root", scoped["Authorization"].split()[1], "b")


def test_wrong_logins_that_hang_up_keep_nobody_out() -> None:
    """Four hundred at once from the very address of the honest user; each of them is over when it comes to be
    refused, and none of that may touch another connection."""

    def wrong(number: int) -> bytes:
        fields = (b"c%d" % number, b"ann", b"wrong")
        body = b"\0\4MQTT\5\xc2\0\x3c\0" + b"".join(len(f).to_bytes(2, "big") + f for f in fields)
        return b"\x10" + bytes((len(body),)) + body

    with broker() as node:
        Door(node, None)("POST", "/v1/users", ROOT, 201)
        root = Door(node)
        for name in ("ann", "bob"):
            root("POST", "/v1/users", {"name": name, "password": "pw"}, 201)
        for _ in range(3):
            for number in range(400):
                with socket.create_connection((node.host, node.port), timeout=20) as flood:
                    flood.sendall(wrong(number))
            with Client(node.url, username="bob", password="pw", reconnect=False):
                pass
            # So that the next round has to check the password again.
            root("PATCH", "/v1/users/bob", {"password": "pw"})


def test_a_users_file_is_loaded_once(tmp_path: Path) -> None:
    """Its administrator is who had the rule for everything; a later file, and no file, change nothing."""
    data, users = tmp_path / "data", tmp_path / "users.toml"
    words = ("--users", str(users))
    rule = Rule(user="old name", effect=Effect.ALLOW, action=Action.ALL, filter="#")
    users.write_text(render(Users(hashes={"old name": hash_password(b"pw")}, rules=(rule,))))
    settings = {"node__data": str(data), "access__users_file": str(users)}
    with broker(**settings) as node:
        old = Door(node, "old name")
        assert [(row["name"], row["roles"]) for row in old("GET", "/v1/users")["items"]] == [
            ("old name", ["admin"])
        ]
        old("POST", "/v1/users", ROOT, 201)
        Door(node)("DELETE", "/v1/users/old%20name")
    assert millrace("user", "add", "later", "--password-stdin", *words, stdin="pw").returncode == 0
    for _ in range(2):
        with broker(**settings) as node:
            assert [row["name"] for row in Door(node)("GET", "/v1/users")["items"]] == ["root"]
            Door(node, "old name")("GET", "/status", status=401)
        users.unlink(missing_ok=True)
