"""One question to a healthy group, chosen by the seed: does it keep a promise that only calm shows?

Safety is watched all the time; these ask for availability and quiet. A group must not be disturbed by a
replica that comes back or was removed (pre-vote, stickiness), must replace a leader that hears nobody, says
nothing, has a stuck disk or is dead, must answer a transfer in time, and must take in a new member.
"""

from millrace.lab.sim.raft.answers import Answer, Outcome
from millrace.lab.sim.raft.plan import TICK_US
from millrace.lab.sim.raft.process import Process
from millrace.lab.sim.raft.world import World
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import ChangeKind, RefusedReason, ReplicaId


def take_exam(world: World) -> None:
    voters = [name for name in world.config().voters if not world.processes[name].is_gone]
    leader = world.leader()
    assert leader is not None
    lost = [name for name in world.config().voters if world.processes[name].is_gone]
    world.note(f"exam: {world.plan.exam}")
    # With fewer than three whole voters the group rightly stops when one of them does.
    can_spare_one = len(voters) >= 3 and 2 * (len(voters) - 1) > len(voters) + len(lost)
    if world.plan.exam == "new member":
        _new_member(world)
    elif world.plan.exam == "transfer":
        _transfer(world, leader, voters)
    elif can_spare_one:
        _without_one(world, leader, voters)


def _without_one(world: World, leader: Process, voters: list[ReplicaId]) -> None:
    others = [name for name in world.processes if name != leader.replica]
    exam = world.plan.exam
    if exam == "returning follower":
        _returning_follower(world, next(name for name in voters if name != leader.replica))
    elif exam == "deaf leader":
        world.network.block(others, [leader.replica])
        _require_other_leader(world, leader, "while the leader hears nobody")
    elif exam == "mute leader":
        world.network.block([leader.replica], others)
        _require_other_leader(world, leader, "while nobody hears the leader")
    elif exam == "stalled leader":
        # Only a leader with something to write can notice, so the clients go on.
        leader.log.is_stalled = True
        world.clients[1].start()
        _require_other_leader(world, leader, "while the leader's disk hangs")
    elif exam == "dead leader":
        leader.crash("exam")
        world.require_progress("without the old leader")
    elif exam == "rest":
        _rest(world)


def _require_other_leader(world: World, old: Process, what: str) -> None:
    term = old.term

    def replaced() -> bool:
        leader = world.leader()
        return leader is not None and leader.term > term and leader.is_serving

    world.require(f"another leader {what}", replaced)
    world.clients[1].stop()
    world.require_progress(what)


def _require_quiet(world: World, elections: int, what: str) -> None:
    """The leader stays for that long. It had better be elected before."""
    leader = world.leader()
    assert leader is not None
    term = leader.term
    world.run_ticks(elections * world.plan.options.election_ticks)
    newest = max(process.term for process in world.processes.values() if process.is_up)
    if leader.role != "leader" or leader.term != term or world.checkers.newest_term != term:
        raise Violation(
            "disturbed", f"{what}: leader {leader.replica} of {term} is {leader.role}, terms go to {newest}"
        )


def _settle(world: World) -> None:
    world.require("a settled group", world.is_settled)
    world.run_ticks(2 * world.plan.options.election_ticks)
    world.require("a settled group", world.is_settled)


def _returning_follower(world: World, name: ReplicaId) -> None:
    _settle(world)
    world.note(f"{name} is cut off for a while")
    world.network.split([name], world.processes)
    _require_quiet(world, 4, f"{name} is cut off")
    world.heal_network()
    _require_quiet(world, 4, f"{name} came back")


def _rest(world: World) -> None:
    """A group in which nothing happens comes to rest, and yet misses its leader."""
    _settle(world)
    members = [world.processes[name] for name in world.members()]
    if any(process.is_gone for process in members):
        return  # its leader goes on asking for the one that is lost
    # What a storm held up for long wakes whom it reaches.
    plan = world.plan
    world.run_ticks(max(plan.storm.straggler_us_max, plan.weather.straggler_us_max) // TICK_US + 1)
    world.require("rest", lambda: all(process.rests for process in members))
    # Who was removed and did not hear of it goes on asking.
    said, is_complete = world.messages, len(members) == len(world.processes)
    _require_quiet(world, 4, "everybody rests")
    if (is_complete and world.messages != said) or not all(process.rests for process in members):
        raise Violation("disturbed", "somebody spoke in a group that rests")
    leader = world.leader()
    assert leader is not None
    others = [name for name in world.processes if name != leader.replica]
    kinds = ("pause", "mute", "deaf", "cut off", "asked")
    kind = world.chance("rest").choice(kinds)
    world.note(f"rest ends: {kind}")
    if kind == "asked":
        world.require_progress("after a rest")
        return
    if kind == "pause":
        leader.pause()
    if kind in ("mute", "cut off"):
        world.network.block([leader.replica], others)
    if kind in ("deaf", "cut off"):
        world.network.block(others, [leader.replica])
    _require_other_leader(world, leader, f"whose leader rested: {kind}")


def _transfer(world: World, leader: Process, voters: list[ReplicaId]) -> None:
    _settle(world)
    leader = world.leader() or leader
    targets = [name for name in voters if name != leader.replica]
    answers: list[Answer] = []
    leader.transfer(targets[-1] if targets else None, answers.append)
    ticks_max = 3 * world.plan.options.election_ticks
    if not world.run_ticks(ticks_max, lambda: bool(answers)):
        raise Violation("liveness", f"a transfer was not answered within {ticks_max} ticks")
    if targets and answers[0].outcome is not Outcome.DONE:
        raise Violation("liveness", f"a transfer in a healthy group was refused: {answers[0].reason}")
    world.require_progress("after a transfer")


def _change(world: World, kind: ChangeKind, replica: ReplicaId) -> None:
    """Ask the leader until the change is committed."""

    def is_done() -> bool:
        config = world.config()
        if kind is ChangeKind.ADD_LEARNER:
            return replica in config.members
        if kind is ChangeKind.PROMOTE:
            return replica in config.voters
        return replica not in config.members

    asking = True

    def ask() -> None:
        leader = world.leader()
        if asking:
            if leader is not None:
                leader.change(kind, replica, answered)
            world.clock.after(100_000, ask)

    def answered(answer: Answer) -> None:
        if answer.reason == RefusedReason.LAST_VOTER.value:
            raise Violation("membership", f"{kind.value} {replica} refused: {answer.reason}")

    ask()
    world.require(f"{kind.value} {replica}", is_done)
    asking = False


def _new_member(world: World) -> None:
    """A lost member is replaced, or a spare comes in and a voter goes, and the one that left stays quiet."""
    members = world.members()
    fresh = [name for name, each in world.processes.items() if name not in members and not each.is_gone]
    if not fresh:
        return
    _change(world, ChangeKind.ADD_LEARNER, fresh[0])
    _change(world, ChangeKind.PROMOTE, fresh[0])
    voters = world.config().voters
    leader = world.leader()
    gone = [name for name in voters if world.processes[name].is_gone]
    going = gone or [name for name in voters if leader is None or name != leader.replica]
    _change(world, ChangeKind.REMOVE, going[0])
    _settle(world)
    _require_quiet(world, 4, f"{going[0]} was removed")
