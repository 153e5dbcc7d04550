"""Millrace: one broker from devices to Spark."""

from typing import TYPE_CHECKING, Any

from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.embedded import Broker

__all__ = ["Broker", "__version__"]


def __getattr__(name: str) -> Any:
    # On first use: the command line must not load a whole node to print its version.
    if name == "Broker":
        from millrace.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
