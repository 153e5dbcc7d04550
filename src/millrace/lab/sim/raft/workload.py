"""Clients of a simulated group: each has one request open at a time, retries it anywhere, and checks answers.

A write is a batch of operations in one or more payloads. The client repeats exactly the same payloads until
they are acknowledged: a lost reply, a lost leader and a refused request look alike to it. Between client and
replica there is a small delay, and replies get lost at the plan's rate.
"""

import random
from collections.abc import Callable

from millrace.lab.sim.raft.answers import Answer, Outcome
from millrace.lab.sim.raft.checkers import Checkers
from millrace.lab.sim.raft.plan import TICK_US, Plan
from millrace.lab.sim.raft.process import Process
from millrace.lab.sim.raft.state import KEYS, encode_batch
from millrace.lab.sim.surroundings.clock import Clock
from millrace.replication.contract import EntryKind, ReplicaId

TIMEOUT_TICKS = 30


class Client:
    def __init__(
        self,
        *,
        number: int,
        plan: Plan,
        clock: Clock,
        checkers: Checkers,
        rng: random.Random,
        choose: Callable[[], Process | None],
        find: Callable[[ReplicaId], Process | None],
    ) -> None:
        self.number = number
        self.operations = 0
        self.reads = 0
        self.is_running = False
        self._plan = plan
        self._clock = clock
        self._checkers = checkers
        self._rng = rng
        self._choose = choose
        self._find = find
        self._target: ReplicaId | None = None
        self._sequence = 1
        self._attempt = 0
        self._payloads: tuple[bytes, ...] = ()
        self._last_sequence = 0
        self._kind = EntryKind.DATA
        self._is_read = False
        self._floor = 0
        self._expected: list[int] = [0] * KEYS

    @property
    def is_idle(self) -> bool:
        return not self._payloads and not self._is_read

    def start(self) -> None:
        if not self.is_running:
            self.is_running = True
            self._clock.after(int(self._rng.random() * TICK_US), self._next)

    def stop(self) -> None:
        """Begin nothing more; what is open is still driven to its end."""
        self.is_running = False

    # -------------------------------------------------------------------------------------- requests

    def _next(self) -> None:
        if not self.is_running or not self.is_idle:
            return
        self._floor = self._checkers.floor
        if self._rng.random() < self._plan.read_rate:
            self._is_read = True
        else:
            self._make_batch()
        self._try()

    def _make_batch(self) -> None:
        payloads = []
        sequence = self._sequence
        for _ in range(self._rng.randint(1, self._plan.batch_payloads_max)):
            count = self._rng.randint(1, self._plan.batch_operations_max)
            keys = self._rng.choices(range(KEYS), k=count)
            payloads.append(encode_batch(self.number, sequence, keys))
            sequence += count
        self._payloads = tuple(payloads)
        self._last_sequence = sequence - 1
        self._kind = EntryKind.DATA if self._rng.random() < 0.9 else EntryKind.CONTROL

    def _try(self) -> None:
        self._attempt += 1
        if self._is_read:
            # A repeated read is a new one: it must see what was known when this attempt began.
            self._floor = self._checkers.floor
            self._expected = self._checkers.versions_known
        self._clock.after(200 + int(self._rng.random() * 2_000), self._deliver, self._attempt)
        self._clock.after(TIMEOUT_TICKS * TICK_US, self._timed_out, self._attempt)

    def _deliver(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        process = self._find(self._target) if self._target is not None else self._choose()
        self._target = None
        if process is None or not process.is_up:
            self._retry_later()
            return
        self._target = process.replica

        def answered(answer: Answer) -> None:
            self._on_answer(attempt, answer)

        if self._is_read:
            process.read(answered)
        else:
            process.propose(self._payloads, self._kind, answered)

    def _timed_out(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._target = None
            self._retry_later()

    def _retry_later(self) -> None:
        self._attempt += 1
        self._clock.after(int((0.1 + self._rng.random()) * 2 * TICK_US), self._retry, self._attempt)

    def _retry(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._try()

    # --------------------------------------------------------------------------------------- answers

    def _on_answer(self, attempt: int, answer: Answer) -> None:
        """The replica answers at this moment: that is what must be true, whether or not the client hears."""
        if answer.outcome is Outcome.ACKED:
            if attempt != self._attempt:
                return
            self._checkers.on_ack(
                client=self.number,
                sequence=self._last_sequence,
                payloads=self._payloads,
                answer=answer,
                floor=self._floor,
            )
        elif answer.outcome is Outcome.READ:
            if attempt != self._attempt:
                return
            self._checkers.on_read(
                client=self.number, answer=answer, expected=self._expected, floor=self._floor
            )
        if self._plan.lost_reply_rate and self._rng.random() < self._plan.lost_reply_rate:
            return
        self._clock.after(200 + int(self._rng.random() * 2_000), self._hear, attempt, answer)

    def _hear(self, attempt: int, answer: Answer) -> None:
        if attempt != self._attempt:
            return
        if answer.outcome is Outcome.REFUSED:
            self._target = answer.leader
            self._retry_later()
            return
        if answer.outcome is Outcome.LOST:
            self._retry_later()
            return
        if self._is_read:
            self._is_read = False
            count = 1
            self.reads += 1
        else:
            count = self._last_sequence - self._sequence + 1
            self._sequence = self._last_sequence + 1
            self._payloads = ()
        self.operations += count
        self._checkers.operations += count
        self._attempt += 1
        self._clock.after(int(self._rng.random() ** 2 * self._plan.think_us_max), self._next)
