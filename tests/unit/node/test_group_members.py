"""MQTT members of a group made by command: what they were given is settled, also after they left it."""

import asyncio

import pytest

from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.sessions.session import Session
from millrace.node.groups.mqtt_members import MqttGroupMembers
from millrace.types import Subscription
from unit.node.lone_groups import LoneGroups
from waiting import until_async

FILTER = "$share/g/t"
PUBACK = 0x40


def worker(node: LoneGroups) -> Session:
    session = Session("worker", node.broker.rules.principal(None, "worker"))
    session.connection, session.blocked, session.window = object(), False, 10
    node.broker.subscribe(session, Subscription(filter=FILTER, qos=1))
    return session


def test_a_worker_that_left_the_group_still_acknowledges_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It works on while another client's acknowledgement makes the node look at all groups."""
    monkeypatch.setattr("millrace.node.groups.mqtt_members._WAIT_MS", 20)

    async def scene() -> None:
        node = LoneGroups()
        await node.groups.create(DurableGroupSpec(name="g", filters=("t",)))
        clock = {"now_ms": lambda: 0, "wall_us": lambda: node.wall_us, "wake": lambda: None}
        members = MqttGroupMembers(node.groups, node.broker, **clock)
        session = worker(node)
        node.store(b"work")
        members.flush()
        await until_async(lambda: session.inflight, "the message at the worker")
        assert session.inflight is not None
        node.broker.unsubscribe(session, FILTER)
        await until_async(lambda: members._feeds["g"].taking is None, "nothing more is taken")
        node.broker.joined_need_feeding = True
        members.flush()
        node.broker.on_acks(session, PUBACK, session.inflight[0].first_id, 1, 0)
        members.flush()
        await until_async(lambda: not node.cursors[1].items, "the word of the acknowledgement")
        await until_async(lambda: members._feeds["g"].settling is None, "the end of settling")
        members.flush()
        assert not node.broker.joined, "a group without members and work is left"
        await members.stop()

    asyncio.run(scene())
