"""`election`: who leads, with equal and with different time-outs, when votes are split, and when leaders are
killed for real. On the virtual clock every question, answer and heartbeat is told."""

import asyncio
import random
import time
from collections.abc import Callable
from heapq import heappop, heappush

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
from millrace.replication.raft.messages import Heartbeat, HeartbeatReply, VoteReply, VoteRequest
from millrace.replication.raft.options import RaftOptions
from millrace.types import Index, Term

_TICKS_MAX = 400
_TICKS_AFTER = 3
"""So long heartbeats are told once there is a leader."""
_KILLS = 2
_EQUAL_DRAWS = 3


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
    """Gives the least at its first draws, so that all who have such a one lose patience at the same tick."""

    def __init__(self, seed: int, draws: int = 1_000_000) -> None:
        super().__init__(seed)
        self._left = draws

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self._left -= 1
        return start if self._left >= 0 else super().randrange(start, stop, step)


class _Patient(random.Random):
    """A generator that always gives the most."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert stop is not None
        return stop - 1


def _side_by_side(_sender: ReplicaId, _to: ReplicaId) -> int:
    return 1


def _two_camps(sender: ReplicaId, to: ReplicaId) -> int:
    """n3 is nearest to n1 and n4 to n2; n1 and n2, which both want to lead, hear each other last."""
    if {sender, to} == {"n1", "n2"}:
        return 5
    return 1 if int(sender[1:]) % 2 == int(to[1:]) % 2 else 2


def play_equal(story: Story) -> int:
    """The term in which one of three leads that lose patience together."""
    return _play(story, "Equal time-outs, on a virtual clock", [_SameTimeout(seed) for seed in range(3)])


def play_different(story: Story) -> int:
    return _play(story, "Different time-outs, on a virtual clock", [random.Random(seed) for seed in range(3)])


def play_split(story: Story) -> int:
    """The same of four, where two get half of the votes each until chance makes one of them faster."""
    return _play(
        story,
        "Four replicas, two of them equally impatient: split votes and rising terms, until chance decides",
        [*(_SameTimeout(seed, draws=_EQUAL_DRAWS) for seed in range(2)), _Patient(), _Patient()],
        distance=_two_camps,
    )


async def run(story: Story) -> None:
    equal, different, split = play_equal(story), play_different(story), play_split(story)
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
            "with equal time-outs one of them won": equal > 0,
            "with different time-outs one of them won": different > 0,
            "votes were split, and a later term decided": split > 1,
            "after every kill another node led": all(
                a != b for a, b in zip(led[::2], led[1::2], strict=True)
            ),
        }
    )


class _Mail:
    """Messages on their way: those to a replica that is near come first, all of them within a tick."""

    def __init__(self, distance: Callable[[ReplicaId, ReplicaId], int]) -> None:
        self._distance = distance
        self._waiting: list[tuple[int, int, ReplicaId, PeerMessage]] = []
        self._sent = 0
        self._time = 0

    def send(self, to: ReplicaId, message: PeerMessage) -> None:
        self._sent += 1
        arrives = self._time + self._distance(message.sender, to)
        heappush(self._waiting, (arrives, self._sent, to, message))

    def take(self) -> tuple[ReplicaId, PeerMessage] | None:
        if not self._waiting:
            return None
        self._time, _, to, message = heappop(self._waiting)
        return to, message


class _Voter:
    """A replica that only elects, on a disk that takes no time."""

    def __init__(self, name: ReplicaId, machine: Raft, mail: _Mail, story: Story) -> None:
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
        said = _words(body)
        if said:
            self._say(f"to {to}: {said}", "dim")
        self._mail.send(to, PeerMessage(sender=self._name, body=body))

    def write(self, write: Persist) -> None:
        self.driver.persisted(write.number)

    def _on_role_changed(self, change: RoleChanged) -> None:
        who = f", leader {change.leader}" if change.leader else ""
        self._say(f"{change.role} in term {change.term}{who}")

    def _say(self, what: str, style: str = "") -> None:
        self._story.say(self._name, f"tick {self.tick:3}: {what}", style)


def _words(body: PeerBody) -> str:
    """What replicas that only elect say to each other; nothing for messages about a log."""
    match body:
        case VoteRequest(is_pre=True):
            return f"would you vote for me in term {body.term}?"
        case VoteRequest():
            return f"vote for me in term {body.term}"
        case VoteReply(is_pre=True):
            return f"{'yes, I would' if body.is_granted else 'no, I would not'} (term {body.term})"
        case VoteReply():
            return f"{'you have my vote' if body.is_granted else 'no, my vote is given'} (term {body.term})"
        case Heartbeat():
            return f"heartbeat of term {body.term}"
        case HeartbeatReply():
            return f"answer to the heartbeat of term {body.term}"
    return ""


def _play(
    story: Story,
    title: str,
    randoms: list[random.Random],
    distance: Callable[[ReplicaId, ReplicaId], int] = _side_by_side,
) -> int:
    """Replicas that only elect. Returns the term in which exactly one leads and the others know it, or 0."""
    story.title(title)
    names = [ReplicaId(f"n{number + 1}") for number in range(len(randoms))]
    config = ConfigAt(index=Index(0), config=Config(voters=tuple(names)))
    state = InitialState(hard_state=HardState(term=Term(0)), config=config)
    mail = _Mail(distance)
    voters = {}
    for name, rng in zip(names, randoms, strict=True):
        machine = Raft(name, state=state, log=_EmptyLog(), options=RaftOptions(), rng=rng)
        voters[name] = _Voter(name, machine, mail, story)
    decided = 0
    for tick in range(1, _TICKS_MAX):
        for voter in voters.values():
            voter.tick = tick
            voter.driver.step(Tick())
        while (letter := mail.take()) is not None:
            to, message = letter
            voters[to].driver.step(message)
        leaders = [voter.machine.status().leader for voter in voters.values()]
        if leaders[0] is not None and len(set(leaders)) == 1:
            decided = decided or tick
        if decided and tick >= decided + _TICKS_AFTER:
            leading = [voter.machine.status() for voter in voters.values()]
            winners = [one for one in leading if one.role == "leader"]
            return int(winners[0].term) if len(winners) == 1 else 0
    return 0
