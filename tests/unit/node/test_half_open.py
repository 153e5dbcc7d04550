"""A client that vanished without a word is found out, though it asked for no keep alive."""

import asyncio
import os
import socket

from millrace.embedded import Broker
from unit.node.house import House
from waiting import until_async


async def scene() -> None:
    async with asyncio.timeout(30), Broker(listeners__text="127.0.0.1:0") as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.server.ports["text"])
        writer.write(b"SUBSCRIBE|a\n")
        assert (await reader.readline()).startswith(b"CONNACK|")
        connections = broker.server.door.connections
        await until_async(lambda: len(connections) == 1, "it is there")
        (connection,) = connections
        with socket.socket(fileno=os.dup(connection.transport.get_extra_info("descriptor"))) as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


def test_accepted_sockets_ask_for_a_sign_of_life() -> None:
    """A text client has no packet for it."""
    asyncio.run(scene())


def test_many_that_say_nothing_are_closed_in_turns() -> None:
    """Closing takes its time: the loop turns to the others in between, and all are closed in the end."""
    house = House()
    silent = [house.open() for _ in range(200)]
    house.now_ms += house.limits.connect_deadline_ms + 1
    house.door.sweep()
    closed = sum(client.wire.is_closing for client in silent)
    assert 0 < closed < 100
    house.turn()
    while house.door.late:
        before = len(house.door.late)
        house.door.flush()
        assert len(house.door.late) < before
    assert all(client.wire.is_closing for client in silent)
