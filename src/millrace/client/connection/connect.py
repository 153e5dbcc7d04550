"""Opening a connection to a broker: plain TCP, TLS or WebSocket, as its address says."""

import asyncio
import ssl

from millrace.client.connection.address import BrokerAddress
from millrace.client.connection.link import Link, Owner


async def open_link(address: BrokerAddress, owner: Owner, context: ssl.SSLContext | None) -> Link:
    """Connect; raises OSError where that fails."""

    def make() -> Link:
        if not address.websocket:
            return Link(owner)
        # Imported on first use: most clients never need it, and it takes longer to load than to connect.
        from millrace.client.connection.websocket_link import WebSocketLink

        return WebSocketLink(owner, address)

    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(
        make, address.host, address.port, ssl=context if address.tls else None
    )
    try:
        await link.opened()
    except BaseException:
        link.abort()
        raise
    return link
