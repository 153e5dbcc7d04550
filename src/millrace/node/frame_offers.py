"""What a node that is not primary passes on: runs that its clients published, until the primary has them.

Each run of one class is an offer with a number and a key. It is repeated until it is answered, and at once
when another node is primary, which knows it again by its key. The publisher is answered when all offers of
what it sent are: acknowledged if each was taken, refused if one was not.
"""

from collections.abc import Callable

from millrace.broker.intake import Arrival
from millrace.broker.message import Run
from millrace.node.frame_words import IS_LATER, IS_TAKEN, OFFER, Key, batches, encode, encode_run

# Messages that wait for an answer.
_OFFERS_MAX = 100_000
_OFFER_AGAIN_S = 1.0


class _Publisher:
    """Who waits for the answers, and to how many offers."""

    __slots__ = ("arrival", "is_refused", "left")

    def __init__(self, arrival: Arrival, left: int) -> None:
        self.arrival = arrival
        self.left = left
        self.is_refused = False


class _Offer:
    __slots__ = ("key", "offered_s", "publisher", "run")

    def __init__(self, publisher: _Publisher, run: Run, key: Key, offered_s: float) -> None:
        self.publisher = publisher
        self.run = run
        self.key = key
        self.offered_s = offered_s


class Offers:
    def __init__(self, answer: Callable[[Arrival, bool], None]) -> None:
        self._answer = answer
        self._offers: dict[int, _Offer] = {}
        self._messages = 0
        self._next = 0
        # What leaves at the end of the turn, and to whom the rest was offered.
        self._due: dict[int, None] = {}
        self._primary: str | None = None
        self.overloaded = 0
        """Messages that were refused because too many wait for an answer."""

    def has_room(self, messages: int) -> bool:
        """False: refuse them, they are counted."""
        if self._messages + messages <= _OFFERS_MAX:
            return True
        self.overloaded += messages
        return False

    def add(self, arrival: Arrival, rows: list[tuple[Run, Key]], origin: int, now_s: float) -> None:
        """The runs of an arrival; there is at least one."""
        publisher = _Publisher(arrival, len(rows))
        for run, key in rows:
            self._next += 1
            if not key[0]:
                # Repeated until it is answered, so the primary must know it again. A replica that begins
                # anew counts anew, hence the origin: its numbers were used by the one before it.
                key = (b"frame/%x" % origin, self._next)
            self._offers[self._next] = _Offer(publisher, run, key, now_s)
            self._messages += run.count
            self._due[self._next] = None

    @property
    def is_due(self) -> bool:
        return bool(self._due)

    def words(self, primary: str) -> list[bytes]:
        """What is to be said to the primary: all of it if it is another one than before."""
        offers = self._offers
        numbers = self._due if primary == self._primary else offers
        self._due, self._primary = {}, primary
        rows = [(n, encode_run(offers[n].run, offers[n].key)) for n in numbers if n in offers]
        return [encode(OFFER, batch) for batch in batches(rows, lambda row: len(row[1]))]

    def on_answer(self, number: int, answer: int) -> None:
        if answer == IS_LATER:
            self._due[number] = None
            return
        offer = self._offers.pop(number, None)
        if offer is None:
            return
        self._messages -= offer.run.count
        publisher = offer.publisher
        publisher.left -= 1
        publisher.is_refused = publisher.is_refused or answer != IS_TAKEN
        if not publisher.left:
            self._answer(publisher.arrival, not publisher.is_refused)

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
        waiting = {id(offer.publisher): offer.publisher.arrival for offer in self._offers.values()}
        self._offers.clear()
        self._due.clear()
        self._messages = 0
        return list(waiting.values())
