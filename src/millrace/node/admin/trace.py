"""Where the next message of a topic would go: its stream, its log, and everybody who gets it."""

from collections.abc import Iterator

from millrace.broker.machine import Broker
from millrace.broker.streams.stream import Capture, Replication
from millrace.limits import TRACE_RECEIVERS_MAX
from millrace.node.admin.overview import names_of
from millrace.node.admin.shapes import Captured, Receiver, ReceiverKind, Trace
from millrace.node.engine import Engine


def receivers_here(
    broker: Broker, engine: Engine, node: str, topic: str | None, client_id: str | None
) -> list[Receiver]:
    """Who of this node's sessions gets messages of a topic; without a topic, what a client subscribed to."""
    found = (
        _of_topic(broker, engine, node, topic) if topic is not None else _of_client(broker, node, client_id)
    )
    rows = []
    for row in found:
        if client_id is None or row.client_id == client_id:
            rows.append(row)
            if len(rows) >= TRACE_RECEIVERS_MAX:
                break
    return rows


def _of_topic(broker: Broker, engine: Engine, node: str, topic: str) -> Iterator[Receiver]:
    stream = engine.definitions.table.find(topic)
    is_leaderless = stream is not None and stream.spec.replication is Replication.LEADERLESS
    shared: ReceiverKind = "leaderless group" if is_leaderless else "group"
    sessions, groups = broker.router.matches(topic)
    for session, subscriptions in sessions.items():
        for filter, one in subscriptions:
            yield Receiver(client_id=session.client_id, node=node, filter=filter, qos=one.qos, kind="session")
    for group in groups:
        for session, one in group.members.items():
            yield Receiver(
                client_id=session.client_id, node=node, filter=one.filter, qos=one.qos, kind=shared
            )
    for name, joined in broker.joined.items():
        durable = engine.groups.by_name.get(name)
        if durable is not None and durable.spec.takes(topic):
            for session, one in joined.joins():
                yield Receiver(
                    client_id=session.client_id, node=node, filter=one.filter, qos=one.qos, kind="group"
                )


def _of_client(broker: Broker, node: str, client_id: str | None) -> Iterator[Receiver]:
    session = broker.sessions.get(client_id or "")
    if session is None:
        return
    for filter, one in session.subscriptions.items():
        kind: ReceiverKind = "group" if filter.startswith("$share/") else "session"
        yield Receiver(client_id=session.client_id, node=node, filter=filter, qos=one.qos, kind=kind)


def durable_groups(engine: Engine, node: str, topic: str) -> list[Receiver]:
    """Groups made by command that collect this topic, also while nobody takes from them."""
    return [
        Receiver(client_id=name, node=node, filter=filter, qos=1, kind="group")
        for name, group in sorted(engine.groups.by_name.items())
        if group.spec.takes(topic)
        for filter in group.spec.filters[:1]
    ]


def trace(
    engine: Engine, topic: str | None, receivers: list[Receiver], missing: list[str], *, retained: bool
) -> Trace:
    table = engine.definitions.table
    stream = None if topic is None else table.find(topic)
    shard = leader = next_offset = None
    if stream is not None and topic is not None and stream.spec.is_stored and stream.shards:
        number = table.shard(stream, topic.encode())
        if not stream.is_leaderless(number):
            shard = number
            group = engine.replicas.groups.get(number)
            status = None if group is None else group.status()
            if status is not None and status.leader is not None:
                leader = names_of(engine).get(status.leader, str(status.leader))
            if number in engine.shards:
                next_offset = engine.shards[number].next_offset
    is_stored = stream is not None and stream.spec.is_stored
    captures_all = is_stored and stream is not None and stream.spec.capture is Capture.ALL
    return Trace(
        topic=topic,
        stream=None if stream is None else stream.spec.name,
        replication=None if stream is None else str(stream.spec.replication),
        shard=shard,
        leader=leader,
        next_offset=next_offset,
        is_captured=Captured(qos_0=captures_all, qos_1=is_stored, qos_2=is_stored),
        receivers=tuple(receivers),
        retained=retained,
        missing=tuple(missing),
    )
