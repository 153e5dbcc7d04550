"""Shared groups on three real nodes: what a member or its whole node leaves undone is done by others."""

import asyncio
from pathlib import Path

from e2e.test_cluster import TIMEOUT_S, Inbox, name, run
from millrace.client import Client
from millrace.local_cluster import LocalCluster
from waiting import until_async


async def _both_work(publisher: Client, one: list[str], two: list[str]) -> None:
    """Until the entries that divide the labour are applied, one of them may do it all."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (one and two):
            await publisher.publish("work/warm", b"warm", qos=1)


class Holder:
    """A member that takes messages and acknowledges none."""

    def __init__(self, client: Client, filter: str) -> None:
        self._subscription = client.subscribe(filter, qos=1, manual_ack=True)
        self.got: list[str] = []

    async def __aenter__(self) -> "Holder":
        messages = await self._subscription.__aenter__()

        async def read() -> None:
            async for message in messages:
                self.got.append(message.payload.decode())

        self._task = asyncio.create_task(read())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def test_what_a_dead_node_had_given_out_goes_to_others(tmp_path: Path) -> None:
    """A member holds messages without acknowledging them; its node is killed; the other member gets them,
    and every message that was acknowledged to the publisher."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        async with (
            Client(first.url, client_id=name("m1")) as one,
            Client(third.url, client_id=name("m3"), reconnect=False) as three,
            Client(second.url, client_id=name("pub")) as publisher,
            Inbox(one, "$share/g/work/#", 1) as at_one,
            Holder(three, "$share/g/work/#") as at_three,
        ):
            await _both_work(publisher, at_one.got, at_three.got)
            sent = [str(number) for number in range(60)]
            for text in sent[:40]:
                await publisher.publish("work/x", text.encode(), qos=1)
            await until_async(
                lambda: set(sent[:40]) <= {*at_one.got, *at_three.got}, "all handed out", TIMEOUT_S
            )
            held = [text for text in at_three.got if text != "warm"]
            assert len(held) >= 10
            await third.kill()
            for text in sent[40:]:
                await publisher.publish("work/x", text.encode(), qos=1)
            await until_async(
                lambda: set(sent) <= set(at_one.got), f"all at the survivor, got {at_one.got}", TIMEOUT_S
            )
            # Nothing that the survivor had acknowledged comes again.
            repeated = [text for text in sent if at_one.got.count(text) > 1]
            assert repeated == []

    run(body, tmp_path)


def test_a_group_survives_the_restart_of_a_node_and_waits_for_absent_members(tmp_path: Path) -> None:
    """A durable member is away: what comes is kept, also across a kill of its node, for whoever is there."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        member = name("durable")
        async with Client(third.url, client_id=member, session_expiry_s=600) as client:
            subscription = client.subscribe("$share/away/jobs/#", qos=1)
            await subscription.__aenter__()
        sent = [str(number) for number in range(30)]
        async with Client(second.url, client_id=name("pub")) as publisher:
            for text in sent:
                await publisher.publish("jobs/x", text.encode(), qos=1)
        await third.kill()
        await third.start()
        async with (
            Client(first.url, client_id=name("m")) as other,
            Inbox(other, "$share/away/jobs/#", 1) as inbox,
        ):
            await until_async(lambda: set(sent) <= set(inbox.got), f"all, got {inbox.got}", TIMEOUT_S)
            assert [text for text in inbox.got if text in sent] == sent

    run(body, tmp_path)


def test_a_member_that_leaves_gives_back_to_members_elsewhere(tmp_path: Path) -> None:
    """The last member of a node goes without acknowledging: its messages go to another node's member."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        async with (
            Client(first.url, client_id=name("m1")) as one,
            Client(second.url, client_id=name("pub")) as publisher,
            Inbox(one, "$share/leave/work/#", 1) as at_one,
        ):
            sent = [str(number) for number in range(40)]
            async with (
                Client(third.url, client_id=name("m3")) as three,
                Holder(three, "$share/leave/work/#") as at_three,
            ):
                await _both_work(publisher, at_one.got, at_three.got)
                for text in sent:
                    await publisher.publish("work/x", text.encode(), qos=1)
                await until_async(
                    lambda: set(sent) <= {*at_one.got, *at_three.got}, "all handed out", TIMEOUT_S
                )
                assert [text for text in at_three.got if text != "warm"]
            await until_async(lambda: set(sent) <= set(at_one.got), f"all, got {at_one.got}", TIMEOUT_S)
            assert [text for text in sent if at_one.got.count(text) > 1] == []

    run(body, tmp_path)
