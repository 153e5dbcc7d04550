"""Speed of blocks and of the log, by hand: `PYTHONPATH=src python tests/bench/bench_storage.py [--help]`.

Figures are for comparing two versions on one machine; the machine's own fdatasync is measured beside them.
"""

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

from millrace.kernels.blocks import Columns, Run, check_columns, select_rows
from millrace.storage.block import Block, Codec, data_blocks, parse_block
from millrace.storage.disk import SystemDisk
from millrace.storage.log import Log
from millrace.storage.records import Tail, tail_after
from millrace.storage.summary import filter_keys
from millrace.types import Index

MIB = 1 << 20


def publish(topic: bytes, payload: bytes, version: int) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + b"\x00\x01" + (b"\x00" if version == 5 else b"") + payload
    size = len(body)
    length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
    return b"\x32" + length + body


def best_s(call: Callable[[], object], rounds: int = 15) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def traffic(version: int, *, mixed: bool, count: int) -> list[Run]:
    """QoS 1, 256 B: one topic and size, or 100 topics in turn and 128 to 384 B."""
    rng = random.Random(1)
    packets = b"".join(
        publish(b"site/%d/temp" % (n % 100), rng.randbytes(rng.randint(128, 384)), version)
        if mixed
        else publish(b"site/1/temp", rng.randbytes(256), version)
        for n in range(count)
    )
    return [Run(packets, version)]


def read_blocks(raws: list[bytes]) -> None:
    for raw in raws:
        block = parse_block(raw)
        block.topics()
        block.columns()


def check_blocks(columns: list[tuple[Columns, int]]) -> None:
    for column, topics in columns:
        check_columns(column, topics)


def select_blocks(columns: list[tuple[Columns, int]]) -> None:
    for column, topics in columns:
        wanted = bytes(n % 10 == 0 for n in range(topics))
        select_rows(column.topic_ids, wanted, 0, len(column.flags))


def bench_blocks() -> None:
    print("block, 2,000 messages of about 256 B: ns per message (best of 15)")
    print(f"{'':24}{'encode':>9}{'zlib':>9}{'read':>9}{'check':>9}{'select':>9}")
    for name, version, mixed in (
        ("3.1.1, equal packets", 4, False),
        ("3.1.1, mixed", 4, True),
        ("5, mixed", 5, True),
    ):
        runs = traffic(version, mixed=mixed, count=2_000)
        blocks = data_blocks(runs)
        columns = [(block.columns(), len(block.topics())) for block in blocks]
        figures = [
            best_s(partial(data_blocks, runs)),
            best_s(partial(data_blocks, runs, Codec.ZLIB), 3),
            best_s(partial(read_blocks, [block.to_bytes() for block in blocks])),
            best_s(partial(check_blocks, columns)),
            best_s(partial(select_blocks, columns)),
        ]
        print(f"{name:24}" + "".join(f"{seconds / 2_000 * 1e9:>9.0f}" for seconds in figures))


def stamped(block: Block, tail: Tail) -> Block:
    return block.stamped(
        shard=1,
        term=1,
        index=tail.next_index,
        previous_term=tail.last_term,
        base_offset=tail.next_offset,
        base_time_us=tail.next_index,
    )


def bench_append(directory: str, total_bytes: int) -> None:
    print(f"\nappend + sync, {total_bytes // MIB} MiB each (bare: pwrite + fdatasync of the same bytes)")
    print(f"{'':10}{'log':>9}{'':18}{'bare':>9}")
    print(f"{'block B':>10}" + f"{'MiB/s':>9}{'p50 us':>9}{'p99 us':>9}" * 2)
    for payload_bytes in (200, 4_000, 60_000, 1_000_000):
        (block,) = data_blocks(
            [Run(publish(b"t", bytes(min(payload_bytes, 16_000)), 4) * max(1, payload_bytes // 16_000), 4)]
        )
        size = block.header.block_bytes
        rounds = max(20, min(2_000, total_bytes // size))
        path = tempfile.mkdtemp(dir=directory)
        log = Log.open(SystemDisk(), path, shard=1, salt=1)
        tail = Tail(next_index=1, last_term=0, next_offset=0)
        ours = []
        for _ in range(rounds):
            start = time.perf_counter()
            following = stamped(block, tail)
            log.append([following])
            log.sync()
            ours.append(time.perf_counter() - start)
            tail = tail_after(following.header)
        log.close()
        bare = []
        descriptor = os.open(f"{path}/bare", os.O_CREAT | os.O_WRONLY)
        raw = block.to_bytes()
        for n in range(rounds):
            start = time.perf_counter()
            os.pwrite(descriptor, raw, n * size)
            os.fdatasync(descriptor)
            bare.append(time.perf_counter() - start)
        os.close(descriptor)
        shutil.rmtree(path)
        row = f"{size:>10}"
        for times in (ours, bare):
            row += f"{rounds * size / sum(times) / MIB:>9.0f}{statistics.median(times) * 1e6:>9.0f}"
            row += f"{sorted(times)[int(len(times) * 0.99)] * 1e6:>9.0f}"
        print(row)


def bench_restart(directory: str, total_bytes: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < 2 * total_bytes:
        print(f"\nrestart: {free // MIB} MiB free, {2 * total_bytes // MIB} MiB wanted; skipped")
        return
    path = tempfile.mkdtemp(dir=directory)
    log = Log.open(SystemDisk(), path, shard=1, salt=1)
    bodies = [
        data_blocks(
            [Run(b"".join(publish(b"site/%d/%d" % (k, n % 50), bytes(240), 4) for n in range(200)), 4)]
        )[0]
        for k in range(20)
    ]
    (rare,) = data_blocks([Run(publish(b"rare/one", b"x", 4), 4)])
    tail = Tail(next_index=1, last_term=0, next_offset=0)
    written, has_rare = 0, False
    start = time.perf_counter()
    while written < total_bytes:
        batch = []
        for body in bodies:
            batch.append(stamped(body, tail))
            tail = tail_after(batch[-1].header)
        if written > total_bytes * 0.9 and not has_rare:
            batch.append(stamped(rare, tail))
            tail, has_rare = tail_after(batch[-1].header), True
        log.append(batch)
        log.sync()
        written += sum(block.header.block_bytes for block in batch)
    seconds = time.perf_counter() - start
    rate = written / seconds / MIB
    print(f"\n{written // MIB} MiB, {tail.next_offset} messages, a sync each MiB: {rate:.0f} MiB/s")

    def timed(name: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        result = call()
        print(f"{name:<48}{(time.perf_counter() - start) * 1e3:>9.1f} ms  {result}")

    def reopened() -> str:
        nonlocal log
        log = Log.open(SystemDisk(), path, shard=1, salt=1)
        return f"{len(log.segments())} segments, {len(log.reports)} reports"

    timed("start after a crash", reopened)
    log.close()
    timed("start after a clean stop", reopened)

    def read_everything() -> str:
        index, count = log.first_index, 0
        while index <= log.last_index:
            blocks = log.read(index, log.last_index)
            count += sum(block.header.count for block in blocks)
            index = Index(blocks[-1].header.index + 1)
        return f"{count} messages"

    def find_rare() -> str:
        keys = filter_keys(b"rare/one")
        assert keys is not None
        index, found = log.first_index, 0
        while (index := log.skip_to(index, keys)) <= log.last_index:
            blocks = log.read(index, log.last_index)
            found += sum(b"rare/one" in block.topics() for block in blocks)
            index = Index(blocks[-1].header.index + 1)
        return f"{found} match in {log.next_offset}"

    timed("read and prove everything", read_everything)
    timed("one match in the whole log, by the summaries", find_rare)
    log.close()
    shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="where the logs are written")
    parser.add_argument("--append-mib", type=int, default=64, help="bytes for each size of block")
    parser.add_argument("--restart-mib", type=int, default=1024, help="size of the log that is opened")
    arguments = parser.parse_args()
    bench_blocks()
    bench_append(arguments.directory, arguments.append_mib * MIB)
    bench_restart(arguments.directory, arguments.restart_mib * MIB)


if __name__ == "__main__":
    main()
