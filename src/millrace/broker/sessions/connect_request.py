"""What a client asks for when it connects."""

import msgspec

from millrace.broker.access import Principal
from millrace.broker.sessions.session import WillPlan


class ConnectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection asks for, after authentication and with the broker's own bounds applied."""

    client_id: str
    clean_start: bool
    expiry_s: int
    v5: bool
    window: int
    packet_bytes_max: int
    alias_max: int
    principal: Principal
    will: WillPlan | None
    username: str | None = None
    address: str = ""
    """Where the client is, as bounds of addresses count it; empty for one that counts for none."""
    door: str = "mqtt"
    """By which the client came, for the figures."""
