"""What durable groups ask of their cursors in one shard: operations, many to an entry.

Each operation names its group by number. `Consumers` (`broker/groups/consumers.py`) applies them; what the
result of each is stands with the operation."""

from millrace.broker.entries.codec import Entry
from millrace.broker.groups.cursor import Delivery, Scan, Settings


class Create(Entry, frozen=True, tag="create"):
    """Make the cursor of a group. True, or False where it has one."""

    group: int
    position: int
    settings: Settings


class Take(Entry, frozen=True, tag="take"):
    """Give the next messages: a list of deliveries."""

    group: int
    request: str
    count: int
    lease_us: int
    """0: the messages are done with this."""
    voided: int | None = None
    """How often the request had been made void when it set out; None where that is not asked."""


class Void(Entry, frozen=True, tag="void"):
    """What a request was given; if nothing, takes for it that are under way get nothing."""

    group: int
    request: str


class Ack(Entry, frozen=True, tag="ack"):
    """These deliveries are done: a truth for each."""

    group: int
    epoch: int
    deliveries: list[Delivery]


class Nack(Entry, frozen=True, tag="nack"):
    """These deliveries are not done and come again after the delay: a truth for each."""

    group: int
    epoch: int
    deliveries: list[Delivery]
    delay_us: int


class Extend(Entry, frozen=True, tag="extend"):
    """The leases of these deliveries end so much after now: a truth for each."""

    group: int
    epoch: int
    deliveries: list[Delivery]
    lease_us: int


class Bury(Entry, frozen=True, tag="bury"):
    """A dead message was republished. True, or False where it is not among the dead."""

    group: int
    offset: int


class Tick(Entry, frozen=True, tag="tick"):
    """End the leases and delays that are due, and let go of what has expired."""

    group: int


class Touch(Entry, frozen=True, tag="touch"):
    """Somebody asked for messages."""

    group: int


class Skip(Entry, frozen=True, tag="skip"):
    """There is nothing for the group between: a restart need not look there again."""

    group: int
    start: int
    end: int


class Reset(Entry, frozen=True, tag="reset"):
    """Begin again at this position; what is out is forgotten."""

    group: int
    position: int


class Advance(Entry, frozen=True, tag="advance"):
    """As `Reset`, and only forward."""

    group: int
    position: int


class Configure(Entry, frozen=True, tag="set"):
    group: int
    settings: Settings


class Delete(Entry, frozen=True, tag="delete"):
    """The group is gone."""

    group: int


Operation = (
    Create
    | Take
    | Void
    | Ack
    | Nack
    | Extend
    | Bury
    | Tick
    | Touch
    | Skip
    | Reset
    | Advance
    | Configure
    | Delete
)


class Consume(Entry, frozen=True, tag="consume"):
    """Operations of one moment, and what whoever proposed them found ahead in the log for each group. They
    are judged at the time of their block, which is the leader's."""

    now_us: int
    """The time at which the proposer looked ahead."""
    scans: dict[int, Scan]
    operations: list[Operation]
