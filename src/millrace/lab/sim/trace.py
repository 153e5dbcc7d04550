"""What happened, one line a step, for people; and the hash that says two runs were the same.

A line has the virtual time, the replica, its role and term after the step, the event, and the effects in
their order with `‖` where the rest waits for the disk. Lines are made only when somebody wants them (a
replay, a hash): a campaign runs without and replays a failing seed.

Everything shown is made of numbers and names of the world. Nothing depends on `hash()`, on the order of a
set, on an address or on the wall clock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from millrace.replication.contract import (
    Accepted,
    Commit,
    Config,
    Entry,
    HardState,
    InstallSnapshot,
    PeerBody,
    PeerMessage,
    Persist,
    ReadReady,
    Refused,
    Reply,
    RoleChanged,
    Send,
    Snapshot,
    StageSnapshot,
    Transferred,
)

TAIL_LINES = 60


_NAMES: dict[type, tuple[str, ...]] = {}


def _fields(value: Any) -> tuple[str, ...]:
    kind = type(value)
    if kind not in _NAMES:
        _NAMES[kind] = kind.__struct_fields__
    return _NAMES[kind]


def show(value: Any) -> str:
    """A value of the contract or of a protocol, short."""
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return f"{len(value)}B"
    if isinstance(value, Entry):
        return f"{value.index}:{value.term}{'' if value.kind == 0 else value.kind.name[0].lower()}"
    if isinstance(value, Config):
        return "{" + ",".join(value.voters) + ("|" + ",".join(value.learners) if value.learners else "") + "}"
    if isinstance(value, Snapshot):
        return f"snap@{value.index}:{value.term}"
    if isinstance(value, tuple):
        if value and isinstance(value[0], Entry):
            return f"[{show(value[0])}" + (f"..{show(value[-1])}]" if len(value) > 1 else "]")
        return "(" + ",".join(map(show, value)) + ")"
    if isinstance(value, HardState):
        return f"{value.term}/{show(value.vote)}"
    if isinstance(value, Struct):
        inner = " ".join(f"{name}={show(getattr(value, name))}" for name in _fields(value))
        return f"{type(value).__name__}({inner})"
    if hasattr(value, "value"):
        return str(value.value)
    return str(value)


def show_body(body: PeerBody) -> str:
    parts = []
    for name in _fields(body):
        value = getattr(body, name)
        if value is False or value == () or value == b"":
            continue
        parts.append(name if value is True else f"{name.replace('_index', '')}={show(value)}")
    return f"{type(body).__name__}({' '.join(parts)})"


def _show_persist(effect: Persist) -> str:
    parts = [f"Persist#{effect.number}"]
    if effect.hard_state is not None:
        parts.append(f"hard={show(effect.hard_state)}")
    if effect.snapshot is not None:
        parts.append(show(effect.snapshot))
    if effect.truncate_from is not None:
        parts.append(f"cut={effect.truncate_from}")
    if effect.entries:
        parts.append(f"+{show(effect.entries)}")
    return " ".join(parts) + " ‖"


def show_effect(effect: Any) -> str:
    match effect:
        case Send():
            return f"{show_body(effect.body)}>{effect.to}"
        case Persist():
            return _show_persist(effect)
        case Commit():
            return f"Commit({effect.index})"
        case Reply():
            return f"Reply#{effect.request}={_show_outcome(effect)}"
        case RoleChanged():
            serving = " serving" if effect.serving else ""
            return f"{effect.role}@{effect.term}{serving} leader={show(effect.leader)}"
        case StageSnapshot():
            return f"Stage({show(effect.snapshot)} {effect.position}+{len(effect.data)})"
        case InstallSnapshot():
            return f"Install({show(effect.snapshot)})"
        case _:
            return type(effect).__name__


def _show_outcome(effect: Reply) -> str:
    match effect.outcome:
        case Accepted(term=term, first_index=first, last_index=last):
            return f"accepted {first}..{last}:{term}"
        case ReadReady(index=index):
            return f"read {index}"
        case Transferred(target=target):
            return f"transferred to {target}"
        case Refused(reason=reason, leader=leader):
            return f"refused {reason.value}, leader {show(leader)}"


def show_event(event: Any) -> str:
    if isinstance(event, PeerMessage):
        return f"{event.sender}>{show_body(event.body)}"
    return show(event)


class Trace:
    """Collects the hash of all lines and the last of them; `sink`, if given, gets every line."""

    def __init__(self, sink: Callable[[str], None] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._sink = sink
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def step(self, time_us: int, who: str, role: str, term: int, event: Any, effects: Sequence[Any]) -> None:
        shown = "; ".join(map(show_effect, effects))
        self._line(
            f"{time_us / 1e6:10.6f} {who:<4}{role[:1].upper()}{term:<4} {show_event(event):<44} {shown}"
        )

    def note(self, time_us: int, who: str, text: str) -> None:
        """Something the world does: a fault, a client's answer, a phase."""
        self._line(f"{time_us / 1e6:10.6f} {who:<4}      * {text}")

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _line(self, text: str) -> None:
        line = text.rstrip()
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.tail.append(line)
        if self._sink is not None:
            self._sink(line)
