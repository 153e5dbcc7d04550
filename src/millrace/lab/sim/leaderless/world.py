"""A simulated leaderless stream: hosts, network, publishers, members of groups, faults, and the run's story.

First the groups are made; then faults and load, with members that move and a group that is made in the middle
of it; then everything heals and all must converge, divide the work one way and deliver everything. After
that the calm part: members come and go while messages are published, without a fault, and nothing may be
given twice. Some seeds end with a power loss of all nodes. Time and chance come from the seed alone.
"""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from millrace.lab.sim.leaderless.checks import LeaderlessChecks
from millrace.lab.sim.leaderless.host import Host
from millrace.lab.sim.leaderless.members import Consumer, Publisher
from millrace.lab.sim.leaderless.plan import LeaderlessPlan, make_leaderless_plan
from millrace.lab.sim.raft.plan import TICK_US
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.network import Network, Weather
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import Counts, RunResult, judge
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import LinkClosed, LinkOpened, PeerMessage, ReplicaId
from millrace.replication.leaderless.machine import Leaderless
from millrace.replication.leaderless.messages import Origin

CALLS_MAX = 600_000
_SETTLE_TICKS_MAX = 2_000
_CALM_TICKS = 150
_OPENING_TICKS = 30
_LATE_GROUPS = 3


class LeaderlessWorld:
    def __init__(self, plan: LeaderlessPlan, trace: Trace | None) -> None:
        self.plan = plan
        self.trace = trace
        self.clock = Clock(calls_max=CALLS_MAX)
        self.groups: list[str] = []
        self.host_list: list[Host] = []
        self.checks = LeaderlessChecks(plan, self.host_list, self.groups)
        self.network = Network(
            clock=self.clock, rng=self._chance("network"), weather=Weather(), deliver=self._deliver
        )
        self.members = tuple(ReplicaId(f"n{number}") for number in range(plan.hosts))
        for number, name in enumerate(self.members):
            self.host_list.append(
                Host(
                    name,
                    plan=plan,
                    clock=self.clock,
                    network=self.network,
                    watch=self.checks,
                    trace=trace,
                    rng=self._chance(f"host {name}"),
                    drift=plan.drifts[number],
                    make_machine=self._make_machine,
                    on_crash=self.on_crash,
                )
            )
        self.hosts = {host.name: host for host in self.host_list}
        self.consumers: list[Consumer] = []
        self.publishers = [
            Publisher(
                number,
                plan=plan,
                clock=self.clock,
                checks=self.checks,
                hosts=self.host_list,
                rng=self._chance(f"publisher {number}"),
            )
            for number in range(plan.publishers)
        ]
        self._rng = self._chance("world")
        self._is_faulty = self._is_moving = False
        self._late_groups: list[str] = []
        self.faults = 0

    def _chance(self, actor: str) -> random.Random:
        return random.Random(f"{self.plan.seed} leaderless {actor}")

    def _make_machine(self, host: Host) -> Leaderless:
        return Leaderless(
            host.name,
            origin=Origin(host.name, host.disk.incarnation),
            boot=host.boot,
            members=self.members,
            logs=host.disk,
            state=host.disk.state,
            rng=random.Random(f"{self.plan.seed} machine {host.name} {host.boot}"),
            level=self.plan.level,
            options=self.plan.options,
        )

    def make_consumer(self, name: str, group: str, rng: random.Random, *, from_start: bool) -> Consumer:
        return Consumer(name, group, clock=self.clock, checks=self.checks, rng=rng, from_start=from_start)

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.note(self.clock.now_us, "----", text)

    # ----------------------------------------------------------------------------------------- links

    def _deliver(self, sender: str, to: str, body: Any) -> None:
        self.hosts[ReplicaId(to)].handle(PeerMessage(sender=ReplicaId(sender), body=body))

    def restart(self, host: Host) -> None:
        if host.is_up:
            return
        self.note(f"{host.name} starts")
        host.start()
        for peer in self.host_list:
            if peer is not host and peer.is_up and self.network.is_open(host.name, peer.name):
                peer.handle(LinkOpened(peer=host.name))
                host.handle(LinkOpened(peer=peer.name))

    def on_crash(self, host: Host) -> None:
        if not self.plan.has_disks:
            self._forget_starts(host)
        else:
            self.checks.crashed(host)
        for peer in self.host_list:
            if peer.is_up and self._rng.random() < 0.7 and self.network.is_open(host.name, peer.name):
                self.clock.after(1_000, peer.handle, LinkClosed(peer=host.name))
        if self._is_faulty or self._is_moving:
            self.clock.after(int(self._rng.random() * 60 * TICK_US), self.restart, host)

    # ---------------------------------------------------------------------------------------- faults

    def _strike(self) -> None:
        if not self._is_faulty:
            return
        self.clock.after(
            1 + int(self._rng.expovariate(1 / self.plan.fault_gap_ticks) * TICK_US), self._strike
        )
        kind = self._rng.choice(self.plan.faults)
        self.faults += 1
        self.note(f"fault: {kind}")
        names = list(self.members)
        self._rng.shuffle(names)
        cut = self._rng.randint(1, max(1, len(names) - 1))
        host = self._rng.choice(self.host_list)
        match kind:
            case "crash":
                if host.is_up and (self.plan.has_disks or self._may_lose(host)):
                    host.crash("fault")
            case "lose disk":
                if host.is_up and self._may_lose(host):
                    self.lose_disk(host)
            case "pause":
                if host.is_up and not host.is_paused:
                    host.pause()
                    self._later(host.resume)
            case "split":
                self.network.split(names[:cut], names[cut:])
                self._later(self._heal_network)
            case "one way":
                self.network.block(names[:cut], names[cut:])
                self._later(self._heal_network)
            case "bridge":
                self.network.split(names[: cut - 1], names[cut:])
                self._later(self._heal_network)
            case _:
                self.network.weather = self.plan.storm
                self._later(self._calm)

    def lose_disk(self, host: Host) -> None:
        host.crash("the disk is lost")
        host.disk.lose()
        self.checks.lost_disk(host)
        self._forget_starts(host)

    def _may_lose(self, host: Host) -> bool:
        """Others must have everything that was promised, the groups too."""
        knows_groups = any(
            other is not host
            and other.machine is not None
            and all(map(other.machine.state.find, self.groups))
            for other in self.host_list
        )
        return knows_groups and self.checks.may_lose(host)

    def _forget_starts(self, host: Host) -> None:
        """Where a group begins is as safe as the disks that have it: it goes with the last of them. Who has
        made the group again meanwhile, not knowing of it, may have begun it later."""
        others = [other for other in self.host_list if other is not host]
        for group in self._late_groups:
            found = (other.find_group(group) for other in others)
            if not any(one and self.checks.has_start(group, one) for one in found):
                self.checks.forget_start(group)

    def _later(self, call: Callable[[], None]) -> None:
        self.clock.after(int((1 + self._rng.random() * self.plan.fault_ticks_max) * TICK_US), call)

    def _calm(self) -> None:
        if self._is_faulty:
            self.network.weather = self.plan.weather

    def _heal_network(self) -> None:
        self.network.heal()
        self.note("network healed")
        for one, other in pairwise(self.host_list):
            if self._rng.random() < 0.5:
                one.handle(LinkOpened(peer=other.name))
                other.handle(LinkOpened(peer=one.name))

    def heal(self) -> None:
        self.note("heal")
        self._is_faulty = self._is_moving = False
        self.network.weather = Weather()
        self.network.heal()
        for host in self.host_list:
            host.drift = 1.0
            host.resume()
            self.restart(host)
        for consumer in self.consumers:
            if consumer.host is None:
                consumer.connect(self._rng.choice(self.host_list))

    # --------------------------------------------------------------------------------------- members

    def _add(self, group: str, count: int, *, from_start: bool = True) -> None:
        self.groups.append(group)
        for number in range(count):
            name = f"{group}.{number}"
            self.consumers.append(self.make_consumer(name, group, self._chance(name), from_start=from_start))

    def _move(self) -> None:
        """Members come, go and change nodes."""
        if not self._is_moving:
            return
        self.clock.after(1 + int(self._rng.random() * self.plan.move_ticks_max * TICK_US), self._move)
        up = [host for host in self.host_list if host.is_up and not host.is_paused]
        # Several at once: their nodes begin sessions at the same time.
        for consumer in self._rng.sample(
            self.consumers, min(len(self.consumers), self._rng.choice((1, 1, 3)))
        ):
            if consumer.host is None:
                if up:
                    consumer.connect(self._rng.choice(up))
            elif not consumer.host.is_paused:
                self.note(f"{consumer.name} leaves {consumer.host.name}")
                consumer.leave()

    def _churn(self, client: int) -> None:
        """A client that joins and leaves a group at one node after the other."""
        if not self._is_moving:
            return
        self.clock.after(1 + int(self._rng.random() * 20 * TICK_US), self._churn, client)
        up = [host for host in self.host_list if host.is_up and not host.is_paused]
        if not up:
            return
        host = self._rng.choice(up)
        consumer = self.make_consumer(f"churn.{client}", "churn", self._rng, from_start=True)
        checks, is_in = self.checks, self._rng.random() < 0.5
        asked = checks.asks("churn", consumer.name)
        ask = host.subscribe if is_in else host.unsubscribe
        ask(consumer, lambda answer: checks.told("churn", consumer.name, asked, is_in, answer))

    def _add_late_group(self, group: str) -> None:
        up = [host for host in self.host_list if host.is_up and not host.is_paused]
        if self._is_faulty and up:
            self.add_late_group(group, self._rng.choice(up))

    def add_late_group(self, group: str, host: Host) -> None:
        self._add(group, 1, from_start=False)
        self._late_groups.append(group)
        self.consumers[-1].connect(host)

    # ----------------------------------------------------------------------------------------- story

    def run_ticks(self, ticks: int, done: Callable[[], bool] | None = None) -> bool:
        return self.clock.run(self.clock.now_us + ticks * TICK_US, done)

    def require(self, what: str, done: Callable[[], bool]) -> None:
        # Asked once per tick: the answers take a look at every host.
        for _ in range(_SETTLE_TICKS_MAX):
            if done():
                return
            self.run_ticks(1)
        raise Violation("liveness", f"not within {_SETTLE_TICKS_MAX} ticks: {what}")

    def require_settled(self, when: str) -> None:
        checks = self.checks
        self.require(f"one division {when}", checks.is_divided)
        checks.remember_marks()
        self.require(f"everything delivered {when}", checks.is_drained)
        self.require(f"equal logs and states {when}", checks.is_converged)
        # What a node wrote when it woke may have become durable behind the look at what is delivered.
        self.require(f"both at once {when}", lambda: checks.is_drained() and checks.is_converged())

    def play(self) -> None:
        plan = self.plan
        for host in self.host_list:
            self.restart(host)
        self._add("a", plan.members_per_group)
        self._add("b", plan.members_per_group)
        # Members and messages come before the nodes know each other.
        self.checks.is_strict = True
        for consumer in self.consumers:
            consumer.connect(self._rng.choice(self.host_list))
        for publisher in self.publishers:
            publisher.start()
        self.run_ticks(_OPENING_TICKS)
        for publisher in self.publishers:
            publisher.stop()
        self.require_settled("at the start")
        self.checks.is_strict = False
        self.checks.forget_marks()
        self._is_faulty, self._is_moving = bool(plan.faults), True
        self.network.weather = plan.weather
        for publisher in self.publishers:
            publisher.start()
        self._move()
        for client in range(2):
            self._churn(client)
        if self._is_faulty:
            self._strike()
            for number in range(_LATE_GROUPS):
                at_us = self._rng.randrange(plan.ticks) * TICK_US
                self.clock.after(at_us, self._add_late_group, f"late{number}")
        self.run_ticks(plan.ticks)
        self.heal()
        for publisher in self.publishers:
            publisher.stop()
        self.require_settled("after healing")
        self.calm_part()
        if plan.ends_with_power_loss:
            self.power_loss()
        self.checks.at_the_end()

    def calm_part(self) -> None:
        self.note("calm")
        self.checks.is_strict = self._is_moving = True
        self.network.weather = Weather(latency_us_max=self.plan.calm_latency_us_max)
        for publisher in self.publishers:
            publisher.start()
        self._move()
        self._hesitate()
        self.run_ticks(_CALM_TICKS)
        for publisher in self.publishers:
            publisher.stop()
        self.heal()
        self.require_settled("in the calm part")

    def _hesitate(self) -> None:
        """A node stands still for a while, a link breaks and is made again: slow is not cut off. Or it stands
        still for long; then it must know when it wakes up."""
        if not self._is_moving:
            return
        options = self.plan.options
        self.clock.after(1 + int(self._rng.random() * 2 * options.silent_ticks * TICK_US), self._hesitate)
        one, other = self._rng.choice(self.host_list), self._rng.choice(self.host_list)
        if one is other and not one.is_paused:
            self.note(f"{one.name} stands still")
            one.pause()
            silent_us = options.silent_ticks * TICK_US
            pause_us = int(self._rng.random() * silent_us / 2)
            if self._rng.random() < 0.5:
                pause_us += silent_us
                one.hesitant_until_us = self.clock.now_us + pause_us + 2 * silent_us
            self.clock.after(pause_us, one.resume)
        elif self.network.is_open(one.name, other.name):
            self.note(f"the link of {one.name} and {other.name} breaks")
            self.network.split([one.name], [other.name])
            self._tell_link(one, other, LinkClosed)
            ticks = self._rng.random() * (options.closed_ticks - 2)
            self.clock.after(int(ticks * TICK_US), self._link_again, one, other)

    def _link_again(self, one: Host, other: Host) -> None:
        self.network.unblock([one.name], [other.name])
        self.network.unblock([other.name], [one.name])
        self._tell_link(one, other, LinkOpened)

    @staticmethod
    def _tell_link(one: Host, other: Host, event: type[LinkClosed] | type[LinkOpened]) -> None:
        one.handle(event(peer=other.name))
        other.handle(event(peer=one.name))

    def power_loss(self) -> None:
        self.note("power loss of all nodes")
        for consumer in self.consumers:
            consumer.leave()
        for host in self.host_list:
            host.crash("power loss")
        for host in self.host_list:
            self.restart(host)
        self.require("equal logs and states after a power loss", self.checks.is_converged)
        self.heal()
        self.require_settled("after a power loss")

    def counts(self) -> Counts:
        return Counts(
            operations=self.checks.operations,
            reads=self.checks.given_count,
            entries=sum(position.entry for host in self.host_list[:1] for position in _ends(host)),
            faults=self.faults,
            messages=self.network.sent,
        )


def run_leaderless_seed(seed: int, trace: Trace | None = None) -> RunResult:
    return judge(seed, LeaderlessWorld(make_leaderless_plan(seed), trace))


def _ends(host: Host) -> list[Any]:
    return [end for _, end in host.disk.extents().values()]
