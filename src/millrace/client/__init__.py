"""Clients of a broker: `Client` for asyncio, `millrace.client.blocking.Client` for scripts.

`Publisher` and `Subscriber` are made of it for pairs of brokers that stand in for each other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.client.client import Client
    from millrace.client.conversation.incoming import Message
    from millrace.client.epochs import Epochs
    from millrace.client.errors import CannotConnect, ClientError, Closed, ConnectionLost, Outdated, Refused
    from millrace.client.publisher import Publisher
    from millrace.client.subscriber import Subscriber
    from millrace.client.subscription import Subscription

__all__ = [
    "CannotConnect",
    "Client",
    "ClientError",
    "Closed",
    "ConnectionLost",
    "Epochs",
    "Message",
    "Outdated",
    "Publisher",
    "Refused",
    "Subscriber",
    "Subscription",
]

_HOMES = {
    "Client": "client",
    "Epochs": "epochs",
    "Message": "conversation.incoming",
    "Publisher": "publisher",
    "Subscriber": "subscriber",
    "Subscription": "subscription",
}


def __getattr__(name: str) -> Any:
    # On first use: who wants the errors or one small module should not load an event loop and TLS.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"millrace.client.{_HOMES.get(name, 'errors')}"), name)
