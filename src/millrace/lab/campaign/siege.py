"""`python -m millrace.lab.campaign.siege`: strangers and idlers at the door of a node while one client works.

A node has users. A live client, a process of its own, publishes at QoS 1 and waits for its own message, many
times a second: first alone, then beside idle connections, beside connections that begin a CONNECT and never
end it, and beside wrong logins, half of which hang up at once. Its p99 may grow by a factor of three; every
half-open connection must be closed at the deadline, no idle one may be lost, and nobody may come in by a
wrong password. Attackers come from addresses of their own, and they stand for other machines: they run at a
low priority, and it is counted whether the attack was as strong as was asked for.

With `--aside` all attackers go to another process instead, which accepts, reads what comes first, and closes
or holds the connection. What the live client's p99 grows by then is what the machine costs it: attackers,
that process, node and client share its processors. Nothing is judged.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from millrace.client import Client
from millrace.client.http import Http
from millrace.errors import MillraceError
from millrace.lab.campaign.report import Report, Say, percentile
from millrace.local_cluster import LocalCluster, NodeProcess
from millrace.node.doors.descriptors import raise_limit
from millrace.types import Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connect

GROWTH_MAX = 3.0
_PASSWORD = "siege"
_USERS = ("live", "idle")
_PAUSE_S = 0.02
_CONNECTING_AT_ONCE = 100
_PER_ADDRESS = 500
_DEADLINE_S = 10.0
# Of MQTT 3.1.1: so many passwords are checked already; it may come again.
_BUSY = 3
_LATE_S = 3.0
_NICE = 10
# Of the wrong logins that were asked for: with fewer it was no such attack.
_SENT_LEAST = 0.95
_READ_S = 5.0


class Door(NamedTuple):
    """Where attackers go."""

    host: str
    mqtt_port: int


def _connect(client_id: str, user: str, password: str, keep_alive_s: int = 0) -> bytes:
    return encode(
        Connect(
            version=Version.MQTT_3_1_1,
            client_id=client_id,
            keep_alive_s=keep_alive_s,
            username=user,
            password=password.encode(),
        ),
        Version.MQTT_3_1_1,
    )


def _address(block: int, number: int) -> str:
    """An address of this machine that only the attackers of this kind have."""
    return f"127.0.{block}.{1 + number // _PER_ADDRESS % 250}"


async def _opened(door: Door, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(door.host, door.mqtt_port, local_addr=(address, 0))


class Idlers:
    """Clients that logged in and say nothing."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._room = asyncio.Semaphore(_CONNECTING_AT_ONCE)
        self._held: list[asyncio.StreamWriter] = []
        self._watching: list[asyncio.Task[None]] = []
        self.lost = 0
        self._is_over = False

    async def come(self, count: int) -> None:
        await asyncio.gather(*(self._come(number) for number in range(count)))

    async def _come(self, number: int) -> None:
        async with self._room:
            while True:
                reader, writer = await _opened(self._door, _address(1, number))
                writer.write(_connect(f"idle{number}", "idle", _PASSWORD))
                answer = await reader.readexactly(4)
                if not answer[3]:
                    break
                if answer[3] != _BUSY:
                    raise MillraceError(f"an idle client was refused: 0x{answer[3]:02x}")
                writer.close()
                await asyncio.sleep(1.0)
            self._held.append(writer)
            self._watching.append(asyncio.create_task(self._watch(reader)))

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            await reader.read(1)
        self.lost += not self._is_over

    def leave(self) -> None:
        self._is_over = True
        for task in self._watching:
            task.cancel()
        for writer in self._held:
            writer.close()


async def half_open(door: Door, number: int) -> float | None:
    """How long a connection lived that never says all of its CONNECT; None where it was not closed."""
    began_s = time.monotonic()
    try:
        reader, writer = await _opened(door, _address(2, number))
        writer.write(b"\x10\x20\x00")
        async with asyncio.timeout(_DEADLINE_S + 3 * _LATE_S):
            await reader.read()
    except TimeoutError:
        return None
    except OSError:
        pass
    return time.monotonic() - began_s


class WrongLogins:
    """So many in a second, half of them gone before they are answered."""

    def __init__(self, door: Door, per_s: float) -> None:
        self._door, self._per_s = door, per_s
        self.tried = self.sent = self.let_in = self.refused = 0
        self._end_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def go_on(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._end_s = began_s + seconds
        while (passed_s := loop.time() - began_s) < seconds:
            while self.tried < passed_s * self._per_s:
                task = asyncio.create_task(self._try(self.tried))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self.tried += 1
            await asyncio.sleep(0.01)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _try(self, number: int) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            reader, writer = await _opened(self._door, _address(3, 25 * number))
            writer.write(_connect(f"wrong{number}", _USERS[number % 2], f"guess{number}"))
            self.sent += asyncio.get_running_loop().time() <= self._end_s
            try:
                if number % 2:
                    return
                async with asyncio.timeout(_READ_S):
                    answer = await reader.readexactly(4)
                self.let_in += not answer[3]
                self.refused += bool(answer[3])
            finally:
                writer.close()


# ------------------------------------------------------------------------------------------------ aside


async def stand_aside() -> None:
    """A door with nothing behind it: idle clients are let in, all others read a refusal."""

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_DEADLINE_S):
                packet = await reader.readexactly(2)
                packet += await reader.readexactly(packet[1])
            is_idle = b"idle" in packet and b"guess" not in packet
            writer.write(b"\x20\x02\x00\x00" if is_idle else b"\x20\x02\x00\x04")
            if is_idle:
                await reader.read(1)
        writer.close()

    server = await asyncio.start_server(on_client, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _door_aside() -> tuple[Door, asyncio.subprocess.Process]:
    words = ("-m", "millrace.lab.campaign.siege", "--stand-aside")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    return Door("127.0.0.1", int(await process.stdout.readline())), process


# ------------------------------------------------------------------------------------------- live client


async def live(url: str, seconds: float) -> list[float]:
    """Round trips of a client that publishes and waits for its own message."""
    taken: list[float] = []
    async with (
        Client(url, client_id="live", username="live", password=_PASSWORD) as client,
        client.subscribe("live/#", qos=1) as messages,
    ):
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            await client.publish("live/x", b"%d" % len(taken), qos=1)
            await messages.get(60.0)
            taken.append(time.monotonic() - began_s)
            await asyncio.sleep(_PAUSE_S)
    return taken


class LiveClient:
    """The same in a process of its own: what the attackers cost this one must not count. It is made before it
    begins, because a process that gave way to others would make one that does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @staticmethod
    async def made(node: NodeProcess, seconds: float) -> "LiveClient":
        words = ("-m", "millrace.lab.campaign.siege", "--live", node.url, "--seconds", str(seconds))
        pipe = asyncio.subprocess.PIPE
        return LiveClient(
            await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe)
        )

    async def round_trips(self) -> list[float]:
        out, _ = await self._process.communicate(b"begin\n")
        if self._process.returncode:
            raise MillraceError("the live client failed")
        found: list[float] = json.loads(out)
        return found


def _give_way() -> None:
    """From now on this process comes after the node and the live client, and before the node's checks of
    passwords: behind those it would get nothing, and there would be no attack."""
    if hasattr(os, "nice"):
        os.nice(_NICE)


def _times(report: Report, name: str, taken: list[float]) -> float:
    p99 = percentile(taken, 0.99)
    report.note(f"{name}: round trips", len(taken))
    report.note(f"{name}: p50 ms", round(percentile(taken, 0.5) * 1000, 2))
    report.note(f"{name}: p99 ms", round(p99 * 1000, 2))
    return p99


async def siege(node: NodeProcess, given: argparse.Namespace, report: Report, say: Say) -> None:
    await prepare(node)
    say("the live client is alone")
    alone = await LiveClient.made(node, given.seconds)
    before = _times(report, "alone", await alone.round_trips())
    attack_s = max(given.seconds, _DEADLINE_S + _LATE_S)
    client = await LiveClient.made(node, attack_s)
    _give_way()
    door = Door(node.host, node.mqtt_port)
    if given.aside:
        door, aside = await _door_aside()
    idlers, logins = Idlers(door), WrongLogins(door, given.logins)
    began_s = time.monotonic()
    await idlers.come(given.idle)
    say(f"{given.idle} idle connections after {time.monotonic() - began_s:.0f} s; now the attack")
    lived, taken, _ = await asyncio.gather(
        asyncio.gather(*(half_open(door, number) for number in range(given.half_open))),
        client.round_trips(),
        logins.go_on(attack_s),
    )
    after = _times(report, "under attack", taken)
    report.note("p99, times that of before", round(after / before, 2))
    report.note("idle connections", given.idle)
    report.note("idle connections lost", idlers.lost)
    report.note("half-open connections", given.half_open)
    closed = [one for one in lived if one is not None]
    report.note("half-open closed", len(closed))
    report.note("half-open lived, max s", round(max(closed, default=0.0), 1))
    report.note("wrong logins tried", logins.tried)
    report.note("wrong logins sent a second", round(logins.sent / attack_s))
    report.note("wrong logins answered with a refusal", logins.refused)
    if given.aside:
        idlers.leave()
        aside.terminate()
        await aside.wait()
        return
    report.require(after <= GROWTH_MAX * before, f"p99 grew by a factor of {after / before:.1f}")
    is_strong = logins.sent >= _SENT_LEAST * given.logins * attack_s
    report.require(is_strong, f"{logins.sent / attack_s:.0f} wrong logins a second were sent")
    report.require(not idlers.lost, f"{idlers.lost} idle connections were lost")
    report.require(not logins.let_in, f"{logins.let_in} wrong logins were let in")
    late = sum(one is None or one > _DEADLINE_S + _LATE_S for one in lived)
    report.require(not late, f"{late} half-open connections were not closed at the deadline")
    idlers.leave()


async def prepare(node: NodeProcess) -> None:
    def ask() -> None:
        first = {"name": "root", "password": _PASSWORD, "roles": ["admin"]}
        Http(node.http_url).call("POST", "/v1/users", first)
        with Http(node.http_url.replace("//", "//root@"), password=_PASSWORD) as http:
            for name in _USERS:
                http.call("POST", "/v1/users", {"name": name, "password": _PASSWORD})
            rule: dict[str, Any] = {"user": "live", "effect": "allow", "action": "all", "filter": "live/#"}
            http.call("POST", "/v1/rules", rule)

    await asyncio.to_thread(ask)


async def _run(given: argparse.Namespace, report: Report, say: Say) -> None:
    deadline = ("--set", f"limits.connect_deadline_ms={int(_DEADLINE_S * 1000)}")
    with tempfile.TemporaryDirectory(prefix="millrace-siege-") as directory:
        async with LocalCluster(1, Path(directory), options=deadline) as cluster:
            await siege(cluster.nodes[0], given, report, say)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m millrace.lab.campaign.siege", description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000, help="connections that say nothing")
    parser.add_argument(
        "--half-open", type=int, default=2_000, help="connections that never end their CONNECT"
    )
    parser.add_argument("--logins", type=float, default=400.0, help="wrong logins a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each measurement takes")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--aside", action="store_true", help="attack another process, to see what that costs")
    parser.add_argument("--live", help=argparse.SUPPRESS)
    parser.add_argument("--stand-aside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.live:
        sys.stdin.readline()
        print(json.dumps(asyncio.run(live(given.live, given.seconds))))
        return 0
    raise_limit()
    if given.stand_aside:
        asyncio.run(stand_aside())
        return 0
    report = Report("siege")
    asyncio.run(_run(given, report, lambda text: print(text, file=sys.stderr, flush=True)))
    print(json.dumps(report.figures) if given.json else report.table())
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
