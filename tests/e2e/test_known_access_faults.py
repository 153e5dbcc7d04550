"""Faults of access and of crashes that other brokers had, each done to a real node under its identifier.

Those of malformed and endless input are in `test_known_faults.py`.
"""

import os
import signal
import socket
from base64 import b64encode
from pathlib import Path

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Endpoint, Lab
from e2e.conftest import StartBroker
from e2e.guarded_node import guarded_node, topics
from e2e.http_calls import call
from e2e.processes import BrokerProcess, complaint, millrace
from e2e.raw_peer import Peer
from e2e.running import run
from millrace.local_cluster import PortBlock
from millrace.testing import ThreadedBroker
from millrace.wire.peer import HELLO_BYTES, Handshake, Side
from waiting import until

KEPT = {"clean": False, "props": {"session_expiry": 600}}


def test_retained_after_the_right_was_taken_cve_2018_12546(tmp_path: Path) -> None:
    """A reader who lost the right gets nothing. A publisher who lost it neither replaces nor deletes what it
    left; an administrator does (decision 088)."""

    async def body() -> None:
        async with guarded_node(tmp_path / "data") as node:
            publisher = await node.connect("ann")
            await publisher.publish("t/kept", b"left", 1, retain=True)
            await node.rule("ann", "deny", "all", "t/kept")
            for payload in (b"another", b""):
                await publisher.send(wire.publish("t/kept", payload, qos=1, packet_id=9, retain=True))
                assert (await publisher.take(wire.PUBACK, packet_id=9)).reason == 0x87
            assert (await _answer(publisher, "t/kept")).reasons == (0x87,)
            bob = await node.connect("bob")
            await bob.subscribe(("t/kept", 1))
            assert (await bob.expect_message("t/kept")).payload == b"left"
            await (await node.connect("root")).publish("t/kept", b"", 1, retain=True)
            late = await node.connect("bob")
            await late.subscribe(("t/kept", 1))
            assert await topics(late) == []

    run(body())


async def _answer(client: Client, filter: str) -> wire.Packet:
    await client.send(wire.subscribe(3, (filter, 1)))
    return await client.take(wire.SUBACK, packet_id=3)


def test_revoked_while_a_durable_session_is_away_cve_2021_34434(tmp_path: Path) -> None:
    """Neither what waited nor what comes later reaches it, also after a restart of the node."""

    async def body() -> None:
        data = tmp_path / "data"
        async with guarded_node(data) as node:
            ann = await node.connect("ann", "a", keep=True)
            await ann.subscribe(("t/#", 1))
            await ann.drop()
            bob = await node.connect("bob")
            await bob.publish("t/x", b"before", 1)
            await node.rule("ann", "deny", "subscribe", "t/#")
            await bob.publish("t/x", b"after", 1)
            again = await node.connect("ann", "a", keep=True)
            assert await topics(again) == []
            await again.drop()
        async with guarded_node(data) as node:
            assert await topics(await node.connect("ann", "a", keep=True)) == []

    run(body())


def test_access_by_share_names_cve_2025_68699(tmp_path: Path) -> None:
    """The inner filter is what rules are asked about, however the group is called."""

    async def body() -> None:
        async with guarded_node(
            tmp_path / "data", {"user": "ann", "effect": "allow", "action": "all", "filter": "a/#"}
        ) as node:
            ann = await node.connect("ann")
            for filter in (
                "$share/g/b/#",
                "$share/a/b",
                "$share/a/#",
                "$share/$share/#",
                "$share/g/$share/g/b",
            ):
                assert (await _answer(ann, filter)).reasons[0] >= 0x80, filter
            assert (await _answer(ann, "$share/g/a/#")).reasons == (1,)

    run(body())


@pytest.mark.parametrize("name", ["+", "#", "+/x", "a/+", "$SYS", "bob/", "/", "%c"])
def test_names_with_pattern_characters_cve_2017_7650_cve_2026_44838(tmp_path: Path, name: str) -> None:
    """A client id fills its place in a rule as text of one level: it matches the topics of nobody else."""
    home = {"user": "*", "effect": "allow", "action": "all", "filter": "home/%c/#"}
    root = {"user": "*", "effect": "allow", "action": "all", "filter": "%c/status"}

    async def body() -> None:
        async with guarded_node(tmp_path / "data", home, root) as node:
            bob = await node.connect("bob", "bob")
            assert (await _answer(bob, "home/bob/#")).reasons == (1,)
            ann = await node.connect("ann", name)
            for filter in ("home/#", "home/+/#", "home/bob/#", "home/bob/x", "+/status", "bob/status", "#"):
                assert (await _answer(ann, filter)).reasons[0] == 0x87, filter
            for topic in ("home/bob/x", "home/x", "bob/status"):
                await ann.send(wire.publish(topic, b"forged", qos=1, packet_id=9))
                assert (await ann.take(wire.PUBACK, packet_id=9)).reason == 0x87, topic
            assert await topics(bob) == []

    run(body())


@pytest.mark.parametrize("content", ["", "\n\n", "# nobody\n"])
def test_an_access_file_that_names_nobody_denies_cve_2018_12551(tmp_path: Path, content: str) -> None:
    """It opens nothing: the node does not start with it."""
    path = tmp_path / "users.toml"
    path.write_text(content)
    settings = ("--set", f"access.users_file={path}", "--mqtt", "127.0.0.1:0")
    done = millrace("start", "--data", str(tmp_path / "data"), *settings)
    assert done.returncode != 0 and "names no user" in complaint(done)


def test_an_access_file_that_was_emptied_changes_nothing_cve_2018_12551(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    path = tmp_path / "users.toml"
    assert (
        millrace("user", "add", "ann", "--users", str(path), "--password-stdin", stdin="pw\n").returncode == 0
    )
    broker = start_broker("--set", f"access.users_file={path}", "--set", "access.users_import=always")
    assert call(broker.ports["http"], "GET", "/v1/streams").status == 401
    path.write_text("")
    broker.reload()
    assert "not reloaded" in broker.log
    assert call(broker.ports["http"], "GET", "/v1/streams").status == 401


@pytest.mark.parametrize("step", ["after PUBLISH", "after PUBREL"])
def test_qos_2_across_a_crash_between_its_steps_cve_2026_8741(
    start_broker: StartBroker, tmp_path: Path, step: str
) -> None:
    """kill -9 after the broker's answer: the client goes on with the handshake at the node that comes back,
    which knows the id, and the message is stored once."""
    data = tmp_path / "crash"
    broker = BrokerProcess(data).wait_ready()
    try:
        run(_first_half(broker, step))
        broker.signal(signal.SIGKILL)
        broker.wait_exit()
        broker = BrokerProcess(data).wait_ready()
        run(_second_half(broker, step))
    finally:
        broker.stop()


def _lab(broker: BrokerProcess) -> Lab:
    return Lab(Endpoint(port=broker.port, websocket_port=None))


async def _first_half(broker: BrokerProcess, step: str) -> None:
    lab = _lab(broker)
    reader = await lab.connect(client_id="reader", **KEPT)
    await reader.subscribe(("q", 2))
    await reader.disconnect()
    writer = await lab.connect(client_id="writer", **KEPT)
    await writer.send(wire.publish("q", b"once", qos=2, packet_id=7))
    await writer.expect(wire.PUBREC, packet_id=7)
    if step == "after PUBREL":
        await writer.send(wire.ack(wire.PUBREL, 7))
        await writer.expect(wire.PUBCOMP, packet_id=7)


async def _second_half(broker: BrokerProcess, step: str) -> None:
    lab = _lab(broker)
    writer = await lab.connect(client_id="writer", **KEPT)
    if step == "after PUBLISH":
        # Its answer may have been lost: it sends the message again, then releases it.
        await writer.send(wire.publish("q", b"once", qos=2, packet_id=7, dup=True))
        await writer.expect(wire.PUBREC, packet_id=7)
    for _ in range(2):
        await writer.send(wire.ack(wire.PUBREL, 7))
        assert (await writer.expect(wire.PUBCOMP, packet_id=7)).reason == 0
    reader = await lab.connect(client_id="reader", **KEPT)
    message = await reader.expect(wire.PUBLISH, payload=b"once")
    await reader.acknowledge(message)
    await reader.quiet(0.2)
    await lab.close()


def test_the_cluster_port_without_identity(tmp_path: Path) -> None:
    """Strangers who know another secret, none, or say nothing get no frame and no place: a node proves itself
    and gets in, however many of them are there."""
    secret = "the right secret of this cluster"
    path = tmp_path / "secret"
    path.write_text(secret)
    path.chmod(0o600)
    ports = PortBlock()
    port = ports.take()
    with ThreadedBroker(
        listeners__peer=f"127.0.0.1:{port}", cluster__secret_file=str(path), node__data=str(tmp_path / "data")
    ):
        for wrong in (b"", b"guess", secret.encode()[:-1]):
            assert not _proves(port, wrong), wrong
        silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(300)]
        try:
            assert _proves(port, secret.encode())
        finally:
            for one in silent:
                one.close()
            ports.close()


def _proves(port: int, secret: bytes) -> bool:
    """Whether the node goes on with whoever proves this secret."""
    handshake = Handshake(Side.DIALED, secret, os.urandom(32))
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(handshake.hello)
        hello = b""
        while len(hello) < HELLO_BYTES:
            chunk = sock.recv(HELLO_BYTES - len(hello))
            if not chunk:
                return False
            hello += chunk
        proof, _ = handshake.receive(hello)
        sock.sendall(proof + b"\0" * 9)
        data = b""
        try:
            while chunk := sock.recv(65_536):
                data += chunk
        except OSError:
            pass
    # The node's proof is 32 bytes; it introduces itself, by a frame, only to a node.
    return len(data) > 32


MARKUP = "<script>alert(1)</script>"


def test_stored_xss_markup_is_never_served_as_a_page(tmp_path: Path) -> None:
    """Names and payloads with markup come back as JSON that no browser takes for a page."""
    with ThreadedBroker(listeners__http="127.0.0.1:0") as broker, Peer(broker, connect=False) as peer:
        peer.send(wire.connect(MARKUP), wire.publish("x/" + MARKUP, MARKUP.encode(), qos=1, packet_id=1))
        peer.until_ping()
        for path in (
            "/v1/clients",
            "/v1/streams/default/shards/16/messages",
            "/v1/events",
            "/status",
            "/x" + MARKUP,
        ):
            answer = call(broker.ports["http"], "GET", path.replace("<", "%3C").replace(">", "%3E"))
            kind = answer.headers["content-type"].partition(";")[0]
            assert kind in ("application/json", "application/problem+json"), path
            assert answer.headers["x-content-type-options"] == "nosniff"
            if path == "/v1/clients":
                assert MARKUP in answer.body.decode(), "it was stored"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
def test_cross_site_requests_and_rebinding_change_nothing(headers: dict[str, str]) -> None:
    with ThreadedBroker(listeners__http="127.0.0.1:0") as broker:
        port = broker.ports["http"]
        for method, path, form in (
            ("POST", "/v1/publish", {"topic": "t", "payload": "x"}),
            ("POST", "/v1/users", {"name": "eve", "password": "pw", "roles": ["admin"]}),
            ("DELETE", "/v1/streams/default", None),
        ):
            assert call(port, method, path, form, **headers).status in (403, 421), (method, path)
        assert call(port, "GET", "/v1/users").json["items"] == []


def test_another_login_of_a_page_is_refused_from_elsewhere() -> None:
    """A cookie of a login counts for pages of the node alone."""
    with ThreadedBroker(listeners__http="127.0.0.1:0") as broker:
        port = broker.ports["http"]
        first = {"name": "root", "password": "pw", "roles": ["admin"]}
        assert call(port, "POST", "/v1/users", first).status == 201
        made = call(port, "POST", "/v1/login", {"user": "root", "password": "pw"})
        cookie = made.headers["set-cookie"].partition(";")[0]
        assert (
            "samesite=strict" in made.headers["set-cookie"].lower()
            and "httponly" in made.headers["set-cookie"].lower()
        )
        assert call(port, "GET", "/v1/users", Cookie=cookie).status == 200
        for origin in ("http://evil.example", "http://[", "null"):
            assert call(port, "GET", "/v1/users", Cookie=cookie, Origin=origin).status == 401
        basic = "Basic " + b64encode(b"root:no").decode()
        until(lambda: call(port, "GET", "/v1/users", Authorization=basic).status == 401, "a wrong password")
