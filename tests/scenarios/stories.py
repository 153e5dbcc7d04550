"""Stories as text: commands, a line of dashes, and what the replicas do.

A file is a list of blocks separated by blank lines. Lines that begin with `#` tell the reader what goes on.
The other lines above `----` are commands, those below are what came of them. Commands:

    cluster N [spares=N] [leader=nI] [nI=TICKS ...] [OPTION=NUMBER ...]
                                                 a new group, with nI elected; nI=TICKS fixes a time-out
    log nI TERMS... term=N [vote=nJ]             start nI with a log of these terms on its disk
    tick nI,nJ|all [N]                           N ticks; writes finish, messages wait
    deliver [nI->nJ] [KIND] [count=N]            what is in the mail now; * for any side
    drop [nI->nJ] [KIND]                         throw away what is in the mail now
    hold [nI->nJ] [KIND]   copy [nI->nJ] [KIND]  put aside what is in the mail now, or a copy of it
    release                                      deliver what was put aside
    quiet                                        deliver until nobody has anything to say
    run N                                        N times: a tick for all, then quiet
    propose nI TEXT...   read nI   snapshot nI   transfer nI [nJ]
    change nI learner|promote|demote|remove nJ
    cut nI,nJ nK,...                             only members of one side hear each other
    one-way nI nJ                                nJ does not hear nI any more
    heal   close nI nJ   open nI nJ              network and link events
    silent nI nJ                                 nI is told that nothing came from nJ for a while
    crash nI   start nI                          a crash loses what is being written
    stall nI   unstall nI   finish nI            the disk finishes no write, all again, one
    damage nI INDEX                              this entry of a stopped replica cannot be read any more
    logs   status nI   rests   trace on|off      look
    elected nI,nJ                                one of these must lead
    agreed                                       all must have committed all there is
    settle                                       heal all; the group must go on and agree
"""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from millrace.replication.contract import Propose, ReplicaId, Silence
from millrace.replication.raft.options import RaftOptions
from millrace.types import Index
from unit.replication.cluster import SMALL
from unit.replication.stage import CHANGES, Stage


class Story:
    """The checkers raise where they see a bug at work."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stage: Stage | None = None

    def play(self) -> str:
        """The file as it would be written now."""
        blocks = []
        for block in self.path.read_text().strip("\n").split("\n\n"):
            told = block.split("----")[0].rstrip("\n").splitlines()
            commands = [line for line in told if line and not line.startswith("#")]
            if not commands:
                blocks.append("\n".join(told))
                continue
            output = [line for command in commands for line in self._run(command)]
            blocks.append("\n".join([*told, "----", *(output or ["(nothing)"])]))
        return "\n\n".join(blocks) + "\n"

    def _run(self, command: str) -> Iterator[str]:
        verb, *words = command.split()
        if verb == "cluster":
            self.stage = self._make(words)
        elif self.stage is None:
            raise ValueError(f"{self.path.name}: the first command is `cluster`")
        else:
            yield from self._act(self.stage, verb, words)
        yield from self.stage.lines
        self.stage.lines.clear()

    def _make(self, words: list[str]) -> Stage:
        named = dict(word.split("=") for word in words[1:])
        known = {field.name for field in fields(RaftOptions)}
        changed = {name: int(value) for name, value in named.items() if name in known}
        timeouts = {name: int(value) for name, value in named.items() if name[1:].isdigit()}
        options = {field.name: getattr(SMALL, field.name) for field in fields(RaftOptions)}
        stage = Stage(
            int(words[0]),
            spares=int(named.get("spares", 0)),
            timeouts=timeouts,
            options=RaftOptions(**{**options, **changed}),
        )
        if "leader" in named:
            stage.elect(ReplicaId(named["leader"]))
            stage.lines.clear()
        return stage

    def _act(self, stage: Stage, verb: str, words: list[str]) -> Iterator[str]:
        match verb, words:
            case "log", [name, *rest]:
                named = dict(word.split("=") for word in rest if "=" in word)
                vote = ReplicaId(named["vote"]) if "vote" in named else None
                terms = [int(word) for word in rest if "=" not in word]
                stage.set_log(ReplicaId(name), terms, int(named["term"]), vote)
            case "tick", [names, *rest]:
                stage.tick(self._names(stage, names), int(rest[0]) if rest else 1)
            case (("deliver" | "drop" | "hold" | "copy"), rest):
                self._post(stage, verb, rest)
            case "release", []:
                stage.release()
            case "settle", []:
                stage.settle()
            case "quiet", []:
                stage.quiet()
            case "run", [count]:
                stage.rounds(int(count))
            case "propose", [name, *texts]:
                payloads = tuple(text.encode() for text in texts)
                stage.request(ReplicaId(name), lambda request: Propose(request=request, payloads=payloads))
                stage.sync()
            case "read", [name]:
                stage.read(ReplicaId(name))
            case "snapshot", [name]:
                stage.take_snapshot(ReplicaId(name), keep=0)
            case "transfer", [name, *rest]:
                stage.transfer(ReplicaId(name), ReplicaId(rest[0]) if rest else None)
                stage.sync()
            case "change", [name, kind, other]:
                stage.change(ReplicaId(name), CHANGES[kind], ReplicaId(other))
                stage.sync()
            case "logs", []:
                yield from stage.logs()
            case "status", [name]:
                status = stage.machine(name).status()
                voters, learners = ",".join(status.config.voters), ",".join(status.config.learners) or "none"
                yield f"{name} {status.role} term {status.term} voters {voters} learners {learners}"
            case "rests", []:
                resting = [name for name, node in stage.nodes.items() if node.rests]
                yield f"{', '.join(resting) or 'nobody'} at rest"
            case "elected", [names]:
                stage.require_leader(self._names(stage, names))
            case "agreed", []:
                stage.require_agreement()
            case "trace", [switch]:
                stage.is_tracing = switch == "on"
            case _:
                self._disturb(stage, verb, words)

    def _disturb(self, stage: Stage, verb: str, words: list[str]) -> None:
        names = [ReplicaId(word) for word in words]
        match verb, names:
            case "cut", sides:
                stage.partition(*[side.split(",") for side in sides])
            case "one-way", [source, to]:
                stage.cut.add((source, to))
            case "heal", []:
                stage.heal()
            case "close", [left, right]:
                stage.link_closed(left, right)
                stage.sync()
            case "open", [left, right]:
                stage.link_opened(left, right)
                stage.sync()
            case "silent", [name, peer]:
                stage.step(name, Silence(peer=peer))
                stage.sync()
            case "crash", [name]:
                stage.lose_writes(name)
            case "start", [name]:
                stage.start(name)
            case "stall", [name]:
                stage.stalled.add(name)
            case "damage", [name, index]:
                stage.damage_log(name, Index(int(index)))
            case "finish", [name]:
                stage.finish(name)
            case "unstall", [name]:
                stage.stalled.discard(name)
                stage.sync(name)
            case _:
                raise ValueError(f"{self.path.name}: cannot read `{verb} {' '.join(words)}`")

    def _post(self, stage: Stage, verb: str, words: list[str]) -> None:
        source: ReplicaId | None = None
        to: ReplicaId | None = None
        kind: str | None = None
        count = 5000
        for word in words:
            if "->" in word:
                left, right = word.split("->")
                source = ReplicaId(left) if left != "*" else None
                to = ReplicaId(right) if right != "*" else None
            elif word.startswith("count="):
                count = int(word[6:])
            else:
                kind = word
        if verb == "deliver":
            stage.deliver(source, to, kind, count)
        else:
            getattr(stage, verb)(source, to, kind)

    @staticmethod
    def _names(stage: Stage, names: str) -> list[ReplicaId]:
        return list(stage.nodes) if names == "all" else [ReplicaId(name) for name in names.split(",")]
