"""A client that vanished without a word is found out, though it asked for no keep alive."""

import asyncio
import os
import socket

from millrace.embedded import Broker
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
