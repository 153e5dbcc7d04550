"""Bugs that can be planted in whole nodes by name, one at a time, to see whether the checks find them.

A node has no switch for them: while a run lasts, a method is replaced by one that does it wrong. What is
replaced is named here and must exist, so that a change of the node that leaves a bug without its place shows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from millrace.broker.groups.cursor import Cursor
from millrace.broker.machine import Broker
from millrace.broker.messages.inbound import Inbound
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.sessions.session import Session
from millrace.node.replicas.admission import Admission
from millrace.node.shards.shard import Shard

NEVER_SYNCS = "node_never_syncs"

NODE_MUTATIONS: dict[str, str] = {
    NEVER_SYNCS: "a node acknowledges what only its memory has (NATS JetStream's default; Jepsen 2025)",
    "puback_before_commit": "a publisher is answered when its message arrives, not when it is committed",
    "fan_out_before_commit": "subscribers get a message when it arrives, and again when it is committed",
    "qos2_token_not_reused": "a QoS 2 message that is sent again after a restart gets a new key",
    "cursor_not_restored": "a session that moves, or is read back, goes on at the end of the logs",
    "will_fired_twice": "a will is published by the node that lost the client, and once more",
    "forwarded_out_of_order": "the leader takes a forwarded block without the one before it",
    "retained_at_one_node": "a retained message is kept only where it was published",
    "answer_not_remembered": "a repeated request of the queue takes further messages",
}

_Method = Callable[..., Any]


def _answered_at_once(original: _Method) -> _Method:
    def arrive(self: Inbound, intake: Intake, arrival: Arrival) -> None:
        session = arrival.session
        if arrival.ack and session is not None and session.epoch == arrival.epoch:
            self._outbound.put(session, arrival.ack)
            arrival.ack = b""
        original(self, intake, arrival)

    return arrive


def _delivered_at_once(original: _Method) -> _Method:
    def arrive(self: Inbound, intake: Intake, arrival: Arrival) -> None:
        run = arrival.run
        if run is not None and not run.retain and not arrival.is_doubtful:
            self.relayed(run.data, run.qos, run.v5, False, 0)
        original(self, intake, arrival)

    return arrive


def _without_uncertain(original: _Method) -> _Method:
    def repeat(self: Inbound, session: Session, topic: str, run: Any, packet_id: int, *rest: Any) -> None:
        if session.uncertain and packet_id in session.uncertain:
            session.uncertain[packet_id] = session.next_token
            session.next_token += 1
        original(self, session, topic, run, packet_id, *rest)

    return repeat


def _at_the_end(original: _Method) -> _Method:
    def restore_cursor(*arguments: Any) -> None:
        """Nothing is behind."""

    return staticmethod(restore_cursor)


def _twice(original: _Method) -> _Method:
    def fire(self: Broker, *arguments: Any) -> None:
        topic, run, now_ms = arguments[1].topic, arguments[1].due(arguments[2]), arguments[2]
        original(self, *arguments)
        self.inbound.enter(topic, run, now_ms)

    return fire


def _in_any_order(original: _Method) -> _Method:
    def take(self: Admission, batch: list[Any]) -> Any:
        origin = batch[0].block.header.origin
        taken = self._taken.get(origin, self.origins.get(origin, 0))
        if batch[0].sequence > taken:
            self._taken[origin] = batch[0].sequence - 1
        return original(self, batch)

    return take


def _here_only(original: _Method) -> _Method:
    def learn(self: Shard, block: Any) -> None:
        """Nobody else's counts."""

    return learn


def _no_answer(original: _Method) -> _Method:
    def remember(self: Cursor, request: str, taken: Any) -> None:
        """Forgotten at once."""

    return remember


_PATCHES: dict[str, tuple[type, str, Callable[[_Method], _Method]]] = {
    "puback_before_commit": (Inbound, "_arrive", _answered_at_once),
    "fan_out_before_commit": (Inbound, "_arrive", _delivered_at_once),
    "qos2_token_not_reused": (Inbound, "repeat", _without_uncertain),
    "cursor_not_restored": (Broker, "_restore_cursor", _at_the_end),
    "will_fired_twice": (Broker, "_fire", _twice),
    "forwarded_out_of_order": (Admission, "take", _in_any_order),
    "retained_at_one_node": (Shard, "_learn_retained", _here_only),
    "answer_not_remembered": (Cursor, "_remember", _no_answer),
}


@contextmanager
def planted(names: frozenset[str]) -> Iterator[None]:
    """The bugs of these names are in every node made meanwhile."""
    replaced: list[tuple[type, str, _Method]] = []
    try:
        for name in sorted(names - {NEVER_SYNCS}):
            owner, attribute, make = _PATCHES[name]
            original: _Method = vars(owner)[attribute]
            replaced.append((owner, attribute, original))
            setattr(owner, attribute, make(original))
        yield
    finally:
        for owner, attribute, original in reversed(replaced):
            setattr(owner, attribute, original)
