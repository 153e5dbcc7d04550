"""The broker itself: sessions, subscriptions, publishing. Pure: time comes in, bytes collect in sessions.

Callers own the clock (`now_ms` never goes back) and the sockets. A connection is an opaque handle here; the
only thing done with it is to hand it back when another one displaces it. Output gathers in `session.out`;
`outbound.dirty` lists the sessions that have some.
"""

from collections.abc import Sequence
from typing import Any, assert_never

from millrace.broker.access import AccessRules, Principal
from millrace.broker.entries.sessions import (
    Discarded,
    Ended,
    Opened,
    Operation,
    Qos2Acknowledged,
    Qos2Completed,
    Qos2Released,
    Unsubscribed,
)
from millrace.broker.groups.definitions import DurableGroup, DurableGroups, GroupDefinitions
from millrace.broker.groups.joined import LocalConsumerGroup, granted
from millrace.broker.groups.share_group import ShareGroup, belongs_to_others, is_left, is_others_unless_noted
from millrace.broker.limits_reached import LimitsReached
from millrace.broker.messages.inbound import Inbound, Outcome
from millrace.broker.messages.message import Run, Segment
from millrace.broker.messages.outbound import Outbound, answer
from millrace.broker.messages.retained_replay import RetainedReplay
from millrace.broker.sessions.connect_request import ConnectRequest
from millrace.broker.sessions.journal import (
    BrokerContinuation,
    Journal,
    SendAnswer,
    SendMessages,
    TakeArrival,
)
from millrace.broker.sessions.recording import Recording
from millrace.broker.sessions.session import NO_OUTPUT, Session
from millrace.broker.sessions.session_store import Record, SessionRecords, SessionStore
from millrace.broker.sessions.share import NO_SHARE
from millrace.broker.sessions.shares import Shares
from millrace.broker.sessions.subscribing import QOS_GRANTED, Subscribed, add_plain
from millrace.broker.sessions.timers import Timers
from millrace.broker.sessions.wills import LoggedWill, Wills
from millrace.broker.shards.retained import Retained
from millrace.broker.stats import Stats
from millrace.broker.topics.routing import Route, Router
from millrace.broker.topics.subscription_index import Node, weight_of
from millrace.broker.topics.trees import SHARE_PREFIX, split_share
from millrace.kernels import ack_run
from millrace.limits import SESSION_EXPIRY_S_NEVER, Limits
from millrace.reasons import Reason
from millrace.types import RetainHandling, Subscription

_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70
_REFUSED = 0x80  # and above


class Broker:
    def __init__(self, limits: Limits, rules: AccessRules) -> None:
        self.limits = limits
        self.rules = rules
        self.stats = Stats()
        self.sessions: dict[str, Session] = {}
        self.connected = 0
        self.subscription_count = 0
        self.limits_reached = LimitsReached()
        self.router = Router(limits.routes_cached_max)
        self.shares = Shares(limits)
        self.outbound = Outbound(limits, self.stats, self.shares, self.limits_reached)
        retained_max = limits.retained_messages_max, limits.retained_bytes_max
        self.retained = Retained(*retained_max, self.limits_reached, limits.user_retained_bytes_max)
        self.replay = RetainedReplay(self.retained, self.outbound)
        self.inbound = Inbound(self.router, self.outbound, self.retained, self.stats)
        # Bound once: these are called for every chunk.
        self.publish_runs = self.inbound.publish_runs
        self.publish = self.inbound.publish
        self.journal = Journal()
        # The session store; the node sets the one that it replicates.
        self.records: SessionRecords = SessionStore()
        self.outbound.journal = self.inbound.journal = self.journal
        self.wills = Wills(self.router, self.inbound, self.retained, self.journal)
        # The committed end of every log, for cursors.
        self.log_ends: dict[int, int] = {}
        self.recording = Recording(self.journal, self.log_ends)
        # Durable sessions whose cursors moved since the last checkpoint.
        self.touched: dict[Session, None] = {}
        self.outbound.touched = self.touched
        # Shared groups with a member here, by their key.
        self.groups: dict[str, ShareGroup] = {}
        # Groups made by command: their definitions, which the node sets, those with a member here by name,
        # and whether one of their members may have room or have answered.
        self.durable_groups: GroupDefinitions = DurableGroups()
        self.joined: dict[str, LocalConsumerGroup] = {}
        # The same for groups on leaderless streams, by stream and group; the node feeds them.
        self.leaderless_groups: dict[tuple[int, str], LocalConsumerGroup] = {}
        self.joined_need_feeding = False
        # See `take_interest_changes`.
        self.interest_changes: list[tuple[str, bool]] = []
        # Who owns the sessions that this broker serves, in their records.
        self.node = ""
        # False while the sessions here were made of records that may not be all that was written.
        self.is_settled = True
        # The wall clock, which only records need; the node sets it now and then.
        self.wall_us = 0
        self._timers = Timers()

    @property
    def has_work(self) -> bool:
        """Whether the node should come round: output, arrivals, operations or readers are waiting."""
        return bool(
            self.outbound.dirty
            or self.inbound.is_urgent
            or self.journal.is_due
            or self.outbound.behind
            or self.inbound.relays
            or self.inbound.retained_here
            or self.inbound.outcomes
            or self.interest_changes
            or self.joined_need_feeding
            or self.replay.ready
        )

    def take_interest_changes(self) -> list[tuple[str, bool]]:
        """Subscriptions made (True) and given up since the last call, by filter, for other nodes to know."""
        changes, self.interest_changes = self.interest_changes, []
        return changes

    def take_outcomes(self) -> list[Outcome]:
        """What became of arrivals that somebody waits for, since the last call: those whose `waiter` is the
        node's. Wills are seen to here."""
        outcomes, self.inbound.outcomes = self.inbound.outcomes, []
        theirs: list[Outcome] = []
        for arrival, offset in outcomes:
            if isinstance(arrival.waiter, LoggedWill):
                self.wills.finished(arrival.waiter, offset)
            else:
                theirs.append((arrival, offset))
        return theirs

    # ------------------------------------------------------------------------------------ sessions

    def belongs_to_another(self, client_id: str, username: str | None) -> bool:
        """Whether a session of this client id is that of another user [rule 31]. What an anonymous client
        made belongs to whoever comes first, so that a fleet that gets users keeps its sessions."""
        mine = None, username
        session, record = self.sessions.get(client_id), self.records.find(client_id)
        return (session and session.username) not in mine or (record and record.username) not in mine

    def opening(self, request: ConnectRequest, username: str | None) -> Opened | None:
        """What must be on disk before this client is accepted; None for one that leaves nothing behind and
        resumes nothing that another node served or that is provisional, and where no records are kept."""
        if not self.journal.is_on:
            return None
        client_id = request.client_id
        is_resuming = not request.clean_start and (
            self._left_elsewhere(client_id) is not None or self._is_provisional(client_id)
        )
        if not request.expiry_s and request.will is None and not is_resuming:
            return None
        will = None if request.will is None else request.will.saved()
        return Opened(client_id, request.clean_start, username, request.expiry_s, will, self.node)

    def _is_provisional(self, client_id: str) -> bool:
        """Whether there is a session here that may not know all of its record."""
        session = None if self.is_settled else self.sessions.get(client_id)
        return session is not None and session.is_recorded

    def _left_elsewhere(self, client_id: str) -> Record | None:
        """The record of a session that another node serves, and that outlives its connection."""
        record = self.records.find(client_id)
        return None if record is None or record.owner == self.node or not record.expiry_s else record

    def connect(
        self, request: ConnectRequest, connection: Any, now_ms: int, *, is_opened: bool = True
    ) -> tuple[Session, bool, Any]:
        """Open or resume a session. Returns it, whether it was present, and the connection it displaced.
        `is_opened`: `opening` had something to write, and it is on disk."""
        session = self.sessions.get(request.client_id)
        displaced = None
        if session is not None and session.connection is not None:
            displaced = session.connection
            self.disconnect(session, now_ms, will=True, keep=not request.clean_start)
            session = self.sessions.get(request.client_id)
        if session is not None and (request.clean_start or not session.is_durable):
            self._end(session, now_ms)
            session = None
        if session is None and not request.clean_start and is_opened:
            session = self._take_over(request, now_ms)
        present = session is not None
        if session is None:
            session = self._make(request, is_opened=is_opened)
        other = present and (
            session.v5 != request.v5
            or session.principal is not request.principal
            or session.alias_max != request.alias_max
            or bool(session.packet_bytes_max) != bool(request.packet_bytes_max)
        )
        session.epoch += 1
        session.ends_ms = None
        session.connection = connection
        session.v5 = request.v5
        session.principal = request.principal
        self._belongs(session, request.username)
        self.shares.place(session, request.address)
        session.share.connections += 1
        session.expiry_s = request.expiry_s
        session.window = request.window
        session.packet_bytes_max = request.packet_bytes_max
        session.alias_max = request.alias_max
        session.aliases = None
        session.out_bytes = 0
        session.will = request.will
        session.delayed_will = session.firing_will = None
        was_recorded = session.is_recorded
        session.is_recorded = self.journal.is_on and bool(request.expiry_s or request.will is not None)
        if session.is_recorded:
            self._adopt_record(session)
        elif was_recorded:
            # It ends with this connection, so a restart must not find it.
            if is_opened:
                self._adopt_record(session)
            self.journal.add(Ended(session.client_id, session.record_epoch))
        elif request.clean_start and (left := self._left_elsewhere(request.client_id)) is not None:
            # [MQTT-3.1.2-4]. Not waited for [rule 7], and void if somebody opened it meanwhile.
            self.journal.add(Discarded(session.client_id, left.epoch))
        self.wills.settle(request.client_id, self.records, self.node)
        session.blocked = False
        self.connected += 1
        session.enter_by(self.stats.door(request.door))
        if other:
            self.router.changed(session.subscriptions)
        return session, present, displaced

    def _make(self, request: ConnectRequest, *, is_opened: bool) -> Session:
        record = self.records.find(request.client_id) if is_opened else None
        # The text that the records have is kept; that of CONNECT goes.
        client_id = request.client_id if record is None else record.client_id
        session = self.sessions[client_id] = Session(client_id, request.principal)
        return session

    def _take_over(self, request: ConnectRequest, now_ms: int) -> Session | None:
        """A session that another node served: its record is all there is, and all that is needed."""
        record = self.records.find(request.client_id)
        if record is None or not record.is_resumed:
            return None
        self.restore(record, request.principal, now_ms)
        return self.sessions[request.client_id]

    def publish_will_on_move(self, session: Session, now_ms: int, *, is_ended: bool) -> None:
        """Another node goes on with this client, in the same session or in a new one: a will that this does
        not stop is published, as it would be at one node (MQTT 5, 3.1.3.2.2)."""
        plan = session.will if session.connection is not None else session.delayed_will
        displaced = self.records.displaced_wills(session.client_id)
        is_due = is_ended or any(one.epoch == session.record_epoch for one in displaced)
        if plan is not None and is_due:
            self.wills.publish(session, plan, now_ms)

    def release(self, session: Session, now_ms: int) -> None:
        """Another node serves this client now: forget it here. Its record is the other's to change; what is
        of a group and not in the record goes to members that are here."""
        session.is_recorded = False
        session.epoch += 1
        session.ends_ms = None
        if session.connection is not None:
            session.connection = None
            session.blocked = True
            session.leave_door()
            self.replay.forget(session)
            self.connected -= 1
            session.share.connections -= 1
        session.will = session.delayed_will = None
        self.touched.pop(session, None)
        self._leave_joined(session)
        self._unsubscribe_all(session)
        self._give_back(session, {one for one in session.unfinished() if is_others_unless_noted(one)}, now_ms)
        self._forget(session)

    def _adopt_record(self, session: Session) -> None:
        record = self.records.find(session.client_id)
        assert record is not None, "the record is on disk before the client is accepted"
        session.record_epoch = record.epoch
        session.incarnation = record.incarnation
        session.next_token = max(session.next_token, record.next_token)

    def resume(self, session: Session, now_ms: int) -> None:
        """After CONNACK: send again what is unanswered, then what waited, also in its groups."""
        self.wills.forget_displaced(session, self.records)
        self.joined_need_feeding = bool(self.joined)
        self.outbound.resend(session, now_ms)
        for filter in list(session.subscriptions):
            group = self._group(filter)
            if group is not None:
                self._drain(group, now_ms)

    def disconnect(self, session: Session, now_ms: int, *, will: bool, keep: bool = True) -> None:
        """The connection is gone. `will`: not by a goodbye. `keep` False ends the session at once."""
        assert session.connection is not None
        session.connection = None
        session.blocked = True
        session.epoch += 1
        session.leave_door()
        self.replay.forget(session)
        self.connected -= 1
        session.share.connections -= 1
        plan, session.will = session.will, None
        keep = keep and session.is_durable
        self._return_to_groups(session, now_ms)
        if will and plan is not None:
            delay_s = min(plan.delay_s, session.expiry_s) if keep else 0
            if delay_s:
                session.delayed_will = plan
                self._timers.publish_in(session, plan, delay_s * 1000, now_ms, len(self.sessions))
            else:
                self.wills.publish(session, plan, now_ms)
        if keep:
            # A will that a goodbye took back must not be found by whoever looks after the session next, and
            # cursors that moved are written at disconnect [rule 8].
            self._record_away(session, can_wait=plan is None and session not in self.touched)
        if not keep:
            self._end(session, now_ms)
        elif session.expiry_s != SESSION_EXPIRY_S_NEVER:
            self._timers.end_in(session, session.expiry_s * 1000, now_ms, len(self.sessions))

    def tick(self, now_ms: int) -> int | None:
        """Do what is due; returns when to call again at the latest, if ever."""
        for session, plan in self._timers.due(now_ms):
            if plan is None:
                self._end(session, now_ms)
            else:
                session.delayed_will = None
                self.wills.publish(session, plan, now_ms)
                self._record_away(session)
        self.wills.retry(now_ms, self.records, self.node)
        return self._timers.next_ms()

    def _end(self, session: Session, now_ms: int) -> None:
        # A will still delayed goes out at the latest when the session ends ([MQTT-3.1.3-9]).
        plan, session.delayed_will = session.delayed_will, None
        if plan is not None:
            self.wills.publish(session, plan, now_ms)
        session.epoch += 1
        session.ends_ms = None
        if session.is_recorded:
            session.is_recorded = False
            will = None if session.firing_will is None else session.firing_will.saved()
            self.journal.add(Ended(session.client_id, session.record_epoch, will))
        self.touched.pop(session, None)
        self._unsubscribe_all(session)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        session.forget_traffic()
        if self.sessions.pop(session.client_id, None) is session:
            self.shares.leave(session.username, session.share)
            self.shares.place(session, "")
            session.share = NO_SHARE

    def _belongs(self, session: Session, username: str | None) -> None:
        if session.share is NO_SHARE or session.username != username:
            if session.share is not NO_SHARE:
                self.shares.leave(session.username, session.share)
            session.belong(username, self.shares.join(username))

    def end(self, session: Session, now_ms: int) -> None:
        """End a session whose client is away, by command."""
        assert session.connection is None
        self._end(session, now_ms)

    # -------------------------------------------------------------------------------- subscriptions

    def subscribe(self, session: Session, subscription: Subscription) -> tuple[Reason, bool]:
        """Add or replace one subscription; the granted QoS or why not, and whether it is new."""
        return self.subscribe_all(session, (subscription,))[0][1:]

    def subscribe_all(self, session: Session, subscriptions: Sequence[Subscription]) -> Subscribed:
        """As `subscribe`, for all of a packet: there may be a thousand."""
        results: Subscribed = []
        if session.principal.unrestricted:
            common = self.router.index, self.limits, self.shares.room(session)
            results, weight = add_plain(session, subscriptions, *common)
            self.subscription_count += len(results)
            session.weigh(weight)
            self.interest_changes += [(one.filter, True) for one, _, _ in results]
            if session.is_recorded and results:
                self.recording.subscribed(session, [one for one, _, _ in results])
        for asked in subscriptions[len(results) :]:
            filter = asked.filter
            is_new = filter not in session.subscriptions
            weight = weight_of(filter) if is_new else 0
            refused = self._refused(session, filter, weight)
            if refused is not None:
                results.append((asked, refused, False))
                continue
            one = asked
            if filter.startswith(SHARE_PREFIX) and self._joinable(filter) is not None:
                one = granted(asked)
            self._attach(session, one, weight)
            if session.is_recorded:
                self.recording.subscribed(session, (one,))
            results.append((one, QOS_GRANTED[one.qos], is_new))
        self.router.changed([one.filter for one, _, _ in results])
        return results

    def _refused(self, session: Session, filter: str, weight: int) -> Reason | None:
        """Why a subscription cannot be had; it weighs nothing where it takes the place of another one."""
        limits = self.limits
        inner = split_share(filter)[1] if filter.startswith(SHARE_PREFIX) else filter
        size_bytes = len(inner) if inner.isascii() else len(inner.encode())
        if size_bytes > limits.topic_bytes_max or inner.count("/") >= limits.topic_levels_max:
            return Reason.TOPIC_FILTER_INVALID
        if not session.principal.unrestricted and not self._may_subscribe(session.principal, filter):
            self.stats.denied += 1
            return Reason.NOT_AUTHORIZED
        bound = self.shares.filled(session, weight) if weight else None
        if bound is None:
            return None
        self.limits_reached.count(bound)
        return Reason.QUOTA_EXCEEDED

    def _attach(self, session: Session, subscription: Subscription, weight: int) -> None:
        """A new one has a weight. The caller tells the router."""
        filter = subscription.filter
        if weight:
            self.subscription_count += 1
            session.weigh(weight)
        if filter.startswith(SHARE_PREFIX):
            session.subscriptions[filter] = subscription.options
            self._attach_shared(session, subscription)
            return
        holder = session.holder(subscription)
        session.subscriptions[filter] = holder.options
        if self.router.index.add(filter, holder) and filter[0] != "$":
            self.interest_changes.append((filter, True))

    def _attach_shared(self, session: Session, subscription: Subscription) -> None:
        filter = subscription.filter
        name, inner = split_share(filter)
        if self._joinable(filter) is not None:
            self.joined.setdefault(name, LocalConsumerGroup(name)).join(session, subscription)
            self.joined_need_feeding = True
            return
        node = self.router.index.node(inner)
        if node.groups is None:
            node.groups = {}
        group = node.groups.get(name)
        if group is None:
            group = node.groups[name] = ShareGroup(name, inner)
            self.groups[group.key] = group
        if session not in group.members and not inner.startswith("$"):
            self.interest_changes.append((filter, True))
        group.members[session] = subscription

    def unsubscribe(self, session: Session, filter: str) -> Reason:
        if session.subscriptions.pop(filter, None) is None:
            return Reason.NO_SUBSCRIPTION_EXISTED
        self.subscription_count -= 1
        session.weigh(-weight_of(filter))
        self._detach(session, filter)
        self.router.changed((filter,))
        if session.is_recorded:
            self.journal.add(Unsubscribed(session.client_id, filter))
            if not session.subscriptions and session.cursors:
                # As in its record: the next subscription begins where the logs end then.
                session.cursors = frozenset()
        return Reason.SUCCESS

    def _unsubscribe_all(self, session: Session) -> None:
        """The session goes, and its record is seen to."""
        assert not session.is_recorded
        session.forget_holder()
        if not session.subscriptions:
            return
        filters, session.subscriptions = session.subscriptions, {}
        self.subscription_count -= len(filters)
        session.weigh(-session.filter_bytes)
        plain = [filter for filter in filters if not filter.startswith(SHARE_PREFIX)]
        self.router.index.remove(plain, session)
        self.interest_changes += [(filter, False) for filter in plain if filter[0] != "$"]
        for filter in [filter for filter in filters if filter.startswith(SHARE_PREFIX)]:
            self._detach_shared(session, filter)
        self.router.changed(filters)

    def _detach(self, session: Session, filter: str) -> None:
        """The caller tells the router."""
        if filter.startswith(SHARE_PREFIX):
            self._detach_shared(session, filter)
            return
        self.router.index.remove((filter,), session)
        if filter[0] != "$":
            self.interest_changes.append((filter, False))

    def _detach_shared(self, session: Session, filter: str) -> None:
        name, inner = split_share(filter)
        joined = self.joined.get(name)
        if joined is not None and joined.drop(session, filter):
            self.joined_need_feeding = True
            return
        node = self.router.index.node(inner)
        assert node.groups is not None
        group = node.groups[name]
        del group.members[session]
        if not group.members:
            del node.groups[name]
            del self.groups[group.key]
        if not inner.startswith("$"):
            self.interest_changes.append((filter, False))
        self.router.index.prune(inner)

    def subscribed(self, session: Session, results: Subscribed, now_ms: int) -> None:
        """After SUBACK: retained messages, or what the groups collected."""
        for subscription, reason, is_new in results:
            if reason >= _REFUSED:
                continue
            filter = subscription.filter
            if filter.startswith(SHARE_PREFIX):
                group = self._group(filter)
                if group is not None:
                    self._drain(group, now_ms)
            elif self.retained.may_match(filter):
                handling = subscription.retain_handling
                if handling is RetainHandling.SEND or (handling is RetainHandling.SEND_IF_NEW and is_new):
                    self.replay.add(session, subscription, now_ms)

    def reload(self, rules: AccessRules) -> None:
        """New access rules: every route and every principal is asked again. The caller gives connected
        sessions their new principals with `reassign`; those whose clients are away get them here."""
        self.rules = rules
        self.router.forget_all()
        for session in list(self.sessions.values()):
            if session.connection is None:
                self._leave_revoked(session, rules.principal(session.username, session.client_id))

    def reassign(self, session: Session, principal: Principal, now_ms: int) -> None:
        """After a reload. Plain subscriptions stay and are checked per topic; a shared one that is no
        longer allowed is left, because a group chooses members without asking about the topic. What waits for
        this client in a group that it leaves is for the others; what it was sent, it may still answer."""
        if not self._leave_revoked(session, principal):
            return
        for group in (*self.joined.values(), *self.leaderless_groups.values()):
            if session not in group.members:
                group.give_back_waiting(session)
        self.joined_need_feeding = bool(self.joined)
        for segment in session.give_back({one for one in session.queue or () if is_left(session, one)}):
            assert isinstance(segment.group, ShareGroup)
            self._place(segment.group, segment, now_ms)

    def _leave_revoked(self, session: Session, principal: Principal) -> bool:
        """Returns whether there were groups to leave."""
        session.principal = principal
        groups = [filter for filter in session.subscriptions if split_share(filter)[0]]
        revoked = [filter for filter in groups if not self._may_subscribe(principal, filter)]
        for filter in revoked:
            self.unsubscribe(session, filter)
        return bool(revoked)

    # -------------------------------------------------------------------------------------- groups

    def _group(self, filter: str) -> ShareGroup | None:
        name, inner = split_share(filter)
        if not name:
            return None
        node = self.router.index.find(inner)
        return node.groups.get(name) if isinstance(node, Node) and node.groups else None

    def _joinable(self, filter: str) -> DurableGroup | None:
        """The group made by command that this filter joins."""
        name, inner = split_share(filter)
        group = self.durable_groups.by_name.get(name) if name else None
        return group if group is not None and inner in group.spec.filters else None

    def _may_subscribe(self, principal: Principal, filter: str) -> bool:
        """A member of a group made by command gets what any of the group's filters takes."""
        group = self._joinable(filter)
        filters = (split_share(filter)[1],) if group is None else group.spec.filters
        return all(principal.may_subscribe(one) for one in filters)

    def regroup(self) -> None:
        """Groups were made, changed or deleted by command: members go where their filter leads now."""
        shared = [(s, m) for group in self.groups.values() for s, m in group.members.items()]
        joined = [join for group in self.joined.values() for join in group.joins()]
        for session, subscription in shared:
            if self._joinable(subscription.filter) is not None:
                self._move(session, subscription)
        for session, subscription in joined:
            if self._joinable(subscription.filter) is None:
                self._move(session, subscription)
        for session, subscription in joined:
            if not self._may_subscribe(session.principal, subscription.filter):
                self.unsubscribe(session, subscription.filter)

    def _move(self, session: Session, subscription: Subscription) -> None:
        self._detach(session, subscription.filter)
        self._attach(session, subscription, 0)
        self.router.changed((subscription.filter,))

    def _leave_joined(self, session: Session) -> None:
        if not self.joined and not self.leaderless_groups:
            return
        for group in (*self.joined.values(), *self.leaderless_groups.values()):
            group.leave(session)
        self.joined_need_feeding = bool(self.joined)

    def _drain(self, group: ShareGroup, now_ms: int) -> None:
        for segment in group.drain():
            self._place(group, segment, now_ms)

    def _place(self, group: ShareGroup, segment: Segment, now_ms: int) -> None:
        """Give messages that already belonged to the group to a member that is there."""
        chosen = group.choose(Run(b"", 1, 0, False))
        if chosen:
            self.outbound.assign(group, chosen[0][0], segment, now_ms)
        elif group.collects:
            group.collect(segment)
        elif not self.outbound.is_put_off(segment):
            self.stats.dropped_queue += segment.count

    def _return_to_groups(self, session: Session, now_ms: int) -> None:
        """A member left: what it did not acknowledge at QoS 1, or was never sent, goes to the others.

        QoS 2 that was sent stays with it ([MQTT-4.8.2-4], [MQTT-4.8.2-5])."""
        self._leave_joined(session)
        if session.inflight or session.resending or session.queue:
            self._give_back(session, {one for one in session.unfinished() if belongs_to_others(one)}, now_ms)

    def _give_back(self, session: Session, leaving: set[Segment], now_ms: int) -> None:
        for segment in session.give_back(leaving):
            group = segment.group
            assert isinstance(group, ShareGroup)
            segment.first_id = segment.serial = 0
            self._place(group, segment, now_ms)

    # ---------------------------------------------------------------------------------- publishing

    def resolve(self, session: Session, topic: str) -> Route:
        """The route of a topic for this publisher, remembered in its table."""
        return self.router.resolve(session.principal, self.router.table(session.principal), topic)

    # ------------------------------------------------------------------------- answers from clients

    def on_acks(self, session: Session, first: int, packet_id: int, count: int, now_ms: int) -> None:
        """A run of plain acknowledgements with consecutive ids. Raises ProtocolError where they belong to
        another QoS than the messages."""
        if session.is_recorded:
            self.touched[session] = None
        if self.joined:
            self.joined_need_feeding = True
        if first == _PUBACK:
            inflight = session.inflight
            if inflight:
                front = inflight[0]
                if (
                    front.first_id == packet_id
                    and front.count == count
                    and front.qos == 1
                    and not session.is_recorded
                ):
                    inflight.popleft()
                    session.inflight_count -= count
                    session.inflight_bytes -= front.size_bytes
                elif session.acknowledge(packet_id, count, 1) < count:
                    session.check_answered(packet_id, count)
        elif first == _PUBREC:
            self.on_pubrec(session, packet_id, count)
            return
        elif first == _PUBREL:
            self.on_pubrel(session, packet_id, count)
            return
        else:
            if session.complete(packet_id, count) < count:
                session.check_answered(packet_id, count)
            if session.is_recorded:
                self.journal.add(Qos2Completed(session.client_id, packet_id, count))
        if session.queue or session.lag or session.resending:
            self.outbound.pump(session, now_ms)

    def on_pubrec(self, session: Session, packet_id: int, count: int) -> None:
        known = session.acknowledge(packet_id, count, 2)
        if known < count:
            session.check_answered(packet_id, count)
        if known == count or not session.v5:
            release = ack_run(_PUBREL, packet_id, count)
            self._answer_recorded(session, Qos2Acknowledged(session.client_id, packet_id, count), release)
            return
        for one in range(packet_id, packet_id + count):
            found = session.is_released(one)
            self.outbound.put(session, answer(_PUBREL, one, None if found else Reason.PACKET_ID_NOT_FOUND))

    def on_pubrel(self, session: Session, packet_id: int, count: int) -> None:
        received = session.received or set()
        ids = range(packet_id, packet_id + count)
        if session.uncertain:
            for one in ids:
                session.uncertain.pop(one, None)
        # Also for an id that is not known, where 0x92 would be allowed: some clients end on that.
        complete = ack_run(_PUBCOMP, packet_id, count)
        self._answer_recorded(session, Qos2Released(session.client_id, packet_id, count), complete)
        received.difference_update(ids)
        (session.logged_ids or set()).difference_update(ids)

    def _answer_recorded(self, session: Session, operation: Operation, answer: bytes) -> None:
        """An answer that must not leave before the operation is on disk [rule 8]."""
        if not session.is_recorded:
            self.outbound.put(session, answer)
            return
        self.journal.add(operation, SendAnswer(session, session.epoch, answer))

    def resume_written(self, continuation: BrokerContinuation) -> None:
        """The operations that this waited for are on disk. Called in the order of the journal."""
        match continuation:
            case SendAnswer():
                if continuation.session.epoch == continuation.epoch:
                    self.outbound.put(continuation.session, continuation.data)
            case SendMessages():
                self.outbound.resume_messages(continuation)
            case TakeArrival():
                self.inbound.resume_arrival(continuation)
            case _:
                assert_never(continuation)

    def on_refused(self, session: Session, packet_id: int, qos: int, now_ms: int) -> None:
        """The client answered with an error: that message is finished ([MQTT-4.4.0-2] covers its id)."""
        if not session.acknowledge(packet_id, 1, qos):
            session.check_answered(packet_id, 1)
        elif qos == 2:
            session.complete(packet_id, 1)
        if session.is_recorded:
            self.journal.add(Qos2Completed(session.client_id, packet_id, 1))
            self.touched[session] = None
        self.joined_need_feeding = bool(self.joined)
        self.outbound.pump(session, now_ms)

    def unblock(self, session: Session, now_ms: int) -> None:
        """The client reads again."""
        session.blocked = False
        self.joined_need_feeding = bool(self.joined)
        self.replay.unblock(session)
        self.outbound.pump(session, now_ms)

    # -------------------------------------------------------------------------------------- records

    def _record_away(self, session: Session, *, can_wait: bool = False) -> None:
        if session.is_recorded:
            self.recording.went_away(session, self.wall_us, can_wait=can_wait)
            self.touched.pop(session, None)

    def checkpoint(self) -> None:
        """Write the cursors that moved. Called about ten times a second."""
        touched, self.touched = self.touched, {}
        self.outbound.touched = self.touched
        for session in touched:
            if session.is_recorded:
                self.recording.cursors_moved(session)
        self.journal.hurry()

    def restore(self, record: Record, principal: Principal, now_ms: int) -> None:
        """A session from its record, after a restart: away, and behind in every log by its cursor."""
        session = self.sessions[record.client_id] = Session(record.client_id, principal)
        session.out = NO_OUTPUT
        session.expiry_s = record.expiry_s
        session.is_recorded = True
        session.record_epoch = record.epoch
        self._belongs(session, record.username)
        session.add_cursors(record.cursors)
        session.next_token = record.next_token
        session.incarnation = record.incarnation
        session.received = set(record.received) or None
        session.logged_ids = set(record.received) or None
        session.uncertain = dict(record.received) or None
        session.restored = self.recording.unanswered(record) or None
        for packet_id in record.released:
            session.add_released(packet_id)
        for subscription in record.subscriptions.values():
            self._attach(session, subscription.restored(), weight_of(subscription.filter))
        self.router.changed(record.subscriptions)
        for shard, end in self.log_ends.items():
            if not record.subscriptions and shard not in record.cursors:
                # It wants nothing of this log.
                continue
            session.add_cursors((shard,))
            self.recording.restore_cursor(session, record, shard, end)
        self._timers.resume(session, record, self.wall_us, now_ms, len(self.sessions))

    def log_opened(self, shard: int) -> None:
        """A log that this node did not know yet. Sessions may have been there before: a node that was away
        learns late which logs there are."""
        end = self.log_ends.setdefault(shard, 0)
        for session in self.sessions.values():
            if session.is_recorded and session.subscriptions and session.cursors is not None:
                session.add_cursors((shard,))
            record = self.records.find(session.client_id) if session.is_recorded else None
            if record is not None and (shard in record.cursors or shard in record.handled):
                self.recording.restore_cursor(session, record, shard, end)
