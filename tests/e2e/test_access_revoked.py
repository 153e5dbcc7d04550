"""A right that is taken stops what is under way and what waits, at a real node [rule 31]."""

import asyncio
from pathlib import Path

import pytest

from conformance.mqtt import wire
from e2e.guarded_node import GuardedNode, guarded_node, topics
from e2e.running import run

TOPICS = ("t/secret", "t/open")
every_replication = pytest.mark.parametrize(
    "replication", ["routed", "quorum", "primary-backup", "leaderless"]
)


async def publish_both(node: GuardedNode, qos: int) -> None:
    publisher = await node.connect("bob")
    for topic in TOPICS:
        await publisher.publish(topic, b"x", qos)


async def revoke(node: GuardedNode) -> None:
    await node.rule("ann", "deny", "subscribe", "t/secret")


@every_replication
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_and_not_answered_is_not_sent_again(tmp_path: Path, replication: str, qos: int) -> None:
    async def body() -> None:
        async with guarded_node(tmp_path / "data") as node:
            await node.stream(replication)
            ann = await node.connect("ann", "a", keep=True)
            await ann.subscribe(("t/#", qos))
            await publish_both(node, qos)
            assert sorted(await topics(ann)) == sorted(TOPICS)
            await ann.drop()
            await revoke(node)
            again = await node.connect("ann", "a", keep=True)
            assert await topics(again) == ["t/open"]

    run(body())


@every_replication
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_connected", [True, False], ids=["window is full", "client is away"])
def test_what_waited_is_not_sent(tmp_path: Path, replication: str, qos: int, is_connected: bool) -> None:
    async def body() -> None:
        async with guarded_node(tmp_path / "data") as node:
            await node.stream(replication)
            narrow = {"receive_maximum": 1}
            ann = await node.connect("ann", "a", keep=True, props=narrow)
            await ann.subscribe(("t/#", qos))
            publisher = await node.connect("bob")
            await publisher.publish("t/first", b"x", qos)
            first = await ann.expect_message("t/first")
            if not is_connected:
                await ann.drop()
            await publish_both(node, qos)
            await revoke(node)
            if not is_connected:
                ann = await node.connect("ann", "a", keep=True, props=narrow)
                first = await ann.expect_message("t/first")
            await ann.acknowledge(first)
            message = await ann.expect(wire.PUBLISH)
            assert message.topic == "t/open"
            await ann.acknowledge(message)
            await ann.quiet(0.3)

    run(body())


@every_replication
@pytest.mark.parametrize("qos", [1, 2])
def test_a_restart_in_between_changes_nothing(tmp_path: Path, replication: str, qos: int) -> None:
    """The record of the session knows what was sent at QoS 2, and the cursor what was not acknowledged."""

    async def body() -> None:
        data = tmp_path / "data"
        async with guarded_node(data) as node:
            await node.stream(replication)
            ann = await node.connect("ann", "a", keep=True)
            await ann.subscribe(("t/#", qos))
            await publish_both(node, qos)
            assert sorted(await topics(ann)) == sorted(TOPICS)
            await ann.drop()
            await publish_both(node, qos)
            await revoke(node)
        async with guarded_node(data) as node:
            again = await node.connect("ann", "a", keep=True)
            assert "t/secret" not in await topics(again)
            bob = await node.connect("bob")
            await bob.publish("t/open", b"last", qos)
            last = await again.take(wire.PUBLISH, payload=b"last")
            assert last.topic == "t/open", "the session is served"

    run(body())


@every_replication
def test_members_of_a_group_get_what_one_that_lost_the_right_had_waiting(
    tmp_path: Path, replication: str
) -> None:
    async def body() -> None:
        async with guarded_node(tmp_path / "data") as node:
            await node.stream(replication)
            ann = await node.connect("ann", "a", props={"receive_maximum": 1})
            await ann.subscribe(("$share/g/t/#", 1))
            publisher = await node.connect("bob")
            for number in range(4):
                await publisher.publish("t/secret", b"%d" % number, 1)
            first = await ann.expect(wire.PUBLISH)
            other = await node.connect("bob", "b")
            await other.subscribe(("$share/g/t/#", 1))
            await revoke(node)
            payloads = {first.payload}
            async with asyncio.timeout(30):
                while len(payloads) < 4:
                    message = await other.expect(wire.PUBLISH)
                    payloads.add(message.payload)
                    await other.puback(message)
            await ann.puback(first)
            await ann.quiet(0.3)

    run(body())
