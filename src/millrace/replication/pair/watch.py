"""What a replica that is not primary knows of its partner by asking: is it well, and for how long is it safe?

It asks on an interval. A question that is not answered in time is missed, over a closed link at once; an
answer of a primary is a promise not to take over for `promise_ticks` (see `lease.py`).
"""

from millrace.replication.appending.core import Core
from millrace.replication.pair.messages import Check
from millrace.replication.pair.options import PairOptions
from millrace.types import Term


class PartnerWatch:
    __slots__ = (
        "_answered",
        "_asked_number",
        "_asked_tick",
        "_confirmed",
        "_core",
        "_heard_tick",
        "_judged",
        "_leader_tick",
        "_misses",
        "_options",
        "_promised_tick",
        "is_cut_off",
    )

    def __init__(self, core: Core, options: PairOptions) -> None:
        self._core = core
        self._options = options
        self._asked_number = 0
        self._asked_tick: int | None = None
        self._answered = 0
        # The epoch whose primary has had an answer to its first answer.
        self._confirmed = Term(0)
        self._judged = 0
        self._misses = 0
        self._heard_tick = 0
        # When the last answer of a primary came, which the next question makes a promise of.
        self._promised_tick: int | None = None
        # When the primary that is known was heard last, by whomever.
        self._leader_tick = 0
        self.is_cut_off = False

    # ------------------------------------------------------------------------------------ questions

    def ask(self) -> Check:
        self._asked_number += 1
        self._asked_tick = self._core.tick
        return Check(term=self._core.term, number=self._asked_number, answered=self._answered)

    def ask_soon(self) -> None:
        """With the next tick, not an interval later."""
        self._asked_tick = None

    def tick(self) -> bool:
        """Judges the last question; returns whether the next is due. Call `asked_now` after asking it."""
        asked, tick = self._asked_tick, self._core.tick
        if asked is not None and tick - asked >= self._options.timeout_ticks:
            self._judge()
        return asked is None or tick - asked >= self._options.check_ticks

    def asked_now(self) -> None:
        """A question over a closed link is missed at once."""
        if self.is_cut_off:
            self._judge()

    def link_changed(self, *, is_open: bool, is_watching: bool) -> None:
        """A hint: a question over a closed link is missed at once, but the promise is kept all the same."""
        self.is_cut_off = not is_open
        if self.is_cut_off and is_watching:
            self._judge()

    def _judge(self) -> None:
        """The last question has had its time."""
        if self._judged < self._asked_number:
            self._judged = self._asked_number
            if self._answered < self._asked_number:
                self._misses += 1

    # -------------------------------------------------------------------------------------- answers

    def is_news(self, number: int) -> bool:
        return number > self._answered

    def answered(self, number: int) -> None:
        self._answered = number

    def promise(self) -> bool:
        """A primary answered: it may serve on that. Returns whether it waits for the next question, so that
        it need not wait an interval for its lease."""
        is_awaited = self._confirmed != self._core.term or self._misses > 0
        self._confirmed = self._core.term
        self._promised_tick = self._core.tick
        return is_awaited

    def release(self) -> None:
        """The primary has given up what it was promised."""
        self._promised_tick = None

    def heard(self) -> None:
        """A sign of life of the partner, or a reason to give it time: begin to count anew."""
        self._misses = 0
        self._heard_tick = self._core.tick

    def leader_heard(self) -> None:
        self._leader_tick = self._core.tick

    # -------------------------------------------------------------------------------------- verdicts

    @property
    def is_leader_gone(self) -> bool:
        """Whoever follows it would have by now: what waits for it must not wait for ever."""
        return self._core.tick - self._leader_tick > self._options.promotion_ticks

    @property
    def is_overdue(self) -> bool:
        """Enough was missed, and the promise that the last answer was given for has run out."""
        promised_ticks = self._core.tick - self._heard_tick
        return self._misses >= self._options.misses_max and promised_ticks >= self._options.promise_ticks

    @property
    def has_promised(self) -> bool:
        """Whether the partner may still serve on an answer that came here: also one that crossed a claim on
        its way to the authority, which must not begin then though it is recorded."""
        promised = self._promised_tick
        return promised is not None and self._core.tick - promised < self._options.promise_ticks
