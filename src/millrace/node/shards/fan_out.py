"""Deliver a committed block that came in at another node to the clients of this one.

What came in here is delivered from the packets as they arrived (`Inbound.committed`). A block from elsewhere
is taken apart again: neighbouring messages with the same route and the same flags are one run.
"""

from millrace.broker.machine import Broker
from millrace.broker.messages.message import Run, expiry_of
from millrace.kernels.blocks import FLAG_QOS, FLAG_RETAIN, FLAG_VERSION_SHIFT
from millrace.storage.block import Block

EDGE_PRODUCER = b"edge/"


def inputs_of(block: Block) -> list[tuple[int, int]]:
    """Spans of rows that are for an edge function alone: what was published, not what it made of it."""
    columns = block.columns()
    made = {n for n, name in enumerate(columns.names) if bytes(name).startswith(EDGE_PRODUCER)}
    is_made = [producer in made for producer in columns.producer_ids]
    spans: list[tuple[int, int]] = []
    for row in range(block.header.count):
        if row >= len(is_made) or not is_made[row]:
            if spans and spans[-1][1] == row:
                spans[-1] = (spans[-1][0], row + 1)
            else:
                spans.append((row, row + 1))
    return spans


def fan_out(
    broker: Broker,
    block: Block,
    shard: int,
    now_ms: int,
    wall_us: int,
    *,
    has_edge: bool = False,
    with_groups: bool = True,
) -> None:
    """Give every message of the block to the sessions that want it, in order."""
    if not broker.sessions:
        return
    router = broker.router
    topics = block.topics()
    routes = [router.delivery_route(topic) for topic in topics]
    if not any(route.has_receivers for route in routes):
        return
    columns = block.columns()
    ids, flags, packets = columns.topic_ids, columns.flags, columns.packets
    positions, sizes = columns.packet_positions, columns.packet_sizes
    base = block.header.base_offset
    row, count = 0, block.header.count
    inputs = dict(inputs_of(block)) if has_edge else {}
    while row < count:
        if row in inputs:
            row = inputs[row]
            continue
        route, flag = routes[ids[row]], flags[row]
        single = (
            has_edge or bool(flag & FLAG_RETAIN) or flag >> FLAG_VERSION_SHIFT == 5 or bool(route.no_local)
        )
        end = row + 1
        if not single:
            while end < count and routes[ids[end]] is route and flags[end] == flag:
                end += 1
        if route.has_receivers:
            data = bytes(packets[positions[row] : positions[end - 1] + sizes[end - 1]])
            v5 = flag >> FLAG_VERSION_SHIFT == 5
            retain = bool(flag & FLAG_RETAIN)
            if retain:
                data = bytes((data[0] & 0xFE,)) + data[1:]
            expiry_s = expiry_of(data) if v5 else None
            expires_ms = None
            if expiry_s is not None:
                sent_us = block.header.base_time_us + columns.deltas_us[row]
                expires_ms = now_ms + (sent_us + expiry_s * 1_000_000 - wall_us) // 1000
            run = Run(data, end - row, flag & FLAG_QOS, v5, retain, expires_ms)
            run.shard, run.offset = shard, base + row
            topic = topics[ids[row]].decode() if route.no_local else None
            broker.outbound.deliver(None, topic, route, run, now_ms, with_groups=with_groups)
        row = end
