"""What a node that is not primary passes on: runs that its clients published, until the primary has them.

Each run of one class is an offer with a number and a key. It is repeated until it is answered, and at once
when another node is primary, which knows it again by its key. The publisher is answered when all offers of
what it sent are: acknowledged if each was taken, refused if one was not, or if nobody answered for too long.

The primary takes the offers of a node in the order of their numbers, so that a topic keeps its order though a
message is lost with its link: what comes before its turn is put off, and then everything that waits for an
answer is said again. Each message says which offers are settled, so that none is waited for in vain.
"""

from collections.abc import Callable

from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.limits import FRAME_OFFERS_MAX
from millrace.node.pairs.frame_messages import (
    IS_LATER,
    IS_REFUSED,
    IS_TAKEN,
    Key,
    OfferedRuns,
    batches,
    encode_run,
)

_OFFER_AGAIN_S = 1.0
# Without an answer it is refused. As long as other streams wait for a leader.
_OFFER_S_MAX = 10.0
_ACK_BYTES = 4


class _Publisher:
    """Who waits for the answers, and to how many offers."""

    __slots__ = ("arrival", "is_refused", "left", "repeats")

    def __init__(self, arrival: Arrival, left: int) -> None:
        self.arrival = arrival
        self.left = left
        self.is_refused = False
        # Answers to those of its messages that came again, by what they acknowledge; the last ones.
        self.repeats: dict[bytes, Arrival] = {}

    def acknowledges(self, ack: bytes) -> bool:
        own = self.arrival.ack
        return any(own[at : at + _ACK_BYTES] == ack for at in range(0, len(own), _ACK_BYTES))


class _Offer:
    __slots__ = ("key", "made_s", "offered_s", "publisher", "run")

    def __init__(self, publisher: _Publisher, run: Run, key: Key, offered_s: float) -> None:
        self.publisher = publisher
        self.run = run
        self.key = key
        self.made_s = self.offered_s = offered_s


class Offers:
    def __init__(self, answer: Callable[[Arrival, bool], None]) -> None:
        self._answer = answer
        self._offers: dict[int, _Offer] = {}
        self._messages = 0
        self._next = 0
        # The keys of those that came without: no others may be between them, or the primary sees gaps.
        self._keys = 0
        self._origin = 0
        # What leaves at the end of the turn, and to whom the rest was offered.
        self._due: dict[int, None] = {}
        self._is_put_off = False
        self._primary: str | None = None
        self.overloaded = 0
        """Messages that were refused because too many wait for an answer."""

    def has_room(self, messages: int) -> bool:
        """False: refuse them, they are counted."""
        if self._messages + messages <= FRAME_OFFERS_MAX:
            return True
        self.overloaded += messages
        return False

    def add(self, arrival: Arrival, rows: list[tuple[Run, Key]], origin: int, now_s: float) -> None:
        """The runs of an arrival; there is at least one."""
        publisher = _Publisher(arrival, len(rows))
        self._origin = origin
        for run, given in rows:
            self._next += 1
            key = given
            if not key[0]:
                # Repeated until it is answered, so the primary must know it again. A replica that begins
                # anew counts anew, hence the origin: its numbers were used by the one before it.
                self._keys += 1
                key = (b"frame/%x" % origin, self._keys)
            self._offers[self._next] = _Offer(publisher, run, key, now_s)
            self._messages += run.count
            self._due[self._next] = None

    def follow(self, repeat: Arrival) -> bool:
        """Answer a message that came again with the offer that it repeats; False where none waits."""
        for offer in self._offers.values():
            publisher = offer.publisher
            if publisher.arrival.session is repeat.session and publisher.acknowledges(repeat.ack):
                publisher.repeats[repeat.ack] = repeat
                return True
        return False

    def __len__(self) -> int:
        return len(self._offers)

    @property
    def is_due(self) -> bool:
        return bool(self._due)

    def messages(self, primary: str, now_ms: int) -> list[OfferedRuns]:
        """What is to be said to the primary: all of it if it is another one than before, or put one off."""
        offers = self._offers
        is_all = self._is_put_off or primary != self._primary
        numbers = list(offers) if is_all else sorted(number for number in self._due if number in offers)
        self._due, self._primary, self._is_put_off = {}, primary, False
        first = next(iter(offers), 0)
        rows = [(n, encode_run(offers[n].run, offers[n].key, now_ms)) for n in numbers]
        return [OfferedRuns(self._origin, first, batch) for batch in batches(rows, lambda row: len(row[1]))]

    def on_answer(self, number: int, answer: int) -> None:
        if number not in self._offers:
            return
        if answer == IS_LATER:
            self._due[number] = None
            self._is_put_off = True
            return
        offer = self._offers.pop(number)
        self._messages -= offer.run.count
        publisher = offer.publisher
        publisher.left -= 1
        publisher.is_refused = publisher.is_refused or answer != IS_TAKEN
        if not publisher.left:
            for arrival in (publisher.arrival, *publisher.repeats.values()):
                self._answer(arrival, not publisher.is_refused)

    def give_up(self, now_s: float) -> None:
        """Refuse those that nobody answered for too long."""
        late = [number for number, offer in self._offers.items() if now_s - offer.made_s >= _OFFER_S_MAX]
        for number in late:
            self._due.pop(number, None)
            self.on_answer(number, IS_REFUSED)

    def repeat(self, now_s: float) -> None:
        """Those that nobody answered are due again."""
        for number, offer in self._offers.items():
            if now_s - offer.offered_s >= _OFFER_AGAIN_S:
                offer.offered_s = now_s
                self._due[number] = None

    def all(self) -> list[tuple[int, Run, Key]]:
        return [(number, offer.run, offer.key) for number, offer in self._offers.items()]

    def end(self) -> list[Arrival]:
        """Nobody will answer any more: those who wait."""
        waiting = {id(offer.publisher): offer.publisher for offer in self._offers.values()}
        self._offers.clear()
        self._due.clear()
        self._messages = 0
        return [one for each in waiting.values() for one in (each.arrival, *each.repeats.values())]


class OfferedOrder:
    """At the primary: whose turn it is among the offers of each node."""

    def __init__(self) -> None:
        # Of each node, which has one origin at a time: that, and the number that is next.
        self._next: dict[str, tuple[int, int]] = {}

    def take(
        self,
        sender: str,
        offered: OfferedRuns,
        take: Callable[[bytes], int],
    ) -> list[tuple[int, int]]:
        """Give each to `take` unless one before it is still to come; what became of them, by number."""
        origin, first = offered.origin, offered.first
        known, turn = self._next.get(sender, (origin, 0))
        turn = max(turn, first) if known == origin else first
        answers = []
        for number, body in offered.rows:
            answer = take(body) if number <= turn else IS_LATER
            answers.append((number, answer))
            if number == turn and answer != IS_LATER:
                turn += 1
        self._next[sender] = origin, turn
        return answers
