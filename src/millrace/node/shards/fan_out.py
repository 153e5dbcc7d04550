"""Deliver a committed block that came in at another node to the clients of this one.

What came in here is delivered from the packets as they arrived (`Inbound.committed`). A block from elsewhere
is taken apart again: neighbouring messages with the same route and the same flags are one run.
"""

from millrace.broker.machine import Broker
from millrace.broker.messages.message import Run, stored_run
from millrace.broker.shards.block_facts import edge_inputs
from millrace.kernels.blocks import FLAG_RETAIN, FLAG_VERSION_SHIFT
from millrace.storage.block import Block


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
    inputs = dict(edge_inputs(columns)) if has_edge else {}
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
            sent_us = block.header.base_time_us + columns.deltas_us[row]
            run = stored_run(data, end - row, flag, sent_us, now_ms, wall_us)
            run.shard, run.offset = shard, base + row
            topic = topics[ids[row]].decode() if route.no_local else None
            broker.outbound.deliver(None, topic, route, run, now_ms, with_groups=with_groups)
        row = end


def row_run(block: Block, row: int, now_ms: int, wall_us: int) -> Run:
    """One message of a block, as it would be delivered now."""
    columns = block.columns()
    start = columns.packet_positions[row]
    data = bytes(columns.packets[start : start + columns.packet_sizes[row]])
    sent_us = block.header.base_time_us + columns.deltas_us[row]
    return stored_run(data, 1, columns.flags[row], sent_us, now_ms, wall_us)
