"""`$SYS`: what a node says about itself, as retained messages of its own. Never forwarded to other nodes."""

from millrace.broker.machine import Broker
from millrace.broker.messages.message import Run
from millrace.wire.mqtt.codec import encode_publish


def figures(broker: Broker, node_id: str, version: str, uptime_s: int) -> dict[str, str]:
    """Topic -> value, all as text."""
    stats = broker.stats
    values: dict[str, object] = {
        "version": f"millrace {version}",
        "node": node_id,
        "uptime": uptime_s,
        "clients/connected": broker.connected,
        "clients/total": len(broker.sessions),
        "clients/refused": stats.clients_refused,
        "connects": stats.connects,
        "messages/received": stats.received,
        "messages/sent": stats.sent,
        "messages/dropped/qos0": stats.dropped_qos0,
        "messages/dropped/queue": stats.dropped_queue,
        "messages/dropped/too-large": stats.dropped_too_large,
        "messages/expired": stats.expired,
        "messages/denied": stats.denied,
        "protocol-errors": stats.protocol_errors,
        "sockets/refused": stats.sockets_refused,
        "retained/count": len(broker.retained),
        "retained/bytes": broker.retained.bytes_held,
        "subscriptions/count": broker.subscription_count,
    }
    return {f"$SYS/broker/{name}": str(value) for name, value in values.items()}


def publish(broker: Broker, values: dict[str, str], now_ms: int) -> None:
    for topic, value in values.items():
        data = encode_publish(topic.encode(), value.encode(), 0x30, 0, b"")
        broker.publish(None, topic, Run(data, 1, 0, False, retain=True), now_ms)
