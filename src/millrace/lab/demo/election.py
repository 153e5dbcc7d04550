"""`election`: who leads, with equal and with different time-outs, and when leaders are killed for real."""

import asyncio
import random
import time
from collections import deque

from millrace.driver.effects import EffectDriver
from millrace.lab.demo.stage import cluster_of, leader, status
from millrace.lab.demo.story import Story
from millrace.replication.contract import (
    Commit,
    Config,
    ConfigAt,
    Entry,
    HardState,
    InitialState,
    LogView,
    PeerBody,
    PeerMessage,
    Persist,
    ReplicaId,
    RoleChanged,
    Snapshot,
    Tick,
)
from millrace.replication.raft.machine import Raft
from millrace.replication.raft.options import RaftOptions
from millrace.types import Index, Term

_TICKS_MAX = 200
_Letter = tuple[ReplicaId, PeerMessage]
_KILLS = 2


class _EmptyLog(LogView):
    """An election needs no entries."""

    def first_index(self) -> Index:
        return Index(1)

    def last_index(self) -> Index:
        return Index(0)

    def term(self, index: Index) -> Term | None:
        return Term(0) if index == 0 else None

    def entries(self, first: Index, last: Index, bytes_max: int) -> list[Entry]:
        return []

    def snapshot(self) -> Snapshot | None:
        return None

    def snapshot_bytes(self, snapshot: Snapshot, position: int, bytes_max: int) -> bytes:
        return b""


class _SameTimeout(random.Random):
    """A generator that always gives the least: every replica loses patience at the same tick."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start


async def run(story: Story) -> None:
    equal = _play(story, "Equal time-outs, on a virtual clock", [_SameTimeout() for _ in range(3)])
    different = _play(
        story, "Different time-outs, on a virtual clock", [random.Random(seed) for seed in range(3)]
    )
    story.title("Three real nodes, the leader killed again and again")
    led: list[str] = []
    async with cluster_of(story, 3) as cluster:
        for _ in range(_KILLS):
            victim = await leader(cluster.nodes)
            term = (await status(victim))["term"]
            led.append(victim.name)
            story.say(victim.name, f"leads in term {term}; kill -9", "red")
            await victim.kill()
            begun_s = time.monotonic()
            next_leader = await leader(cluster.nodes)
            took_s = time.monotonic() - begun_s
            fresh = (await status(next_leader))["term"]
            story.say(next_leader.name, f"leads in term {fresh}, after {took_s:.2f} s")
            led.append(next_leader.name)
            await victim.start()
            story.say(victim.name, "is back and follows")
            await asyncio.sleep(0)
    story.proved(
        {
            "with equal time-outs one of them won": equal,
            "with different time-outs one of them won": different,
            "after every kill another node led": all(
                a != b for a, b in zip(led[::2], led[1::2], strict=True)
            ),
        }
    )


class _Voter:
    """A replica that only elects, on a disk that takes no time."""

    def __init__(self, name: ReplicaId, machine: Raft, mail: "deque[_Letter]", story: Story) -> None:
        self.tick = 0
        self.machine = machine
        self._name = name
        self._mail = mail
        self._story = story
        self.driver = EffectDriver(
            machine,
            network=self,
            log=self,
            write_kind=Persist,
            runners={RoleChanged: self._on_role_changed, Commit: lambda effect: None},
        )

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        self._mail.append((to, PeerMessage(sender=self._name, body=body)))

    def write(self, write: Persist) -> None:
        self.driver.persisted(write.number)

    def _on_role_changed(self, change: RoleChanged) -> None:
        who = f", leader {change.leader}" if change.leader else ""
        self._story.say(self._name, f"tick {self.tick:3}: {change.role} in term {change.term}{who}")


def _play(story: Story, title: str, randoms: list[random.Random]) -> bool:
    """Replicas that only elect; returns whether exactly one leads and the others know it."""
    story.title(title)
    names = [ReplicaId(f"n{number + 1}") for number in range(len(randoms))]
    config = ConfigAt(index=Index(0), config=Config(voters=tuple(names)))
    state = InitialState(hard_state=HardState(term=Term(0)), config=config)
    mail: deque[_Letter] = deque()
    voters = {}
    for name, rng in zip(names, randoms, strict=True):
        machine = Raft(name, state=state, log=_EmptyLog(), options=RaftOptions(), rng=rng)
        voters[name] = _Voter(name, machine, mail, story)
    for tick in range(1, _TICKS_MAX):
        for voter in voters.values():
            voter.tick = tick
            voter.driver.step(Tick())
        while mail:
            to, message = mail.popleft()
            voters[to].driver.step(message)
        leaders = [voter.machine.status().leader for voter in voters.values()]
        if leaders[0] is not None and len(set(leaders)) == 1:
            return sum(voter.machine.status().role == "leader" for voter in voters.values()) == 1
    return False
