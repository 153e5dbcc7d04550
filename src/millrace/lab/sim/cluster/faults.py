"""The nemesis of a simulated cluster of whole nodes: one fault after the other, each undone after a while."""

import random
from collections.abc import Callable

from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.scene import Scene
from millrace.lab.sim.surroundings.clock import US_PER_S

_LASTS_S_MAX = 12.0
_JUMP_S_MAX = 3 * 60 * 60


class ClusterNemesis:
    def __init__(self, world: Scene, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._is_active = False
        self.faults = 0
        self._gap_s = 1.0
        faults: dict[str, Callable[[], None]] = {
            "crash": self._crash,
            "power loss": self._lose_power,
            "power loss in a write": self._lose_power_in_a_write,
            "power loss of all": self._lose_all_power,
            "stop": self._stop,
            "pause": self._pause,
            "slow disk": self._slow_disk,
            "full disk": self._full_disk,
            "failing sync": self._failing_sync,
            "damage": self._damage,
            "lost tail": self._lose_tail,
            "broken connections": self._break_connections,
            "clients cut off": self._cut_off_clients,
            "split": self._split,
            "one way": self._one_way,
            "bridge": self._bridge,
            "clock": self._set_clock,
        }
        self._kinds = [faults[name] for name in world.plan.faults]

    def start(self, gap_s: float) -> None:
        """One fault in `gap_s` from now on, on average."""
        self._gap_s = gap_s
        self._is_active = bool(self._kinds)
        if self._is_active:
            self._again()

    def stop(self) -> None:
        self._is_active = False

    def _again(self) -> None:
        self._world.clock.after(int(self._rng.expovariate(1 / self._gap_s) * US_PER_S), self._strike)

    def _strike(self) -> None:
        if self._is_active:
            self.faults += 1
            self._rng.choice(self._kinds)()
            self._again()

    def _undo(self, call: Callable[[], None]) -> None:
        """After a while, unless the world has healed everything before."""
        delay_us = int(self._rng.random() ** 2 * _LASTS_S_MAX * US_PER_S)
        self._world.clock.after(delay_us, lambda: call() if self._is_active else None)

    def _any_up(self) -> Host | None:
        up = [host for host in self._world.members if host.loop is not None]
        return self._rng.choice(up) if up else None

    def _end(self, text: str, *, is_power_loss: bool) -> None:
        host = self._any_up()
        if host is not None:
            self._world.note(host.name, text)
            host.is_wanted = False
            host.crash(is_power_loss=is_power_loss)
            self._undo(host.start)

    # ------------------------------------------------------------------------------------------ nodes

    def _crash(self) -> None:
        self._end("is killed", is_power_loss=False)

    def _lose_power(self) -> None:
        self._end("loses its power", is_power_loss=True)

    def _lose_power_in_a_write(self) -> None:
        host = self._any_up()
        if host is not None:
            host.disk.cut_power_at(host.disk.changes + self._rng.randint(1, 30))

    def _lose_all_power(self) -> None:
        self._world.note("all", "the whole cluster loses its power")
        for host in self._world.members:
            host.is_wanted = False
            host.crash(is_power_loss=True)
            self._undo(host.start)

    def _stop(self) -> None:
        host = self._any_up()
        if host is not None and host.is_up:
            self._world.note(host.name, "is stopped")
            host.stop()
            self._undo(host.start)

    def _pause(self) -> None:
        host = self._any_up()
        if host is not None and host.loop is not None and not host.loop.is_paused:
            self._world.note(host.name, "is paused")
            loop = host.loop
            loop.pause()
            self._undo(loop.resume)

    def _slow_disk(self) -> None:
        host = self._rng.choice(self._world.members)
        host.slow_disk = self._rng.choice((10, 100, 400))
        self._world.note(host.name, f"has a disk {host.slow_disk} times slower")

        def usual() -> None:
            host.slow_disk = 1

        self._undo(usual)

    def _set_clock(self) -> None:
        """Somebody sets the clock of a machine, far ahead or far back."""
        host = self._rng.choice(self._world.members)
        host.jump_us = self._rng.choice((-1, 1)) * self._rng.randint(1, _JUMP_S_MAX) * US_PER_S
        self._world.note(host.name, f"has its clock set by {host.jump_us // US_PER_S} s")

        def right() -> None:
            host.jump_us = 0

        self._undo(right)

    def _full_disk(self) -> None:
        """Room for a few writes more, and then none."""
        host = self._any_up()
        if host is None:
            return
        disk = host.disk
        disk.capacity_bytes = disk.used_bytes() + self._rng.randint(0, 4_000)
        self._world.note(host.name, f"has {disk.free_bytes('')} bytes of disk left")

        def room() -> None:
            disk.capacity_bytes = None

        self._undo(room)

    def _failing_sync(self) -> None:
        host = self._any_up()
        if host is not None:
            self._world.note(host.name, "will fail its next sync")
            host.disk.fail_next_sync()

    def _damage(self) -> None:
        """A bit of a log turns while its node is down."""
        host, path = self._killed_for_damage()
        if host is not None:
            bit = self._rng.randrange(8 * len(host.disk.content(path)))
            self._world.note(host.name, f"is killed; bit {bit} of {path} turns")
            host.disk.flip_bit(path, bit)
            self._undo(host.start)

    def _lose_tail(self) -> None:
        """The end of a log goes while its node is down, synced or not, and leaves nothing to see."""
        host, path = self._killed_for_damage()
        if host is not None:
            size = self._rng.randrange(len(host.disk.content(path)))
            self._world.note(host.name, f"is killed; {path} ends after {size} bytes")
            host.disk.cut(path, size)
            self._undo(host.start)

    def _killed_for_damage(self) -> tuple[Host | None, str]:
        """A node that was killed, and one of its logs. One node at a time, and only while at least two others
        are whole: what exists nowhere cannot be kept, and nobody is elected by one voter of two."""
        host = self._any_up()
        if host is None or len(self._world.members) < 3 or not self._world.is_whole():
            return None, ""
        paths = logs_to_damage(host)
        if not paths:
            return None, ""
        path = self._rng.choice(paths)
        host.is_wanted = False
        host.crash(is_power_loss=False)
        return host, path

    # ---------------------------------------------------------------------------------------- network

    def _break_connections(self) -> None:
        host = self._any_up()
        if host is not None:
            count = self._world.sockets.reset_some(host.address, self._rng.random())
            self._world.note(host.name, f"{count} connections break")

    def _cut_off_clients(self) -> None:
        host = self._rng.choice(self._world.members)
        clients = self._world.client_addresses
        chosen = self._rng.sample(clients, self._rng.randint(1, len(clients)))
        self._world.note(host.name, f"{len(chosen)} clients are cut off")
        self._world.sockets.block(chosen, [host.address])
        self._world.sockets.block([host.address], chosen)
        self._undo(self._world.sockets.heal)

    def _addresses(self) -> tuple[list[str], list[str]]:
        addresses = [host.address for host in self._world.members]
        self._rng.shuffle(addresses)
        at = self._rng.randint(1, len(addresses) - 1)
        return addresses[:at], addresses[at:]

    def _split(self) -> None:
        left, right = self._addresses()
        self._world.note("all", f"split {left} | {right}")
        self._world.sockets.block(left, right)
        self._world.sockets.block(right, left)
        self._undo(self._world.sockets.heal)

    def _one_way(self) -> None:
        left, right = self._addresses()
        self._world.note("all", f"{left} are not heard by {right}")
        self._world.sockets.block(left, right)
        self._undo(self._world.sockets.heal)

    def _bridge(self) -> None:
        """Two nodes do not reach each other; all others reach both."""
        if len(self._world.members) < 3:
            return
        one, other = self._rng.sample([host.address for host in self._world.members], 2)
        self._world.note("all", f"{one} and {other} do not reach each other")
        self._world.sockets.block([one], [other])
        self._world.sockets.block([other], [one])
        self._undo(self._world.sockets.heal)


def logs_to_damage(host: Host) -> list[str]:
    """The logs of a node without which their groups do. While another node is drained, a group may have two
    voters: one that was cut off and lost what only it had is needed to elect the other, and may not vote."""
    groups = {} if host.server is None else host.server.engine.replicas.groups
    needed = set()
    for number, group in groups.items():
        voters = group.status().config.voters
        if group.replica in voters and len(voters) < 3:
            needed.add(str(number))
    logs = [path for path in host.disk.paths() if path.endswith(".log") and host.disk.content(path)]
    return [path for path in logs if path.split("/")[-2] not in needed]
