"""Bugs of whole nodes: of what stands between clients and the machines."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from millrace.broker.freezing import Frozen
from millrace.broker.groups.cursor import Cursor
from millrace.broker.messages.inbound import Inbound
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.meta.writers import Decision, Writers
from millrace.broker.sessions.recording import Recording
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.session_store import SessionStore
from millrace.broker.sessions.wills import Wills
from millrace.broker.shards.block_facts import BlockFacts
from millrace.broker.shards.producers import Producers
from millrace.broker.shards.shard_state import ShardState
from millrace.broker.shards.staging import AttemptKey, BlockKey, SavedAttempt, Staged, Taken
from millrace.lab.sim.cluster.plan import ClusterPlan
from millrace.lab.sim.cluster.world import ClusterWorld
from millrace.lab.sim.planted.bug import Bugs, Method, Plant
from millrace.lab.sim.trace import Trace
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.replicas.admission import Admission
from millrace.node.replicas.backfill import Backfill
from millrace.node.shards.batch import Batch
from millrace.node.shards.shard import Shard

NODE_BUGS = Bugs()


@NODE_BUGS.bug("a node acknowledges what only its memory has (NATS JetStream's default; Jepsen 2025)")
def node_never_syncs(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def init(self: ClusterWorld, plan: ClusterPlan, trace: Trace | None) -> None:
            original(self, replace(plan, sync="never"), trace)

        return init

    plant.around(ClusterWorld, "__init__", make)


@NODE_BUGS.bug("a publisher is answered when its message arrives, not when it is committed")
def puback_before_commit(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def arrive(self: Inbound, intake: Intake, arrival: Arrival) -> None:
            session = arrival.session
            if arrival.ack and session is not None and session.epoch == arrival.epoch:
                self._outbound.put(session, arrival.ack)
                arrival.ack = b""
            original(self, intake, arrival)

        return arrive

    plant.around(Inbound, "_arrive", make)


@NODE_BUGS.bug("subscribers get a message when it arrives, and again when it is committed")
def fan_out_before_commit(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def arrive(self: Inbound, intake: Intake, arrival: Arrival) -> None:
            run = arrival.run
            if run is not None and not run.retain and not arrival.is_doubtful:
                self.relayed(run.data, run.qos, run.v5, False, 0)
            original(self, intake, arrival)

        return arrive

    plant.around(Inbound, "_arrive", make)


@NODE_BUGS.bug("a QoS 2 message that is sent again after a restart gets a new key")
def qos2_token_not_reused(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def repeat(
            self: Inbound, session: Session, topic: str, run: Any, packet_id: int, key: Any = None
        ) -> None:
            if session.uncertain and packet_id in session.uncertain:
                session.uncertain[packet_id] = session.next_token
                session.next_token += 1
            original(self, session, topic, run, packet_id, key)

        return repeat

    plant.around(Inbound, "repeat", make)


@NODE_BUGS.bug("a session that moves, or is read back, goes on at the end of the logs")
def cursor_not_restored(plant: Plant) -> None:
    def restore_cursor(*arguments: Any) -> None:
        """Nothing is behind."""

    plant.instead(Recording, "restore_cursor", restore_cursor)


@NODE_BUGS.bug("what waits for room to be sent again counts as answered")
def resending_counts_as_answered(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def cursors_moved(self: Recording, session: Session) -> None:
            waiting, session.resending = session.resending, None
            original(self, session)
            session.resending = waiting

        return cursors_moved

    plant.around(Recording, "cursors_moved", make)


@NODE_BUGS.bug("what a session was sent elsewhere counts as answered before it is sent again")
def restored_counts_as_answered(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def cursors_moved(self: Recording, session: Session) -> None:
            waiting, session.restored = session.restored, None
            original(self, session)
            session.restored = waiting

        return cursors_moved

    plant.around(Recording, "cursors_moved", make)


@NODE_BUGS.bug("a will is published by the node that lost the client, and once more")
def will_fired_twice(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def publish(self: Wills, session: Session, plan: Any, now_ms: int) -> None:
            run = plan.due(now_ms)
            original(self, session, plan, now_ms)
            self._inbound.enter(plan.topic, run, now_ms)

        return publish

    plant.around(Wills, "publish", make)


@NODE_BUGS.bug("the leader takes a forwarded block without the one before it")
def forwarded_out_of_order(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def take(self: Admission, batch: list[Any]) -> bool:
            origin = batch[0].block.header.origin
            taken = self._taken.get(origin, self.origins.get(origin, 0))
            if batch[0].sequence > taken:
                self._taken[origin] = batch[0].sequence - 1
            return bool(original(self, batch))

        return take

    plant.around(Admission, "take", make)


@NODE_BUGS.bug("a retained message is kept only where it was published")
def retained_at_one_node(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def facts_of(self: Shard, block: Any, token: Any) -> BlockFacts:
            facts: BlockFacts = original(self, block, token)
            # Nobody else's counts.
            return facts if isinstance(token, Batch) else facts._replace(retained=())

        return facts_of

    plant.around(Shard, "_facts_of", make)


@NODE_BUGS.bug("a shard that begins from a snapshot has forgotten which keys it stored")
def keys_not_in_snapshot(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def load(self: ShardState, state: bytes, rows: Any = ()) -> Any:
            yield from original(self, state, rows)
            self.producers = Producers()

        return load

    plant.around(ShardState, "load", make)


@NODE_BUGS.bug("a snapshot holds parts of the state as they were at different moments")
def snapshot_of_two_moments(plant: Plant) -> None:
    def keep(self: Frozen[Any, Any], key: Any) -> None:
        """Whatever is there when its turn comes."""

    plant.instead(Frozen, "keep", keep)


@NODE_BUGS.bug("a replica that lost the synced end of its log takes what is left for all there was")
def lost_end_unnoticed(plant: Plant) -> None:
    def lost_end(self: ReplicaLog) -> None:
        """Nothing tells."""

    plant.instead(ReplicaLog, "lost_end", lost_end)


@NODE_BUGS.bug("a repeated request of the queue takes further messages")
def answer_not_remembered(plant: Plant) -> None:
    def remember(self: Cursor, request: str, taken: Any) -> None:
        """Forgotten at once."""

    plant.instead(Cursor, "_remember", remember)


@NODE_BUGS.bug("a leader takes a released block again that another leader has released")
def release_taken_twice(plant: Plant) -> None:
    def admits(self: Taken, key: BlockKey) -> bool:
        return True

    plant.instead(Taken, "admits", admits)


@NODE_BUGS.bug("what is staged is let go before anybody has decided about it")
def staged_dropped_undecided(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def is_given_up(self: Writers, owner: AttemptKey) -> bool:
            writer = self.writers.get(owner.writer)
            return bool(original(self, owner)) or (writer is not None and owner.batch > writer.last)

        return is_given_up

    plant.around(Writers, "is_given_up", make)


@NODE_BUGS.bug("a batch is settled in a shard when the first of its attempts is released")
def settled_half_way(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def attempts(self: Decision, shard: int) -> list[tuple[str, int]]:
            return list(original(self, shard))[:1]

        return attempts

    plant.around(Decision, "attempts", make)


@NODE_BUGS.bug("a shard that begins from a snapshot has nothing of what was staged before")
def staged_not_in_snapshot(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def take_in(self: Staged, rows: Iterable[SavedAttempt]) -> None:
            """They are nobody's."""

        return take_in

    plant.around(Staged, "take_in", make)


@NODE_BUGS.bug("the will of a connection that another one displaces is forgotten with its record")
def displaced_will_forgotten(plant: Plant) -> None:
    def displace(*arguments: Any) -> None:
        """Only the node that has the connection knows."""

    plant.instead(SessionStore, "_displace", displace)


@NODE_BUGS.bug("a replica that began from a snapshot never gets the messages before it")
def before_snapshot_lost(plant: Plant) -> None:
    def tick(self: Backfill) -> None:
        """Nobody is asked."""

    plant.instead(Backfill, "tick", tick)
