"""What the routed machine owes its driver: the same events give the same effects in every process, looking
changes nothing, nonsense changes nothing, every list of effects and every message is bounded.

It takes other events than the machines with a log and declares no durability, so it has its own run of
events; the duties are those of `test_contract.py`.
"""

import copy
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.errors import RemoteError
from millrace.replication.contract import LinkClosed, LinkOpened, PeerBody, PeerMessage, ReplicaId, Send, Tick
from millrace.replication.routed.machine import (
    Forgotten,
    InterestChanged,
    Noted,
    Published,
    RetainedCarriedOver,
    Routed,
    RoutedEffect,
    RoutedEvent,
    RoutedOptions,
)
from millrace.replication.routed.messages import Change, Filters, Stamps, Summary, Value
from millrace.replication.routed.retained import Deliver, Keep, RetainedOptions

ROOT = Path(__file__).resolve().parents[3]
NAMES = tuple(ReplicaId(name) for name in ("a", "b", "c"))
SMALL = RoutedOptions(
    filters_per_message_max=3,
    digest_ticks=4,
    retained=RetainedOptions(
        tombstones_max=5, entries_per_message_max=1, entries_per_step_max=8, value_bytes_per_step_max=100
    ),
)
EFFECTS_PER_STEP_MAX = 200


class Recorded:
    """A machine with its store, and everything that went in and came out."""

    def __init__(self, name: ReplicaId) -> None:
        self.name = name
        self.kept: dict[str, bytes] = {}
        self.asked: list[tuple[str, bytes | None]] = []
        self.machine = Routed(name, rng=random.Random(name), view=self, options=SMALL)
        self.steps: list[tuple[RoutedEvent, list[RoutedEffect]]] = []

    def value(self, topic: str) -> bytes | None:
        self.asked.append((topic, self.kept.get(topic)))
        return self.kept.get(topic)

    def step(self, event: RoutedEvent) -> list[RoutedEffect]:
        effects = self.machine.step(event)
        self.steps.append((event, list(effects)))
        for effect in effects:
            if isinstance(effect, Keep):
                self.kept.pop(effect.topic, None)
                if effect.value is not None:
                    self.kept[effect.topic] = effect.value
        return effects


class Storm:
    """Three machines, and a network that loses, doubles, delays and reorders whatever it likes."""

    def __init__(self, seed: int, *, is_watched: bool = False) -> None:
        self.rng = random.Random(seed)
        self.nodes = {name: Recorded(name) for name in NAMES}
        self.under_way: list[tuple[ReplicaId, Send]] = []
        self.held: dict[ReplicaId, list[str]] = {name: [] for name in NAMES}
        self.is_watched = is_watched

    def step(self, name: ReplicaId, event: RoutedEvent) -> None:
        node = self.nodes[name]
        if self.is_watched:
            node.machine.status()
            node.machine.wanted_by("t/1/x")
            node.machine.known_of(NAMES[0])
        for effect in node.step(event):
            if isinstance(effect, Send):
                copies = self.rng.choice((0, 1, 1, 1, 1, 2))
                self.under_way += [(name, effect)] * copies

    def run(self, turns: int) -> None:
        for _ in range(turns):
            name, other = self.rng.sample(NAMES, 2)
            match self.rng.randrange(8):
                case 0:
                    filter = self.rng.choice(("t/#", "t/+/x", f"t/{self.rng.randrange(9)}/x", "$share/g/t/#"))
                    self.held[name].append(filter)
                    self.step(name, Noted(changes=((filter, True),)))
                case 1 if self.held[name]:
                    filter = self.held[name].pop(self.rng.randrange(len(self.held[name])))
                    self.step(name, Noted(changes=((filter, False),)))
                case 2:
                    value = None if self.rng.random() < 0.3 else self.rng.randbytes(20)
                    topic = f"t/{self.rng.randrange(20)}"
                    wall_ms = self.rng.randrange(1000)
                    self.step(name, Published(topic=topic, value=value, wall_ms=wall_ms))
                case 3:
                    self.step(name, LinkOpened(peer=other))
                    self.step(other, LinkOpened(peer=name))
                case 4 if self.rng.random() < 0.3:
                    self.step(name, LinkClosed(peer=other))
                case 5:
                    topics = (f"t/{self.rng.randrange(20)}",)
                    self.step(
                        name, self.rng.choice((RetainedCarriedOver(topics=topics), Forgotten(topics=topics)))
                    )
                case _:
                    self.step(name, Tick())
            for _ in range(min(3, len(self.under_way))):
                sender, send = self.under_way.pop(self.rng.randrange(len(self.under_way)))
                self.step(send.to, PeerMessage(sender=sender, body=send.body))

    def calm(self) -> None:
        """All links open, nothing lost, time passes."""
        self.under_way.clear()
        for name in NAMES:
            for other in NAMES:
                if other != name:
                    self.step(name, LinkOpened(peer=other))
        self.rng = _Reliable(0)
        for _ in range(400):
            for name in NAMES:
                self.step(name, Tick())
            while self.under_way:
                sender, send = self.under_way.pop(0)
                self.step(send.to, PeerMessage(sender=sender, body=send.body))

    def trace_hash(self) -> str:
        digest = hashlib.sha256()
        for name, node in self.nodes.items():
            for step in node.steps:
                digest.update(repr((name, step)).encode())
        return digest.hexdigest()


class _Reliable(random.Random):
    """Chooses to lose and double nothing."""

    def choice(self, options: object) -> int:  # type: ignore[override]
        return 1


def storm(seed: int, **options: bool) -> Storm:
    made = Storm(seed, **options)
    made.run(1500)
    return made


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_inputs_give_the_same_effects(seed: int) -> None:
    """Events, numbers of chance and what the view answered are all there is: a replay must be equal."""
    for node in storm(seed).nodes.values():
        answers = iter(node.asked)

        class View:
            def value(self, topic: str, answers: object = answers) -> bytes | None:
                asked, answer = next(answers)  # type: ignore[call-overload]
                assert asked == topic
                return answer  # type: ignore[no-any-return]

        again = Routed(node.name, rng=random.Random(node.name), view=View(), options=SMALL)
        for event, effects in node.steps:
            assert again.step(event) == effects


def test_looking_changes_nothing() -> None:
    assert storm(3, is_watched=True).trace_hash() == storm(3).trace_hash()


def test_a_run_is_its_seed_in_every_process() -> None:
    """No order of a set or of addresses in memory leaks into the effects."""
    code = (
        "from conformance.replication.test_routed_contract import storm\n"
        "made = storm(5)\n"
        "made.calm()\n"
        "print(made.trace_hash())\n"
    )
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert len(hashes) == 1 and len(hashes.pop()) == 64


def test_effect_lists_and_messages_stay_within_their_bounds() -> None:
    made = storm(6)
    made.calm()
    sizes = {"filters": 0, "entries": 0}
    for node in made.nodes.values():
        for _, effects in node.steps:
            assert len(effects) <= EFFECTS_PER_STEP_MAX
            for effect in effects:
                assert isinstance(effect, Send | InterestChanged | Keep | Deliver)
                match effect:
                    case Send(body=Filters(filters=filters)):
                        sizes["filters"] = max(sizes["filters"], len(filters))
                    case Send(body=Change(added=added, withdrawn=withdrawn)):
                        sizes["filters"] = max(sizes["filters"], len(added) + len(withdrawn))
                    case Send(body=Stamps(entries=entries)):
                        sizes["entries"] = max(sizes["entries"], len(entries))
        assert node.machine.status().tombstones <= SMALL.retained.tombstones_max
    assert sizes == {"filters": 3, "entries": 1}, "the bounds were met, and met exactly"


@pytest.mark.parametrize("seed", range(8))
def test_whatever_was_lost_doubled_or_late_all_agree_once_it_is_calm(seed: int) -> None:
    made = storm(seed)
    made.calm()
    for name, node in made.nodes.items():
        for other in NAMES:
            if other != name:
                assert node.machine.known_of(other) == set(made.held[other])
    first, *others = (node.machine.retained.stamps() for node in made.nodes.values())
    assert all(stamps == first for stamps in others)
    assert first, "something is retained"


class Nonsense(PeerBody):
    """A message of no protocol."""


@pytest.mark.parametrize(
    "body",
    [
        Nonsense(),
        Filters(session=1, version=-1, part=0, parts=1, filters=()),
        Filters(session=1, version=1, part=3, parts=2, filters=()),
        Summary(buckets=(1, 2, 3)),
        Stamps(bucket=99_999, after="", upto=None, entries=()),
    ],
    ids=lambda body: type(body).__name__,
)
def test_nonsense_closes_the_link_and_changes_nothing(body: PeerBody) -> None:
    """Told by comparison with a twin that never heard it."""
    made = storm(8)
    made.step(NAMES[0], LinkOpened(peer=NAMES[1]))
    machine = made.nodes[NAMES[0]].machine
    twin = copy.deepcopy(machine)
    with pytest.raises(RemoteError):
        machine.step(PeerMessage(sender=NAMES[1], body=body))
    for event in (Tick(), Noted(changes=(("z", True),)), LinkOpened(peer=NAMES[1]), *[Tick()] * 10):
        assert machine.step(event) == twin.step(event)
    assert machine.status() == twin.status()


def test_a_value_is_taken_also_where_its_link_is_gone() -> None:
    """Stamps decide, not connections: it may be the last word of a node that is no more."""
    node = Recorded(NAMES[0])
    body = Value(topic="t", time=1, node="z", value=b"v")
    assert node.step(PeerMessage(sender=ReplicaId("z"), body=body)) == [Keep(topic="t", value=b"v")]
