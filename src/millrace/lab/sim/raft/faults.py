"""The nemesis: draws one fault after the other from the plan and undoes it after a while.

It may do anything to network, clocks and processes, at any time and to any number of them. With data it has
limits, because no protocol can keep what exists nowhere: at most one member at a time has lost data (a
damaged log not yet repaired, or a disk that is gone), and only in a group of three voters or more whose
membership is settled. Without that rule a run could not be asked to make progress at its end.
"""

import random
from collections.abc import Callable
from typing import Any

from millrace.lab.sim.raft.answers import Answer, Outcome, ignore
from millrace.lab.sim.raft.crash_points import CRASH_POINTS
from millrace.lab.sim.raft.plan import MEMBERSHIP, TICK_US
from millrace.lab.sim.raft.process import Process
from millrace.lab.sim.raft.state import encode_batch
from millrace.lab.sim.raft.world import World
from millrace.replication.contract import ChangeKind, EntryKind, ReplicaId

DATA = EntryKind.DATA
STRANGERS = 1_000
"""Numbers above this are clients of the nemesis."""
_CHANGES = {
    "add learner": ChangeKind.ADD_LEARNER,
    "promote": ChangeKind.PROMOTE,
    "demote": ChangeKind.DEMOTE,
    "remove": ChangeKind.REMOVE,
}


class Nemesis:
    def __init__(self, *, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._clock = world.clock
        self._plan = world.plan
        self._is_active = False
        self.faults = 0
        self._strangers = 0

    def start(self) -> None:
        self._is_active = bool(self._plan.faults)
        if self._is_active:
            self._again()

    def stop(self) -> None:
        self._is_active = False

    def _again(self) -> None:
        gap_ticks = self._rng.expovariate(1 / self._plan.fault_gap_ticks)
        self._clock.after(1 + int(gap_ticks * TICK_US), self._strike)

    def _strike(self) -> None:
        if not self._is_active:
            return
        kind = self._rng.choice(self._plan.faults)
        self.faults += 1
        if kind in MEMBERSHIP:
            self._change(kind)
        else:
            getattr(self, "_" + kind.replace(" ", "_"))()
        self._again()

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        """Undo after a while, unless the world has healed everything before."""
        ticks = 1 + self._rng.random() ** 2 * self._plan.fault_ticks_max
        self._clock.after(int(ticks * TICK_US), self._undo, call, args)

    def _undo(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._is_active:
            call(*args)

    def _up(self) -> list[Process]:
        return [process for process in self._world.processes.values() if process.is_up]

    def _any_up(self) -> Process | None:
        up = self._up()
        return self._rng.choice(up) if up else None

    def _leader_or_any(self) -> Process | None:
        return self._world.leader() or self._any_up()

    # --------------------------------------------------------------------------------------- network

    def _names(self) -> list[ReplicaId]:
        names = list(self._world.processes)
        self._rng.shuffle(names)
        return names

    def _cut(self, text: str) -> None:
        self._world.note(text)
        self._world.tell_links(self._rng)
        self._later(self._world.heal_network)

    def _split(self) -> None:
        names = self._names()
        at = self._rng.randint(0, len(names))
        self._world.network.split(names[:at], names[at:])
        self._cut(f"split {','.join(names[:at])} | {','.join(names[at:])}")

    def _one_way(self) -> None:
        names = self._names()
        at = self._rng.randint(0, len(names))
        self._world.network.block(names[:at], names[at:])
        self._cut(f"one way: {','.join(names[:at])} not heard by {','.join(names[at:])}")

    def _bridge(self) -> None:
        """Two halves that reach each other only through one replica in the middle."""
        names = self._names()
        middle, rest = names[0], names[1:]
        at = len(rest) // 2
        self._world.network.split(rest[:at], rest[at:])
        self._cut(f"bridge {','.join(rest[:at])} - {middle} - {','.join(rest[at:])}")

    def _isolate_leader(self) -> None:
        leader = self._leader_or_any()
        if leader is not None:
            self._world.network.split([leader.replica], self._world.processes)
            self._cut(f"isolate {leader.replica}")

    def _deafen_leader(self) -> None:
        leader = self._leader_or_any()
        if leader is not None:
            self._world.network.block(self._world.processes, [leader.replica])
            self._cut(f"deafen {leader.replica}")

    def _pair(self) -> tuple[Process, Process] | None:
        """A leader that nobody but one follower can talk to."""
        leader = self._world.leader()
        members = self._world.members()
        others = [each for each in self._up() if each is not leader and each.replica in members]
        if leader is None or not others:
            return None
        follower = self._rng.choice(others)
        pair = (leader.replica, follower.replica)
        self._world.network.split(pair, [name for name in self._world.processes if name not in pair])
        self._world.note(f"only {pair[1]} hears {pair[0]}")
        return leader, follower

    def _feed(self, leader: Process, count: int) -> None:
        """Proposals that are never asked again, each of a client of its own: nobody waits for them."""
        for _ in range(count):
            self._strangers += 1
            payload = encode_batch(STRANGERS + self._strangers, 1, [0])
            self._clock.after(int(self._rng.random() * TICK_US), leader.propose, (payload,), DATA, ignore)

    def _then(self, ticks: float, call: Callable[..., None], *args: Any) -> None:
        self._clock.after(int((0.5 + self._rng.random()) * ticks * TICK_US), self._undo, call, args)

    def _strand_tail(self) -> None:
        """A leader goes on with one follower only, perhaps one with a stuck disk, and is then cut off: both
        hold entries that the next leader replaces. Figure 7 of the Raft paper, made to order."""
        pair = self._pair()
        if pair is not None:
            pair[1].log.is_stalled = self._rng.random() < 0.6
            self._feed(pair[0], self._rng.randint(1, 4))
            self._then(3, self._strand, *pair)

    def _strand(self, leader: Process, follower: Process) -> None:
        self._world.network.heal()
        self._world.network.split([leader.replica], self._world.processes)
        self._cut(f"isolate {leader.replica}")
        self._later(follower.log.heal)

    def _late_answers(self) -> None:
        """A follower's answers of one term reach the leader when it leads a later one, and its log no longer
        is what the follower answered to."""
        pair = self._pair()
        if pair is not None:
            self._world.network.hold([pair[1].replica], [pair[0].replica])
            self._feed(pair[0], self._rng.randint(4, 12))
            self._then(2 * self._plan.options.election_ticks, self._let_leader_back, *pair)

    def _let_leader_back(self, leader: Process, follower: Process) -> None:
        others = [name for name in self._world.processes if name != follower.replica]
        self._world.network.split([follower.replica], others)
        self._world.network.unblock(others, others)
        self._world.note(f"{leader.replica} is back, {follower.replica} is not")
        self._then(self._plan.options.election_ticks, self._hand_back, leader.replica)

    def _hand_back(self, to: ReplicaId) -> None:
        leader = self._world.leader()
        if leader is not None:
            leader.note(f"asked to transfer to {to}")
            leader.transfer(to, ignore)
        self._then(2, self._world.network.release)
        self._later(self._world.heal_network)

    def _left_behind(self) -> None:
        """A leader whose clock is slow is cut off and goes on believing, while others elect the next and
        write. Whoever knows no better asks the old one, and must not be told what was true before."""
        leader = self._world.leader()
        if leader is None:
            return
        leader.drift = 3.0
        leader.note(f"drift {leader.drift}")
        self._world.network.split([leader.replica], self._world.processes)
        self._world.note(f"isolate {leader.replica}")
        election_ticks = self._plan.options.election_ticks
        for _ in range(4):
            self._then(2 * election_ticks, self._read_at, leader)
        # Long enough for an election and a write elsewhere; no link is said to be closed.
        self._then(4 * election_ticks, self._world.heal_network)

    def _read_at(self, process: Process) -> None:
        if not process.is_up:
            return
        checkers = self._world.checkers
        self._strangers += 1
        client, floor, expected = STRANGERS + self._strangers, checkers.floor, checkers.versions_known

        def answered(answer: Answer) -> None:
            if answer.outcome is Outcome.READ:
                checkers.on_read(client=client, answer=answer, expected=expected, floor=floor)

        process.note("asked to read")
        process.read(answered)

    def _storm(self) -> None:
        self._world.network.weather = self._plan.storm
        self._world.note("storm")
        self._later(self._world.calm_weather)

    # ------------------------------------------------------------------------------------- processes

    def _crash_one(self, process: Process | None, why: str) -> None:
        if process is not None:
            process.crash(why)
            self._later(self._world.restart, process)

    def _crash(self) -> None:
        self._crash_one(self._any_up(), "killed")

    def _crash_leader(self) -> None:
        self._crash_one(self._leader_or_any(), "killed")

    def _crash_at_point(self) -> None:
        process = self._leader_or_any() if self._rng.random() < 0.5 else self._any_up()
        if process is not None:
            point = self._rng.choice(CRASH_POINTS)
            process.points.arm(point, self._rng.choice((0, 0, 1, 3, 10)))
            self._later(self._world.restart, process)

    def _power_loss(self) -> None:
        self._world.note("power loss")
        for process in self._up():
            process.crash("power loss")
            self._later(self._world.restart, process)

    def _pause_one(self, process: Process | None) -> None:
        if process is not None and not process.is_paused:
            process.pause()
            self._later(process.resume)

    def _pause(self) -> None:
        self._pause_one(self._any_up())

    def _pause_leader(self) -> None:
        self._pause_one(self._leader_or_any())

    def _drift(self) -> None:
        process = self._any_up()
        if process is not None:
            process.drift = self._rng.choice((0.5, 0.8, 1.0, 1.25, 2.0))
            process.note(f"drift {process.drift}")

    # ------------------------------------------------------------------------------------------ disk

    def _fsync_error(self) -> None:
        process = self._any_up()
        if process is not None:
            process.log.fails_next_sync = True
            self._later(self._world.restart, process)

    def _full(self) -> None:
        process = self._any_up()
        if process is not None:
            process.log.is_full = True
            process.note("disk full")
            self._later(process.log.heal)

    def _stall_one(self, process: Process | None) -> None:
        if process is not None:
            process.log.is_stalled = True
            process.note("disk stalls")
            self._later(process.log.heal)

    def _stall(self) -> None:
        self._stall_one(self._any_up())

    def _stall_leader(self) -> None:
        self._stall_one(self._leader_or_any())

    def _damage(self) -> None:
        if not self._world.may_lose_data():
            return
        members = [self._world.processes[name] for name in self._world.members()]
        process = self._rng.choice(members)
        if self._rng.random() < 0.5:
            # The one whose loss matters most, and the leader away at the same time.
            followers = [each for each in members if each.role != "leader"]
            process = max(followers or members, key=lambda each: each.disk.durable.last)
            self._isolate_leader()
        process.crash("killed")
        if process.disk.lose_range():
            process.note(f"damage: log cut to {process.disk.durable.last}, had {process.disk.damage}")
        self._later(self._world.restart, process)

    def _wipe(self) -> None:
        """A disk is lost for good. The node comes back as a new replica that asks to join."""
        if self._world.may_lose_data():
            process = self._world.processes[self._rng.choice(self._world.members())]
            process.crash("disk lost")
            process.is_gone = True
            self._world.add_joining(process.replica)

    # ------------------------------------------------------------------------------------ membership

    def _change(self, kind: str) -> None:
        leader = self._leader_or_any()
        if leader is None:
            return
        voters, learners = self._world.config().voters, self._world.config().learners
        if kind == "transfer":
            target = self._rng.choice([None, *voters])
            leader.note(f"asked to transfer to {target}")
            leader.transfer(target, ignore)
            return
        candidates: tuple[ReplicaId, ...] | list[ReplicaId]
        if kind == "remove leader":
            kind, candidates = "remove", [leader.replica]
        elif kind == "add learner":
            candidates = [name for name in self._world.processes if name not in voters + learners]
        elif kind == "promote":
            candidates = learners
        else:
            candidates = voters + (learners if kind == "remove" else ())
        lost = self._world.lost()
        if kind in ("demote", "remove") and lost:
            candidates = [name for name in candidates if name in lost]
        if kind in ("add learner", "promote"):
            candidates = [name for name in candidates if not self._world.processes[name].is_gone]
        if candidates:
            replica = self._rng.choice(candidates)
            leader.note(f"asked to {kind} {replica}")
            leader.change(_CHANGES[kind], replica, ignore)
