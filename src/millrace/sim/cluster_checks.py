"""What must hold at the end of a run of whole nodes, when everything has healed.

The logs of all replicas are equal and their offsets dense. Every acknowledged message is in the log; at QoS 2
once. Every durable subscriber received every acknowledged message of its filter: at QoS 1 at least once, at
QoS 2 exactly once; and the acknowledged messages of one publisher on one topic came in their order.
"""

from collections import Counter
from typing import TYPE_CHECKING

from millrace.broker.filters import matches
from millrace.node.reading import Stored, read_blocks, stored_rows
from millrace.node.shard import Shard
from millrace.sim.host import Host
from millrace.sim.mqtt_clients import History
from millrace.sim.violation import Violation
from millrace.storage.block import Kind

if TYPE_CHECKING:
    from millrace.node.server import Server

_READS_MAX = 100_000


def missing(history: History, name: str, filter: str) -> list[bytes]:
    """What was acknowledged, is wanted, and has not come."""
    have = set(history.received[name])
    return [
        payload
        for payload in history.acknowledged()
        if payload not in have and matches(filter, history.sent[payload].topic)
    ]


def check_received(history: History, name: str, filter: str, qos: int) -> None:
    lacking = missing(history, name, filter)
    if lacking:
        raise Violation("delivery", f"{name} never received {lacking[0].decode()} of {len(lacking)}")
    check_once_and_in_order(history, name, qos)


def check_once_and_in_order(history: History, name: str, qos: int) -> None:
    received = history.received[name]
    for payload, count in Counter(received).items():
        sent = history.sent[payload]
        if count > 1 and min(sent.qos, qos) == 2:
            raise Violation("exactly once", f"{name} received {payload.decode()} {count} times")
    last: dict[str, int] = {}
    for payload in dict.fromkeys(received):
        sent = history.sent[payload]
        if not sent.is_acknowledged:
            continue
        if last.get(sent.topic, -1) > sent.number:
            raise Violation("order", f"{name}: {payload.decode()} came after {last[sent.topic]}")
        last[sent.topic] = sent.number


def check_logs(history: History, hosts: list[Host]) -> int:
    """Compares all replicas; returns how many messages a log holds."""
    servers = [host.server for host in hosts if host.server is not None]
    found: Counter[bytes] = Counter()
    for number in sorted(servers[0].streams.shards):
        logs = [_messages(server, number) for server in servers]
        for host, log in zip(hosts, logs, strict=True):
            if log != logs[0]:
                at = next((i for i, (a, b) in enumerate(zip(log, logs[0], strict=False)) if a != b), -1)
                raise Violation(
                    "equal logs",
                    f"shard {number}: {host.name} has {len(log)} messages, {hosts[0].name} {len(logs[0])}; "
                    f"they differ at {at}",
                )
        found.update(message.payload for message in logs[0])
    for payload, sent in history.sent.items():
        if sent.is_acknowledged and not found[payload]:
            raise Violation("acknowledged", f"{payload.decode()} was acknowledged and is in no log")
        if sent.qos == 2 and found[payload] > 1:
            raise Violation("log once", f"{payload.decode()} is in the log {found[payload]} times")
    return found.total()


def _messages(server: "Server", number: int) -> list[Stored]:
    shard: Shard = server.streams.shards[number]
    found: list[Stored] = []
    for _ in range(_READS_MAX):
        offset = len(found)
        if offset >= shard.next_offset:
            return found
        for block in read_blocks(shard, offset):
            header = block.header
            if header.kind is not Kind.DATA or header.next_offset <= len(found):
                continue
            if header.base_offset != len(found):
                raise Violation("dense", f"shard {number}: {header.base_offset} follows {len(found)}")
            found += stored_rows(number, block, range(header.count))
        if len(found) == offset:
            raise Violation("dense", f"shard {number}: nothing can be read at {offset}")
    raise Violation("dense", f"shard {number} does not end")


def check_groups(hosts: list[Host]) -> str:
    """Empty if every group has one leader that everybody knows and all replicas have applied the same."""
    groups: dict[int, list[tuple[str, str | None, int, bool]]] = {}
    for host in hosts:
        if host.server is None or not host.is_up:
            return f"{host.name} does not serve"
        for number, group in host.server.streams.replicas.groups.items():
            status = group.status()
            groups.setdefault(number, []).append((host.name, status.leader, status.applied, status.serving))
            if group.pending_count:
                return f"{host.name} waits for group {number}"
    for number, rows in groups.items():
        if len(rows) != len(hosts):
            return f"group {number} is on {len(rows)} of {len(hosts)} nodes"
        if len({leader for _, leader, _, _ in rows}) != 1 or sum(serving for *_, serving in rows) != 1:
            return f"group {number} has no leader that all agree on: {rows}"
        if len({applied for _, _, applied, _ in rows}) != 1:
            return f"group {number} is not applied to the same index everywhere: {rows}"
    return ""
