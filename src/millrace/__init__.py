"""Millrace: one broker from devices to Spark."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.embedded import Broker

__version__ = "0.1.0"
__all__ = ["Broker", "__version__"]


def __getattr__(name: str) -> Any:
    # On first use: the command line must not load a whole node to print its version.
    if name == "Broker":
        from millrace.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
