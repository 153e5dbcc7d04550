"""A node that stops gives back what the members of its groups hold: for all groups at once."""

import asyncio
from types import SimpleNamespace
from typing import Any

from millrace.broker.access import AccessRules
from millrace.broker.groups.joined import LocalConsumerGroup
from millrace.broker.machine import Broker
from millrace.limits import DEFAULT_LIMITS
from millrace.node.groups.mqtt_members import MqttGroupMembers

NAMES = ("a", "b", "c")


def test_a_group_that_cannot_be_settled_takes_no_time_from_the_others() -> None:
    """The word on each group waits here for the word on all."""

    async def scenario() -> dict[str, list[str]]:
        all_of_them, settled = asyncio.Barrier(len(NAMES)), {}

        async def settle(name: str, how: str, receipts: list[str], *_: int) -> None:
            await all_of_them.wait()
            settled[f"{how} {name}"] = list(receipts)

        groups: Any = SimpleNamespace(by_name={}, settle=settle)
        broker = Broker(DEFAULT_LIMITS, AccessRules(()))
        members = MqttGroupMembers(groups, broker, now_ms=lambda: 0, wall_us=lambda: 0, wake=lambda: None)
        for name in NAMES:
            group = broker.joined[name] = LocalConsumerGroup(name)
            group.given_back.append(f"receipt of {name}")
        broker.joined_need_feeding = True
        members.flush()
        await members.stop()
        return settled

    assert asyncio.run(scenario()) == {f"nack {name}": [f"receipt of {name}"] for name in NAMES}
