"""A frame schedule under load and a crash of the primary, from a seed.

Publishers send on their periods and keep their last messages, a primary works its jobs off one after the
other, a backup keeps copies; links take up to their bounds. In most runs the primary dies. After the failover
time the backup dispatches what it has and the publishers send their last messages again. Then:

- no topic has lost more messages in a row than it tolerates;
- in a run that is not overloaded every message that the first primary dispatched was in time;
- one broker delivers a message once, and the messages of a topic in their order;
- what was discarded is not dispatched again; a copy never outlives the dispatch of its message for long;
- what was acknowledged by a primary that lives is dispatched, what did not fit was refused.
"""

import json
import random
from dataclasses import dataclass

from millrace.errors import LocalError
from millrace.lab.sim.surroundings.clock import US_PER_S, Clock
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import Counts, RunResult, judge
from millrace.lab.sim.violation import Violation
from millrace.replication.frame.machine import Frame
from millrace.replication.frame.messages import (
    Arrived,
    Copied,
    Discard,
    Discarded,
    Dispatch,
    Dispatched,
    FrameEffect,
    Promoted,
    Queued,
    Ready,
    Recover,
    Replicate,
    Replicated,
)
from millrace.replication.frame.schedule import Deadlines, LinkBounds, Schedule, TopicTerms, deadlines

BOUNDS = LinkBounds(failover_ms=50, publisher_ms=1, subscriber_ms=1, backup_ms=1)
_EPOCH = 1
_COPIES_MAX = 10_000


@dataclass(slots=True)
class _Topic:
    number: int
    terms: TopicTerms
    wanted: Deadlines
    sent: int = 0
    acked: int = 0
    refused: int = 0


class FrameWorld:
    def __init__(self, seed: int, trace: Trace | None) -> None:
        rng = self._rng = random.Random(f"frame {seed}")
        self.trace = trace
        self.clock = Clock(calls_max=400_000)
        self.is_overloaded = rng.random() < 0.2
        load = rng.choice((1.6, 3.0)) if self.is_overloaded else rng.choice((0.2, 0.6, 0.75))
        self.topics = self._draw_topics(rng.choice((6, 12, 30)))
        # Topics that publish at the same moments make a queue; others hardly ever do.
        self._phases = rng.choice((0.0, 0.0, 0.05, 1.0))
        jobs = sum((1 + t.wanted.is_replicated) * 1000 / t.terms.period_ms for t in self.topics)
        self._job_us = int(load * US_PER_S / jobs)
        self._end_us = 4 * US_PER_S
        self._crash_us = rng.randrange(US_PER_S, 2 * US_PER_S) if rng.random() < 0.8 else 0
        # Or, after that time, in the middle of a dispatch for which the copy was needed.
        self._crashes_in_job = rng.random() < 0.5
        jobs_max = rng.choice((20, 200)) if self.is_overloaded else 10_000
        self._primary: Frame | None = self._frame(jobs_max)
        self._backup = self._frame(jobs_max)
        self._is_promoted = False
        self._is_busy = False
        self._payloads: dict[int, bytes] = {}
        self._dispatched_us: dict[tuple[int, int], int] = {}
        self._discard_heard: set[tuple[int, int]] = set()
        self._delivered: dict[str, dict[int, list[int]]] = {"primary": {}, "backup": {}}
        self.deliveries = 0

    @staticmethod
    def _frame(jobs_max: int) -> Frame:
        return Frame(schedule=Schedule.FRAME, jobs_max=jobs_max, copies_max=_COPIES_MAX)

    def _draw_topics(self, count: int) -> list[_Topic]:
        rng = self._rng
        topics: list[_Topic] = []
        while len(topics) < count:
            period_ms = rng.choice((50, 100, 200, 400))
            terms = TopicTerms(
                period_ms=period_ms,
                deadline_ms=period_ms * rng.choice((1, 2, 3)),
                loss_tolerance=rng.choice((0, 0, 1, 3, None)),
                retention=rng.choice((0, 1, 2)),
            )
            try:
                topics.append(_Topic(len(topics), terms, deadlines(terms, BOUNDS)))
            except LocalError:
                continue  # cannot be met, and is not admitted
        return topics

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.note(self.clock.now_us, "----", text)

    def _delay_us(self, bound_ms: float) -> int:
        return 50 + int(self._rng.random() * (bound_ms * 1000 - 100))

    # -------------------------------------------------------------------------------------- publishers

    def _publish(self, topic: _Topic) -> None:
        if self.clock.now_us >= self._end_us:
            return
        topic.sent += 1
        self._send(topic, topic.sent)
        self.clock.after(topic.terms.period_ms * 1000, self._publish, topic)

    def _send(self, topic: _Topic, sequence: int) -> None:
        created_us = self.clock.now_us
        self.clock.after(self._delay_us(BOUNDS.publisher_ms), self._arrive, topic, sequence, created_us)

    def _arrive(self, topic: _Topic, sequence: int, created_us: int) -> None:
        if self._is_promoted:
            self._deliver("backup", topic.number, sequence)
            return
        primary = self._primary
        if primary is None:
            return
        (answer,) = primary.step(Arrived(wanted=topic.wanted, now_us=self.clock.now_us))
        if not isinstance(answer, Queued):
            topic.refused += 1
            return
        topic.acked += 1
        self._payloads[answer.number] = json.dumps([topic.number, sequence, created_us]).encode()
        self._work()

    def _resend(self) -> None:
        """The publishers reach the new primary, and it has dispatched what it had stored."""
        self._is_promoted = True
        newest: dict[int, int] = {}
        (recover,) = self._backup.step(Promoted())
        assert isinstance(recover, Recover)
        for message in recover.runs:
            topic, sequence, _ = json.loads(message)
            if sequence < newest.get(topic, 0):
                raise Violation("order", f"topic {topic}: {sequence} is recovered after {newest[topic]}")
            newest[topic] = sequence
            if (topic, sequence) in self._discard_heard:
                raise Violation("discarded", f"topic {topic}: {sequence} is dispatched again")
            dispatched_us = self._dispatched_us.get((topic, sequence))
            late_us = int(1000 * BOUNDS.backup_ms) + self._job_us
            if dispatched_us is not None and dispatched_us < self._crash_us - late_us:
                raise Violation("stale copy", f"topic {topic}: {sequence} was dispatched long before")
            self._deliver("backup", topic, sequence)
        for one in self.topics:
            for sequence in range(max(1, one.sent - one.terms.retention + 1), one.sent + 1):
                self._send(one, sequence)

    # ---------------------------------------------------------------------------------------- primary

    def _work(self) -> None:
        if self._is_busy or self._primary is None:
            return
        for effect in self._primary.step(Ready()):
            if isinstance(effect, Replicate | Dispatch):
                self._begin(effect)
            else:
                self._discard(effect)

    def _begin(self, job: Replicate | Dispatch) -> None:
        self._is_busy = True
        self.clock.after(self._job_us, self._worked, job)
        if self._crashes_in_job and 0 < self._crash_us < self.clock.now_us and self._depends_on_copy(job):
            self._crashes_in_job = False
            self._crash_us = self.clock.now_us + self._job_us // 2
            self.clock.after(self._job_us // 2, self._crash)

    def _depends_on_copy(self, job: Replicate | Dispatch) -> bool:
        """Its dispatch begins so late that without a copy it would be lost with the primary."""
        wanted = self.topics[json.loads(self._payloads[job.number])[0]].wanted
        if not isinstance(job, Dispatch) or not wanted.is_replicated or wanted.replicate_ms is None:
            return False
        arrived_us = job.due_us - int(1000 * wanted.dispatch_ms)
        return bool(self.clock.now_us >= arrived_us + 1000 * wanted.replicate_ms)

    def _worked(self, job: Replicate | Dispatch) -> None:
        primary = self._primary
        if primary is None:
            return
        message = self._payloads[job.number]
        topic, sequence, created_us = json.loads(message)
        if isinstance(job, Replicate):
            copied = Copied(epoch=_EPOCH, number=job.number, messages=message)
            self.clock.after(self._delay_us(BOUNDS.backup_ms), self._copied, copied)
            primary.step(Replicated(number=job.number))
        else:
            self._dispatched_us[topic, sequence] = self.clock.now_us
            self._deliver("primary", topic, sequence)
            late_us = self.clock.now_us + int(BOUNDS.subscriber_ms * 1000) - created_us
            deadline_us = self.topics[topic].terms.deadline_ms * 1000
            if late_us > deadline_us and not self.is_overloaded:
                raise Violation("deadline", f"topic {topic}: {sequence} takes {late_us} us")
            for effect in primary.step(Dispatched(number=job.number)):
                self._discard(effect)
        self._is_busy = False
        self._work()

    def _copied(self, copied: Copied) -> None:
        self._backup.step(copied)

    def _discard(self, effect: FrameEffect) -> None:
        assert isinstance(effect, Discard)
        self.clock.after(self._delay_us(BOUNDS.backup_ms), self._discarded, effect.number)

    def _discarded(self, number: int) -> None:
        topic, sequence, _ = json.loads(self._payloads[number])
        if not self._is_promoted:
            self._discard_heard.add((topic, sequence))
            self._backup.step(Discarded(epoch=_EPOCH, number=number))

    def _crash(self) -> None:
        self.note("the primary dies")
        self._primary = None
        self.clock.after(int(BOUNDS.failover_ms * 1000) - 1_000, self._resend)

    # ---------------------------------------------------------------------------------------- promises

    def _deliver(self, source: str, topic: int, sequence: int) -> None:
        self.deliveries += 1
        seen = self._delivered[source].setdefault(topic, [])
        if sequence in seen:
            if source == "primary":
                raise Violation("once", f"topic {topic}: {sequence} is delivered twice")
            return  # sent again by its publisher, and known by its key
        if seen and sequence < seen[-1] and source == "primary":
            raise Violation("order", f"topic {topic}: {sequence} after {seen[-1]}")
        seen.append(sequence)

    def play(self) -> None:
        for topic in self.topics:
            start_us = int(self._rng.random() * self._phases * topic.terms.period_ms * 1000)
            self.clock.after(start_us, self._publish, topic)
        if self._crash_us and not self._crashes_in_job:
            self.clock.after(self._crash_us, self._crash)
        self.clock.run(self._end_us)
        for topic in self.topics:
            self._check_losses(topic)
        if self._primary is not None:
            self._check_acknowledged()

    def _check_losses(self, topic: _Topic) -> None:
        recovered = self._delivered["backup"].get(topic.number, [])
        if self.is_overloaded or topic.terms.loss_tolerance is None:
            return
        seen = set(self._delivered["primary"].get(topic.number, ())) | set(recovered)
        missing = longest = 0
        # The last ones are still on their way.
        settled = topic.sent - 2 - topic.terms.deadline_ms // topic.terms.period_ms
        for sequence in range(1, settled + 1):
            missing = 0 if sequence in seen else missing + 1
            longest = max(longest, missing)
        if longest > topic.terms.loss_tolerance:
            raise Violation("loss", f"topic {topic.number} lost {longest} in a row")

    def _check_acknowledged(self) -> None:
        assert self._primary is not None
        acked = sum(topic.acked for topic in self.topics)
        if acked - len(self._dispatched_us) != self._primary.queued:
            raise Violation("acknowledged lost", f"{acked} taken, {len(self._dispatched_us)} dispatched")
        if self._primary.overloaded != sum(topic.refused for topic in self.topics):
            raise Violation("overload", "messages were refused and not counted")

    def counts(self) -> Counts:
        return Counts(
            operations=self.deliveries,
            entries=sum(topic.sent for topic in self.topics),
            faults=1,
            messages=self.clock.calls_scheduled,
            leaders=2,
        )


def run_frame_seed(seed: int, trace: Trace | None = None) -> RunResult:
    return judge(seed, FrameWorld(seed, trace))
