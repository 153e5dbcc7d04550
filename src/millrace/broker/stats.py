"""Counters of one broker, plain integers: $SYS, metrics and status read them."""


class Stats:
    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "clients_refused",
        "connects",
        "denied",
        "dropped_qos0",
        "dropped_queue",
        "dropped_relay",
        "dropped_too_large",
        "expired",
        "protocol_errors",
        "received",
        "sent",
        "sockets_refused",
        "trimmed",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    received: int
    sent: int
    bytes_received: int
    bytes_sent: int
    connects: int
    clients_refused: int
    denied: int
    dropped_qos0: int
    dropped_queue: int
    dropped_relay: int
    dropped_too_large: int
    expired: int
    protocol_errors: int
    sockets_refused: int
    trimmed: int

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
