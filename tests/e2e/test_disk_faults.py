"""Disks that fail for real: one that is full, and one whose fsync reports an error."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.device import V5, V311, Device, unique
from e2e.http_calls import MqttDoor
from e2e.processes import BrokerProcess
from e2e.staged import Writer, packet, section
from millrace.client.http import Http
from waiting import until

Devices = Callable[..., Device]

DISK_BYTES = 24 * 1024 * 1024
PAYLOAD = bytes(200_000)
QUOTA_EXCEEDED = 0x97


# ------------------------------------------------------------------------------------------ full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with little room."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "millrace-test", str(disk)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _ballast(disk: Path, free_bytes: int) -> Path:
    """A file of another program that leaves so much room."""
    path = disk / "ballast"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - free_bytes)
    return path


def _publish_until(device: Device, topic: str, is_over: Callable[[], bool], payload: bytes) -> list[int]:
    """Publish numbered messages, each after the answer to the one before; the codes of the answers. The last
    one may have none."""
    codes: list[int] = []

    def is_done() -> bool:
        info = device.paho.publish(topic, len(codes).to_bytes(4, "big") + payload, 1)
        until(lambda: info.mid in device._published or is_over(), "an answer or a full disk")
        if info.mid in device._published:
            codes.append(int(device._published[info.mid].value))
        return is_over() or codes[-1] != 0

    until(is_done, "a publish to be refused")
    return codes


def _check_refusing(broker: BrokerProcess, devices: Devices, topic: str, reader: Device, stored: int) -> None:
    """MQTT 5 clients hear 0x97, older ones are closed, what was acknowledged is read."""
    assert devices(broker.port, version=V5).connect().publish(topic, PAYLOAD, qos=1) == QUOTA_EXCEEDED
    old = devices(broker.port, version=V311).connect()
    old.paho.publish(topic, PAYLOAD, 1)
    assert old.wait_closed().is_failure
    assert [int.from_bytes(got.payload[:4], "big") for got in reader.expect(stored)] == list(range(stored))
    http = MqttDoor(broker.ports["http"])
    path = "/v1/streams/default"
    (shard,) = [row for row in http("GET", path).json["shard_list"] if row["next_offset"]]
    page = http("GET", f"{path}/shards/{shard['shard']}/messages?from=0&limit=1").json
    assert [message["topic"] for message in page["messages"]] == [topic]


def _check_going_on(broker: BrokerProcess, devices: Devices, topic: str, reader: Device) -> None:
    writer = devices(broker.port, version=V5).connect()
    until(lambda: writer.publish(topic, b"room", qos=1) == 0, "publishing to go on")
    until(lambda: any(got.payload == b"room" for got in reader.expect(reader.waiting)), "the message after")


def test_a_disk_that_runs_low_refuses_publishes_until_there_is_room(
    small_disk: Path, start_broker: StartBroker, devices: Devices
) -> None:
    floor_bytes = 8 * 1024 * 1024
    settings = ("--set", f"storage.free_bytes_min={floor_bytes}")
    broker = start_broker("--data", str(small_disk / "data"), *settings)
    topic = unique("low")
    reader = devices(broker.port).connect()
    reader.subscribe(topic, 1)
    writer = devices(broker.port).connect()
    # Another program takes the room, in the middle of the work.
    ballast = _ballast(small_disk, floor_bytes // 2)
    codes = _publish_until(writer, topic, lambda: False, b"small")
    assert set(codes[:-1]) == {0} and codes[-1] == QUOTA_EXCEEDED
    _check_refusing(broker, devices, topic, reader, len(codes) - 1)
    ballast.unlink()
    _check_going_on(broker, devices, topic, reader)


def test_a_write_that_met_a_full_disk_waits_for_room(
    small_disk: Path, start_broker: StartBroker, devices: Devices
) -> None:
    """Without a floor the file system says no in the middle of a write. That message is in the log already as
    far as its group is concerned, so it waits, and is acknowledged when it is on disk; others are refused."""
    ballast = _ballast(small_disk, 4 * 1024 * 1024)
    broker = start_broker("--data", str(small_disk / "data"), "--set", "storage.free_bytes_min=0")
    topic = unique("full")
    reader = devices(broker.port).connect()
    reader.subscribe(topic, 1)
    writer = devices(broker.port).connect()
    codes = _publish_until(writer, topic, lambda: "No space left" in broker.log, PAYLOAD)
    assert set(codes) == {0}
    _check_refusing(broker, devices, topic, reader, len(codes))
    assert len(writer._published) == len(codes), "the waiting one was acknowledged before it was on disk"
    ballast.unlink()
    until(lambda: len(writer._published) == len(codes) + 1, "the waiting message to be acknowledged")
    (waited,) = reader.expect(1)
    assert int.from_bytes(waited.payload[:4], "big") == len(codes)
    _check_going_on(broker, devices, topic, reader)


def test_a_decided_batch_waits_for_room_and_others_do_not_wait_for_it(
    small_disk: Path, start_broker: StartBroker
) -> None:
    """Releasing writes every row a second time. Where that would leave less than the floor it waits, the node
    goes on with what is small, and takes no more than it could release."""
    floor_bytes = 4 * 1024 * 1024
    settings = ("--set", f"storage.free_bytes_min={floor_bytes}")
    broker = start_broker("--data", str(small_disk / "data"), *settings)
    http = Http(broker.url)
    (row,) = http.get("/v1/streams")["streams"]
    (shard,) = [one["shard"] for one in row["shard_list"]]
    large, small = (Writer(name, [broker.url], "default", patience_s=0.1) for name in ("large", "small"))
    many, one = packet("default/1", b"1" * 100) * 5_000, packet("default/1", b"2")
    for block in range(4):
        large.cluster.stage("default", "large", 0, "a", section(shard, block, many))
    for batch, attempt in ((0, "b"), (1, "lost")):
        small.cluster.stage("default", "small", batch, attempt, section(shard, 0, one))
    ballast = _ballast(small_disk, floor_bytes + 1024 * 1024)
    with pytest.raises(Exception, match=r"timed out|answer"):
        decision = {"batch": 0, "attempts": {"a": {str(shard): 4}}}
        http.call("POST", "/v1/writers/large/commit", decision, timeout_s=1.0)
    until(lambda: "no room to release" in broker.log, "the release to be put off")
    with pytest.raises(Exception, match="no room to stage"):
        small.cluster.stage("default", "small", 1, "c", section(shard, 0, one))
    small.commit(0, b={shard: 1})
    small.cluster.abort("small", 1, ["lost"])
    until(lambda: not http.get("/v1/writers/small")["staged"], "what was given up to be dropped")
    assert http.get("/v1/writers/large")["not_visible"]
    ballast.unlink()
    until(lambda: not http.get("/v1/writers/large")["not_visible"], "the batch to be visible")
    (found,) = http.get("/v1/streams/default")["shard_list"]
    assert found["next_offset"] == 20_001


def test_a_stream_that_is_changed_ends_its_old_log_behind_what_was_decided(
    small_disk: Path, start_broker: StartBroker, devices: Devices
) -> None:
    """A batch that waits to be released when its shard is sealed comes before everything that is published
    after the change: whoever reads the seal takes the log as complete."""
    floor_bytes = 4 * 1024 * 1024
    settings = ("--set", f"storage.free_bytes_min={floor_bytes}")
    broker = start_broker("--data", str(small_disk / "data"), *settings)
    http, rows = Http(broker.url), 5_000
    http.call("POST", "/v1/streams", {"name": "s", "filters": ["s/#"], "shards": 1})
    (shard,) = [one["shard"] for one in http.get("/v1/streams/s")["shard_list"]]
    reader = devices(broker.port).connect()
    reader.subscribe("s/#", 1)
    writer = Writer("w", [broker.url], "s", patience_s=0.1)
    writer.cluster.stage("s", "w", 0, "a", section(shard, 0, packet("s/1", b"decided" + bytes(100)) * rows))
    ballast = _ballast(small_disk, floor_bytes + 512 * 1024)
    with pytest.raises(Exception, match=r"timed out|answer"):
        decision = {"batch": 0, "attempts": {"a": {str(shard): 1}}}
        http.call("POST", "/v1/writers/w/commit", decision, timeout_s=1.0)
    http.call("PATCH", "/v1/streams/s", {"shards": 2})
    assert devices(broker.port).connect().publish("s/1", b"after", qos=1) == 0
    ballast.unlink()
    until(lambda: reader.waiting > rows, "all", 60.0)
    payloads = [got.payload for got in reader.expect(rows + 1)]
    assert payloads.index(b"after") == rows


# --------------------------------------------------------------------------------- failing fsync

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
/* fsync and fdatasync fail as soon as the file named by FAIL_SYNC_WHEN exists. */
static int sync_or_fail(const char *name, int descriptor) {
    const char *when = getenv("FAIL_SYNC_WHEN");
    if (when && access(when, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(descriptor);
}
int fsync(int descriptor) { return sync_or_fail("fsync", descriptor); }
int fdatasync(int descriptor) { return sync_or_fail("fdatasync", descriptor); }
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    directory = tmp_path_factory.mktemp("shim")
    source, library = directory / "shim.c", directory / "shim.so"
    source.write_text(_SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("in_place", ["true", "false"])
def test_a_failed_fsync_stops_the_node_and_acknowledges_nothing(
    start_broker: StartBroker, devices: Devices, shim: Path, tmp_path: Path, in_place: str
) -> None:
    """The log cannot know what is on disk any more: exit 1 with a message that names the file. What was
    acknowledged is there after the next start; the publish that met the failure was not acknowledged."""
    switch = tmp_path / "fail"
    settings = ["--data", str(tmp_path / "data"), "--set", f"storage.sync_in_place={in_place}"]
    broker = start_broker(*settings, LD_PRELOAD=str(shim), FAIL_SYNC_WHEN=str(switch))
    topic = unique("fsync")
    reader = devices(broker.port, client_id="reader", clean=False, expiry_s=600).connect()
    reader.subscribe(topic, 1)
    writer = devices(broker.port).connect()
    for number in range(5):
        assert writer.publish(topic, str(number).encode(), qos=1) == 0
    reader.expect_payloads(*(str(number).encode() for number in range(5)))
    reader.disconnect()

    switch.touch()
    unanswered = writer.paho.publish(topic, b"lost", 1)
    assert broker.wait_exit() == 1
    assert "the node stops: cannot sync" in broker.log
    assert "Traceback" not in broker.log
    writer.wait_closed()
    # The goodbye of the reader may have met the failure first: then it did not leave at all.
    assert unanswered.mid not in writer._published

    switch.unlink()
    again = start_broker(*settings)
    writer = devices(again.port).connect()
    assert writer.publish(topic, b"5", qos=1) == 0
    reader = devices(again.port, client_id="reader", clean=False, expiry_s=600).connect()
    until(lambda: reader.waiting and reader._messages[-1].payload == b"5", "the message after the restart")
    arrival_number = [got.payload for got in reader.expect(reader.waiting)]
    # A message without an answer is open: it may be there or not. Nothing else may be new or missing.
    assert arrival_number[-1] == b"5" and set(arrival_number) <= {b"0", b"1", b"2", b"3", b"4", b"lost", b"5"}
