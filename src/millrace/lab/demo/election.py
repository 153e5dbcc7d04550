"""`election`: who leads, with equal and with different time-outs, and when leaders are killed for real."""

import asyncio
import random
import time
from collections import deque

from millrace.lab.demo.stage import cluster_of, leader, status
from millrace.lab.demo.story import Story
from millrace.replication.contract import (
    Config,
    ConfigAt,
    Effect,
    Entry,
    HardState,
    InitialState,
    LogView,
    PeerMessage,
    Persist,
    Persisted,
    ReplicaId,
    RoleChanged,
    Send,
    Snapshot,
    Tick,
)
from millrace.replication.raft.machine import Raft
from millrace.replication.raft.options import RaftOptions
from millrace.types import Index, Term

_TICKS_MAX = 200
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


async def run() -> None:
    story = Story()
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


def _play(story: Story, title: str, randoms: list[random.Random]) -> bool:
    """Replicas that only elect; returns whether exactly one leads and the others know it."""
    story.title(title)
    names = [ReplicaId(f"n{number + 1}") for number in range(len(randoms))]
    config = ConfigAt(index=Index(0), config=Config(voters=tuple(names)))
    state = InitialState(hard_state=HardState(term=Term(0)), config=config)
    machines = {
        name: Raft(name, state=state, log=_EmptyLog(), options=RaftOptions(), rng=rng)
        for name, rng in zip(names, randoms, strict=True)
    }
    mail: deque[tuple[ReplicaId, ReplicaId, Send]] = deque()

    def carry_out(tick: int, name: ReplicaId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    mail.append((name, effect.to, effect))
                case Persist():
                    mail_after = machines[name].step(Persisted(number=effect.number))
                    carry_out(tick, name, mail_after)
                case RoleChanged():
                    who = f", leader {effect.leader}" if effect.leader else ""
                    story.say(name, f"tick {tick:3}: {effect.role} in term {effect.term}{who}")
                case _:
                    pass

    for tick in range(1, _TICKS_MAX):
        for name, machine in machines.items():
            carry_out(tick, name, machine.step(Tick()))
        while mail:
            sender, to, sent = mail.popleft()
            carry_out(tick, to, machines[to].step(PeerMessage(sender=sender, body=sent.body)))
        leaders = [machine.status().leader for machine in machines.values()]
        if leaders[0] is not None and len(set(leaders)) == 1:
            return sum(machine.status().role == "leader" for machine in machines.values()) == 1
    return False
