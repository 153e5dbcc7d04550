"""Opening a connection to a broker: plain TCP, TLS or WebSocket, as its address says."""

import asyncio
import ssl

from millrace.client.address import BrokerAddress
from millrace.client.link import Link, Owner
from millrace.errors import ConfigError


async def open_link(address: BrokerAddress, owner: Owner, context: ssl.SSLContext | None) -> Link:
    """Connect; raises OSError where that fails."""

    def make() -> Link:
        if not address.websocket:
            return Link(owner)
        # Imported on first use: most clients never need it, and it takes longer to load than to connect.
        from millrace.client.websocket_link import WebSocketLink

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


def tls_context(
    *, ca_file: str | None, cert_file: str | None, key_file: str | None, insecure: bool
) -> ssl.SSLContext:
    """The client's side of TLS; raises ConfigError for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
