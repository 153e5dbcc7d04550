"""What belongs to one user, used by another who has the same rights: client ids, keys, writers, answers.

Each returns whether the other got something of it, or disturbed it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Closed
from e2e.access_paths import DelayedWill, Staged, Waiting, WillOfAClient
from e2e.access_world import PASSWORD, Cell

Theft = Callable[[Cell], Awaitable[bool]]


def _another(cell: Cell, node: int) -> Cell:
    return Cell(world=cell.world, base=cell.base, user="eve", node=node, comes=False)


async def _is_served(client: Client) -> bool:
    try:
        await client.ping()
    except Closed:
        return False
    return True


async def _is_reached(cell: Cell, client: Client) -> bool:
    return any(packet.topic == cell.topic for packet in await client.ping() if packet.kind == wire.PUBLISH)


def live_client(*, keep: bool, node: int) -> Theft:
    """The client id of one who is connected at the first node. Of clean sessions, which leave no record,
    another node knows nothing: both are served, each by itself."""

    async def steal(cell: Cell) -> bool:
        name = f"owned-{cell.number}"
        owner = await cell.connect(name, keep=keep)
        assert owner is not None
        await cell.listen(owner)
        thief = await cell.world.connect("eve", node, name, keep=keep)
        await cell.publish_both()
        cell.comes = True
        if thief is not None and (keep or not node or await _is_reached(cell, thief)):
            return True
        return not await cell.sees(owner) or not await _is_served(owner)

    return steal


def session_away(*, qos: int, sent: bool, node: int) -> Theft:
    """The client id of one who is away, and for whom messages wait."""

    async def steal(cell: Cell) -> bool:
        waiting = Waiting("m", qos, sent=sent)
        name = await waiting.begin(cell)
        thief = await cell.world.connect("eve", node, name, keep=True)
        if thief is not None:
            return True
        cell.comes = True
        return not await waiting.finish(cell, name)

    return steal


async def producer_key(cell: Cell) -> bool:
    """The same numbers of idempotent publishing: the message of the second user is no repeat."""
    observer = await cell.observer()
    for user in ("ann", "eve"):
        client = await cell.world.connect(user, 1)
        assert client is not None
        props = {"user": [("millrace-producer", f"p{cell.number}"), ("millrace-sequence", "1")]}
        await client.publish(cell.topic, user.encode(), 1, props=props)
    await cell.publish_open()
    payloads = []
    while (seen := await observer.receive()).topic != cell.open_topic:
        payloads.append(seen.payload)
    return payloads != [b"ann", b"eve"]


async def writer(cell: Cell) -> bool:
    """What was staged is decided by its owner alone."""
    staged = Staged()
    begun = await staged.begin(cell)
    return await staged.finish(_another(cell, 1), begun)


async def answer_of_a_request(cell: Cell) -> bool:
    """A request that is repeated gets the answer it had; that of another user is another request."""
    name = f"s{cell.number}"
    await cell.world.ask("POST", "/v1/groups", {"name": name, "filters": [cell.filter]})
    root = await cell.world.root()
    for payload in (b"first", b"second"):
        await root.publish(cell.topic, payload, 1)
    taken: list[Any] = []
    for user in ("ann", "ann", "eve"):
        form = {"count": 1, "wait_ms": 10_000}
        answer = await cell.world.call(
            user, "POST", f"/v1/groups/{name}/take", form, Millrace_Request_Id="one and the same"
        )
        taken += [row["payload"] for row in answer.json["messages"]]
    return taken != ["first", "first", "second"]


async def receipt(cell: Cell) -> bool:
    """A receipt acknowledges nothing in the hands of one who may not read the group."""
    name = f"s{cell.number}"
    await cell.world.ask("POST", "/v1/groups", {"name": name, "filters": [cell.filter]})
    await (await cell.world.root()).publish(cell.topic, b"x", 1)
    form = {"ack": "manual", "lease_ms": 60_000, "wait_ms": 10_000}
    answer = await cell.call("POST", f"/v1/groups/{name}/take", form)
    (row,) = answer.json["messages"]
    stolen, path = {"receipts": [row["receipt"]]}, f"/v1/groups/{name}"
    tries = [
        await cell.world.call("bob", "POST", f"{path}/{how}", stolen) for how in ("ack", "nack", "extend")
    ]
    return [answer.status for answer in tries] != [403, 403, 403]


async def will_of_a_removed_user(cell: Cell) -> bool:
    """The connection ends because its user is gone; the will was a right of that user."""
    return await _removed(cell, WillOfAClient())


async def delayed_will_of_a_removed_user(cell: Cell) -> bool:
    return await _removed(cell, DelayedWill())


async def _removed(cell: Cell, driver: WillOfAClient) -> bool:
    world, cell.user = cell.world, f"gone{cell.number}"
    await world.ask("POST", "/v1/users", {"name": cell.user, "password": PASSWORD})
    await world.put_rule(cell.user, "publish", cell.filter)
    begun = await driver.begin(cell)
    assert begun is not None
    await world.ask("DELETE", f"/v1/users/{cell.user}")
    cell.comes = False
    return await driver.finish(cell, begun)


async def session_of_a_removed_user(cell: Cell) -> bool:
    """A later user of the same name is another one, and must not get what waited for the first."""
    world, cell.user = cell.world, f"gone{cell.number}"
    user = {"name": cell.user, "password": PASSWORD}
    await world.ask("POST", "/v1/users", user)
    await world.put_rule(cell.user, "all", cell.filter)
    waiting = Waiting("m")
    name = await waiting.begin(cell)
    await world.ask("DELETE", f"/v1/users/{cell.user}")
    await world.ask("POST", "/v1/users", user)
    await world.put_rule(cell.user, "all", cell.filter)
    client = await cell.connect(name, keep=True)
    assert client is not None
    await cell.publish_open()
    await cell.listen(client, cell.open_topic)
    await cell.publish_open()
    cell.comes = False
    return await cell.sees(client)


async def names_of_the_own_topics(cell: Cell) -> bool:
    """`%u` in a rule is the name as text: a client id is no user name."""
    thief = await cell.world.connect("bob", 0, "ann")
    assert thief is not None
    number = thief.packet_id()
    await thief.send(wire.subscribe(number, ("m/home/ann/#", 1)))
    return (await thief.take(wire.SUBACK, packet_id=number)).reasons[0] < 0x80


THEFTS: dict[str, Theft] = {
    "id of a clean session": live_client(keep=False, node=0),
    "id of a clean session at another node": live_client(keep=False, node=1),
    "id of a kept session": live_client(keep=True, node=0),
    "id of a kept session at another node": live_client(keep=True, node=1),
    "queued messages": session_away(qos=1, sent=False, node=0),
    "queued messages from another node": session_away(qos=1, sent=False, node=1),
    "unacknowledged messages": session_away(qos=1, sent=True, node=1),
    "QoS 2 messages on the way": session_away(qos=2, sent=True, node=1),
    "producer key": producer_key,
    "staged writer": writer,
    "answer of a request": answer_of_a_request,
    "receipt": receipt,
    "will of a removed user": will_of_a_removed_user,
    "delayed will of a removed user": delayed_will_of_a_removed_user,
    "session of a removed user": session_of_a_removed_user,
    "name in a rule": names_of_the_own_topics,
}
