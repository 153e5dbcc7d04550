"""Bugs of the primary-backup machine, and of the frame schedule on top of it."""

from millrace.lab.sim.planted.bug import Bugs, Method, Plant
from millrace.replication.appending.core import Core
from millrace.replication.appending.progress import Progress
from millrace.replication.frame.machine import Frame
from millrace.replication.frame.messages import Discard, Dispatch, FrameEffect
from millrace.replication.frame.schedule import Deadlines
from millrace.replication.frame.sides import CopyState, FrameBackup, FramePrimary
from millrace.replication.pair.machine import PrimaryBackup
from millrace.replication.pair.messages import Check, CheckReply
from millrace.replication.pair.primary import Primary
from millrace.replication.pair.watch import PartnerWatch
from millrace.types import Index, Term

PAIR_BUGS = Bugs()


@PAIR_BUGS.bug("the primary acknowledges before the backup has it, though it is in sync")
def ack_before_backup(plant: Plant) -> None:
    def reached_by_all(self: Primary) -> int:
        return self._core.log.durable

    plant.instead(Primary, "_reached_by_all", reached_by_all)


@PAIR_BUGS.bug("the primary goes on alone before the backup is recorded as out of sync")
def alone_before_recorded(plant: Plant) -> None:
    def lose_backup(self: Primary, *, is_silent: bool) -> None:
        self._go_alone()

    plant.instead(Primary, "_lose_backup", lose_backup)


@PAIR_BUGS.bug("the primary goes on alone until it hears that the backup is in sync again")
def alone_while_recording(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def regain_backup(self: Primary) -> None:
            self.is_alone = True
            original(self)

        return regain_backup

    plant.around(Primary, "_regain_backup", make)


@PAIR_BUGS.bug("the backup counts as in sync before it has everything")
def sync_claimed_early(plant: Plant) -> None:
    def has_joined(self: Primary, peer: Progress) -> bool:
        return True

    def answer_to(self: Primary, body: Check) -> CheckReply:
        return CheckReply(term=self.appender.term, number=body.number, is_primary=True, is_in_sync=True)

    plant.instead(Primary, "_has_joined", has_joined)
    plant.instead(Primary, "_answer_to", answer_to)


@PAIR_BUGS.bug("a backup that lacks acknowledged messages takes over")
def promoted_out_of_sync(plant: Plant) -> None:
    def is_in_sync(self: PrimaryBackup) -> bool:
        return True

    plant.instead(PrimaryBackup, "_is_in_sync", is_in_sync)


@PAIR_BUGS.bug("a primary serves on without a lease")
def lease_ignored(plant: Plant) -> None:
    def has_lease(self: Primary) -> bool:
        return True

    plant.instead(Primary, "has_lease", has_lease)


@PAIR_BUGS.bug("a backup takes over at the first miss, while the primary's lease runs")
def promoted_too_early(plant: Plant) -> None:
    def is_overdue(self: PartnerWatch) -> bool:
        return self._misses > 0

    def has_promised(self: PartnerWatch) -> bool:
        return False

    plant.instead(PartnerWatch, "is_overdue", is_overdue)
    # What is recorded too early begins only once the promise is over: that must be gone as well.
    plant.instead(PartnerWatch, "has_promised", has_promised)


@PAIR_BUGS.bug("a primary that restarts goes on in its old epoch")
def epoch_kept_at_restart(plant: Plant) -> None:
    def make_next(original: Method) -> Method:
        def next_epoch(self: PrimaryBackup, above: int = 0) -> Term:
            core = self._core
            newest = Term(max(core.term, self._pair.epoch, above))
            if core.vote == core.replica and newest:
                return newest
            return Term(original(self, above))

        return next_epoch

    def make_enter(original: Method) -> Method:
        def enter_term(self: Core, term: Term) -> None:
            if term != self.term:
                original(self, term)

        return enter_term

    def is_new(self: PrimaryBackup, epoch: Term) -> bool:
        return True

    plant.around(PrimaryBackup, "_next_epoch", make_next)
    plant.around(Core, "enter_term", make_enter)
    plant.instead(PrimaryBackup, "_is_new", is_new)


@PAIR_BUGS.bug("what was stored and not delivered is dropped by the new primary")
def stored_dropped_at_promotion(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def become_primary(self: PrimaryBackup, epoch: Term, *, takes_over: bool = False) -> None:
            core, pair = self._core, self._pair
            is_alone = not pair.is_in_sync if pair.has_quorum else takes_over
            if is_alone and core.log.last_index > core.commit:
                core.log._truncate_from(Index(core.commit + 1))
            original(self, epoch, takes_over=takes_over)

        return become_primary

    plant.around(PrimaryBackup, "become_primary", make)


# ---------------------------------------------------------------------------------- the frame schedule


@PAIR_BUGS.bug("messages are replicated exactly where they need not be")
def frame_skips_wrong_way(plant: Plant) -> None:
    def is_copy_needed(self: FramePrimary, wanted: Deadlines) -> bool:
        return not wanted.is_replicated

    plant.instead(FramePrimary, "_is_copy_needed", is_copy_needed)


@PAIR_BUGS.bug("the backup is told to discard before the message is dispatched")
def frame_discards_first(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def next_job(self: Frame) -> list[FrameEffect]:
            jobs: list[FrameEffect] = original(self)
            runs = self._primary._runs
            numbers = [job.number for job in jobs if isinstance(job, Dispatch)]
            left = [number for number in numbers if runs[number] is CopyState.LEFT]
            return [*(Discard(number=number) for number in left), *jobs]

        return next_job

    plant.around(Frame, "_next_job", make)


@PAIR_BUGS.bug("jobs run in the order of arrival, whatever their deadlines")
def frame_arrival_order(plant: Plant) -> None:
    def due_us(self: FramePrimary, now_us: int, within_ms: float) -> int:
        return now_us

    plant.instead(FramePrimary, "_due_us", due_us)


@PAIR_BUGS.bug("the new primary dispatches what was discarded")
def frame_discard_ignored(plant: Plant) -> None:
    def discarded(self: FrameBackup, epoch: int, number: int) -> None:
        self._is_current(epoch)

    plant.instead(FrameBackup, "discarded", discarded)


@PAIR_BUGS.bug("the new primary dispatches what was stored in the wrong order")
def frame_recovers_backwards(plant: Plant) -> None:
    def order_of_arrival(self: FrameBackup) -> list[int]:
        return sorted(self._copies, reverse=True)

    plant.instead(FrameBackup, "_order_of_arrival", order_of_arrival)


@PAIR_BUGS.bug("a message that finds the queue full is acknowledged and forgotten")
def frame_overload_silent(plant: Plant) -> None:
    def refuse(self: FramePrimary, count: int) -> int | None:
        self._next += count
        return self._next - count

    plant.instead(FramePrimary, "_refuse", refuse)
