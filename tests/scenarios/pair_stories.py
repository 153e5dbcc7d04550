"""Stories of a primary-backup pair, told as in `stories.py`. The first command is `pair`; more commands:

pair [authority] [may-split] [OPTION=NUMBER ...]
                                             two replicas, n1 begins; with an authority n3 looks on;
                                             may-split: two histories are part of the story
unrecord nI   record nI                      the authority does not hear nI and is not heard by it; again
promote nI                                   take over by command
"""

from collections.abc import Iterator
from dataclasses import fields

from millrace.replication.contract import ReplicaId, TransferLeadership
from millrace.replication.raft.options import RaftOptions
from scenarios.stories import Story
from unit.replication.cluster import SMALL
from unit.replication.pair_stage import PairStage
from unit.replication.stage import Stage


class PairStory(Story):
    def _run(self, command: str) -> Iterator[str]:
        verb, *words = command.split()
        if verb == "pair":
            named = dict(word.split("=") for word in words if "=" in word)
            options = {field.name: getattr(SMALL, field.name) for field in fields(RaftOptions)}
            changed = {name: int(value) for name, value in named.items()}
            self.stage = PairStage(
                has_authority="authority" in words,
                may_split="may-split" in words,
                options=RaftOptions(**{**options, **changed}),
            )
            self.stage.rounds(5)
            self.stage.lines.clear()
            return
        yield from super()._run(command)

    def _act(self, stage: Stage, verb: str, words: list[str]) -> Iterator[str]:
        assert isinstance(stage, PairStage)
        if verb == "unrecord":
            stage.cut_off.add(ReplicaId(words[0]))
        elif verb == "record":
            stage.cut_off.discard(ReplicaId(words[0]))
            stage.sync()
        elif verb == "promote":
            name = ReplicaId(words[0])
            stage.request(name, lambda request: TransferLeadership(request=request, target=name))
            stage.sync()
        else:
            yield from super()._act(stage, verb, words)
