"""Changes of the membership that a leader or a primary is asked for (the rules are in `membership.py`)."""

from millrace.replication.appending.appender import Appender
from millrace.replication.appending.core import Core
from millrace.replication.appending.membership import change
from millrace.replication.contract import Accepted, ChangeKind, ChangeMembership, EntryKind, RefusedReason


class MembershipChanges:
    __slots__ = ("_appender", "_core")

    def __init__(self, core: Core, appender: Appender) -> None:
        self._core = core
        self._appender = appender

    def on_change_membership(self, event: ChangeMembership) -> None:
        core = self._core
        config = change(core.configs.config, event.kind, event.replica)
        reason = self._refusal(event)
        if reason is None and isinstance(config, RefusedReason):
            reason = config
        if reason is not None:
            core.refuse(event.request, reason)
            return
        assert not isinstance(config, RefusedReason)
        entry = core.log.append(core.term, EntryKind.CONFIG, (config.encode(),))[0]
        core.configs.append(entry)
        core.reply(event.request, Accepted(term=core.term, first_index=entry.index, last_index=entry.index))
        self._appender.follow_config()
        self._appender.replicate_all()

    def _refusal(self, event: ChangeMembership) -> RefusedReason | None:
        if self._core.is_disk_behind:
            return RefusedReason.OVERLOADED
        reason = self._unsettled()
        if reason is not None:
            return reason
        if event.kind is ChangeKind.PROMOTE:
            peer = self._appender.peers.get(event.replica)
            if peer is not None and not self._appender.is_caught_up(peer):
                return RefusedReason.NOT_CAUGHT_UP
        return None

    def _unsettled(self) -> RefusedReason | None:
        """The two rules under which changes by one replica are safe."""
        if not self._appender.has_current_term_commit:
            return RefusedReason.NOT_READY
        return RefusedReason.CHANGE_PENDING if self._is_pending else None

    @property
    def _is_pending(self) -> bool:
        return self._core.configs.index > self._core.commit
