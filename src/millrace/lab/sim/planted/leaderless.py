"""Bugs of the leaderless machine: of its logs, its answers, its groups and its division of work."""

from typing import Any

from millrace.lab.sim.leaderless.origin_disk import OriginDisk
from millrace.lab.sim.planted.bug import Bugs, Method, Plant
from millrace.replication.contract import ReplicaId, Send
from millrace.replication.leaderless.levels import Waiting
from millrace.replication.leaderless.machine import Leaderless
from millrace.replication.leaderless.messages import (
    Entries,
    Generation,
    Have,
    Holding,
    Install,
    Origin,
    Position,
    Positions,
)
from millrace.replication.leaderless.state import ControlState, LeaderlessGroup, Stamp
from millrace.replication.leaderless.work_division import Division, DivisionState, LeaderlessWorkDivision

LEADERLESS_BUGS = Bugs()


@LEADERLESS_BUGS.bug("a publisher is answered with one copy less than its level asks for")
def ack_before_level(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def others_wanted(self: Waiting) -> int:
            return int(original(self)) - 1

        return others_wanted

    plant.around(Waiting, "_others_wanted", make)


@LEADERLESS_BUGS.bug("a replica says that it has entries before they are on its disk")
def have_before_sync(plant: Plant) -> None:
    def confirm(self: Leaderless, sender: ReplicaId, origin: Origin, position: Position) -> None:
        self._out.append(Send(to=sender, body=Have(origin=origin, position=position)))

    plant.instead(Leaderless, "_confirm", confirm)


@LEADERLESS_BUGS.bug("entries that came twice set the log back and are stored again")
def vector_rewound(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_entries(self: Leaderless, sender: ReplicaId, body: Entries) -> None:
            if body.origin != self.origin and body.entries:
                log = self._logs.known(body.origin, self._contacts.now)
                if body.first_index <= log.last.entry:
                    log.last = Position(body.first_index - 1, body.base_offset)
            original(self, sender, body)

        return on_entries

    plant.around(Leaderless, "_on_entries", make)


@LEADERLESS_BUGS.bug("entries behind a gap are taken")
def gap_accepted(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_entries(self: Leaderless, sender: ReplicaId, body: Entries) -> None:
            if body.origin != self.origin:
                log = self._logs.known(body.origin, self._contacts.now)
                if body.first_index > log.last.entry + 1:
                    log.last = Position(body.first_index - 1, body.base_offset)
            original(self, sender, body)

        return on_entries

    plant.around(Leaderless, "_on_entries", make)


@LEADERLESS_BUGS.bug("marks that another node made are not applied")
def mark_lost(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def apply(self: Leaderless, origin: Origin, payload: bytes) -> None:
            if origin.node == self.node or not payload.startswith(b'["mark"'):
                original(self, origin, payload)

        return apply

    def merge_marks(
        self: ControlState, key: str, stamp: Stamp, group: LeaderlessGroup, marks: list[Any]
    ) -> None:
        """Another's state brings groups and clients, and no marks."""

    plant.around(Leaderless, "_apply", make)
    plant.instead(ControlState, "_merge_marks", merge_marks)


@LEADERLESS_BUGS.bug("a division is installed though a later session was answered")
def generation_ignored(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_install(self: LeaderlessWorkDivision, body: Install) -> None:
            division = self.division(body.group)
            installed = division.installed
            if installed is None or installed.generation != body.generation:
                division.promised, division.session = body.generation, None
                division.state = DivisionState.PROMISED
            original(self, body)

        return on_install

    plant.around(LeaderlessWorkDivision, "on_install", make)


@LEADERLESS_BUGS.bug("a node goes on taking work after it answered a session")
def takes_between_divisions(plant: Plant) -> None:
    def may_go_by(division: Division) -> bool:
        return True

    plant.instead(LeaderlessWorkDivision, "_may_go_by", may_go_by)


@LEADERLESS_BUGS.bug("a node takes work before it holds the marks of the others")
def marks_not_awaited(plant: Plant) -> None:
    def holds_needs(self: LeaderlessWorkDivision, installed: Install) -> bool:
        return True

    plant.instead(LeaderlessWorkDivision, "_holds_needs", holds_needs)


@LEADERLESS_BUGS.bug("an answer does not tell what is in the hands of members")
def in_flight_not_handed_over(plant: Plant) -> None:
    def in_hands(division: Division) -> Holding:
        return ()

    plant.instead(LeaderlessWorkDivision, "_in_hands", in_hands)


@LEADERLESS_BUGS.bug("it does not matter that a peer goes by another division, or by none")
def other_division_unnoticed(plant: Plant) -> None:
    def on_pulse(self: LeaderlessWorkDivision, peer: str, named: dict[str, Generation]) -> None:
        """Everybody goes by what was installed, no doubt."""

    plant.instead(LeaderlessWorkDivision, "on_pulse", on_pulse)


@LEADERLESS_BUGS.bug("a node divides without peers of which it has not heard yet")
def alone_before_heard(plant: Plant) -> None:
    def reachable(self: LeaderlessWorkDivision) -> frozenset[str]:
        return self._contacts.live

    plant.instead(LeaderlessWorkDivision, "_reachable", reachable)


@LEADERLESS_BUGS.bug("a node that comes back is not asked what its members have done")
def returned_unasked(plant: Plant) -> None:
    def is_somebody_back(self: LeaderlessWorkDivision, installed: Install) -> bool:
        return False

    plant.instead(LeaderlessWorkDivision, "_is_somebody_back", is_somebody_back)


@LEADERLESS_BUGS.bug("a node goes on taking work though others may have left it out")
def lease_ignored(plant: Plant) -> None:
    def has_leases(self: LeaderlessWorkDivision, installed: Install) -> bool:
        return True

    plant.instead(LeaderlessWorkDivision, "_has_leases", has_leases)


@LEADERLESS_BUGS.bug("a message goes once one group is done with it")
def removal_below_one_mark(plant: Plant) -> None:
    def done_below(self: Leaderless, groups: list[LeaderlessGroup], origin: Origin) -> int:
        return max(self.low(group, origin) for group in groups)

    plant.instead(Leaderless, "_done_below", done_below)


@LEADERLESS_BUGS.bug("a message goes before every member has received it")
def removal_before_all_hold(plant: Plant) -> None:
    def received_by_all(self: Leaderless, received: list[Positions], origin: Origin, offset: int) -> int:
        return offset

    plant.instead(Leaderless, "_received_by_all", received_by_all)


@LEADERLESS_BUGS.bug("an old subscription comes back after it was ended")
def tombstone_ignored(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def put_client(
            self: ControlState, key: str, life: Stamp, client: str, is_in: bool, stamp: Stamp
        ) -> None:
            original(self, key, life, client, is_in, stamp)
            group = self._life(key, life)
            if is_in and group is not None:
                group.clients[client] = (stamp, is_in)

        return put_client

    plant.around(ControlState, "_put_client", make)


@LEADERLESS_BUGS.bug("a start goes on with an origin whose log is not whole")
def incarnation_reused(plant: Plant) -> None:
    def start(self: OriginDisk) -> None:
        self.incarnation = self.incarnation or 1
        self.is_whole = True

    plant.instead(OriginDisk, "start", start)
