"""The whole cluster at a glance, put together from what every node says of itself.

`report` is a node's own part; `put_together` joins the parts. Who leads what and how far each replica is
comes from the nodes themselves; which nodes and streams there are, and who is silent, is what the answering
node knows. So it works at every node, also while the leader is dead.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from millrace.broker.streams.stream import Replication, Stream
from millrace.node.admin.figures import Sampler
from millrace.node.admin.shapes import (
    Addresses,
    Figures,
    GroupHere,
    Node,
    NodeState,
    Overview,
    ReplicaRow,
    ReplicationGroupRow,
    SelfReport,
    StreamRow,
    Totals,
)
from millrace.node.engine import Engine

_STATES: Mapping[str, NodeState] = {
    "up": "up",
    "draining": "up",
    "suspect": "suspect",
    "unreachable": "unreachable",
}


def groups_here(engine: Engine) -> tuple[GroupHere, ...]:
    """Every replication group as this node's replica of it stands."""
    names = names_of(engine)
    rows = []
    for number, group in sorted(engine.replicas.groups.items()):
        status = group.status()
        rows.append(
            GroupHere(
                group=number,
                role=str(status.role),
                term=int(status.term),
                leader=None if status.leader is None else names.get(status.leader, str(status.leader)),
                commit=int(status.commit),
                applied=int(status.applied),
                last=int(status.last),
            )
        )
    return tuple(rows)


def names_of(engine: Engine) -> dict[str, str]:
    return {r: member.name for r, member in engine.definitions.state.members.members.items()}


def stored_offsets(engine: Engine) -> dict[str, float]:
    """How far the logs of each stream are, for rates: stream -> the sum of its logs' next offsets."""
    ends: dict[str, float] = {}
    logs = [(shard.stream.spec.name, shard.next_offset) for shard in engine.shards.values()]
    logs += [(row["stream"], row["next_offset"]) for row in engine.leaderless.status()]
    for stream, next_offset in logs:
        name = f"stream/{stream}"
        ends[name] = ends.get(name, 0) + next_offset
    return ends


class Builder:
    """Puts overviews together at one node."""

    def __init__(self, engine: Engine, node: str, version: str, sampler: Sampler) -> None:
        self._engine = engine
        self._node = node
        self._version = version
        self._sampler = sampler

    def put_together(self, time_us: int, reports: Mapping[str, SelfReport]) -> Overview:
        """`reports` by the name of the node; who is not among them did not answer."""
        engine = self._engine
        seen = engine.cluster.status()
        newest = _newest_groups(reports)
        nodes = tuple(self._nodes(seen["members"], reports, newest))
        groups = tuple(self._groups(reports, newest))
        answering = {node.node for node in nodes if node.is_answering}
        streams = tuple(self._streams(groups, answering))
        meta = newest.get(0)
        return Overview(
            time_us=time_us,
            node=self._node,
            cluster=seen["cluster"],
            version=self._version,
            leader=None if meta is None else meta.leader,
            is_settled=seen["is_settled"],
            nodes=nodes,
            groups=groups,
            streams=streams,
            totals=_totals(reports, streams, len(engine.sessions.store.records)),
        )

    def _nodes(
        self,
        rows: list[dict[str, Any]],
        reports: Mapping[str, SelfReport],
        newest: Mapping[int, GroupHere],
    ) -> Iterator[Node]:
        members = self._engine.definitions.state.members.members
        for row in rows:
            name = row["node"]
            report = reports.get(name)
            yield Node(
                node=name,
                replica=row["replica"],
                state=_STATES[row["state"]],
                is_draining=members[row["replica"]].is_draining,
                leads_meta=0 in newest and newest[0].leader == name,
                leads=sum(1 for group in newest.values() if group.leader == name),
                addresses=Addresses(
                    mqtt=row["mqtt"] or None, http=row["http"] or None, peer=row["peer"] or None
                ),
                host=row["host"],
                silent_s=row["silent_s"],
                is_answering=report is not None,
                figures=None if report is None else report.figures,
            )
        mine = self._engine.replicas.replica
        if mine not in members and self._node in reports:
            # It was taken out of the cluster and still answers.
            yield Node(
                node=self._node,
                replica=mine,
                state="removed",
                is_draining=False,
                leads_meta=False,
                leads=0,
                addresses=Addresses(),
                silent_s=0.0,
                is_answering=True,
                figures=reports[self._node].figures,
            )

    def _groups(
        self, reports: Mapping[str, SelfReport], newest: Mapping[int, GroupHere]
    ) -> Iterator[ReplicationGroupRow]:
        by_node = {name: {one.group: one for one in report.groups} for name, report in reports.items()}
        for row in self._engine.cluster.groups():
            number = row["group"]
            known = newest.get(number)
            leading = None if known is None or known.leader is None else by_node.get(known.leader, {})
            head = None if leading is None else leading.get(number)
            replicas = []
            for node in (*row["voters"], *row["learners"]):
                here = by_node.get(node, {}).get(number)
                replicas.append(
                    ReplicaRow(
                        node=node,
                        role="unknown" if here is None else here.role,
                        applied=None if here is None else here.applied,
                        lag=None if here is None or head is None else max(0, head.last - here.last),
                    )
                )
            yield ReplicationGroupRow(
                group=number,
                keeps=row["keeps"],
                leader=row["leader"] if known is None else known.leader,
                term=row["term"] if known is None else known.term,
                commit=row["commit"] if known is None else max(known.commit, row["commit"]),
                applied=row["applied"],
                voters=tuple(row["voters"]),
                learners=tuple(row["learners"]),
                replicas=tuple(replicas),
            )

    def _streams(self, groups: tuple[ReplicationGroupRow, ...], answering: set[str]) -> Iterator[StreamRow]:
        engine = self._engine
        by_number = {group.group: group for group in groups}
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in engine.status():
            rows.setdefault(row["stream"], []).append(row)
        for name, stream in sorted(engine.definitions.table.streams.items()):
            spec, own = stream.spec, rows.get(name, [])
            open_groups = [by_number[number] for number in stream.shards if number in by_number]
            reasons = list(self._degraded(stream, open_groups, answering))
            yield StreamRow(
                name=name,
                replication=str(spec.replication),
                filters=tuple(spec.filters),
                shards=len(stream.shards),
                replicas=spec.replicas,
                capture=str(spec.capture),
                bytes=sum(row["bytes"] for row in own),
                messages=sum(row["next_offset"] - row["first_offset"] for row in own),
                in_messages_s=self._sampler.rate(f"stream/{name}"),
                leaders=tuple(dict.fromkeys(group.leader for group in open_groups if group.leader)),
                is_degraded=bool(reasons),
                degraded="; ".join(reasons),
            )

    def _degraded(
        self, stream: Stream, groups: list[ReplicationGroupRow], answering: set[str]
    ) -> Iterator[str]:
        spec = stream.spec
        for group in groups:
            away = [voter for voter in group.voters if voter not in answering]
            if group.leader is None or (group.leader in away and len(away) * 2 >= len(group.voters)):
                yield f"shard {group.group} has no leader"
            if away:
                there = len(group.voters) - len(away)
                names = ", ".join(away)
                yield f"shard {group.group}: {there} of {len(group.voters)} replicas, without {names}"
        if spec.replication is Replication.PRIMARY_BACKUP:
            yield from self._engine.pairs.warnings(stream)
        elif spec.replication is Replication.LEADERLESS:
            silent = [n for n in names_of(self._engine).values() if n not in answering]
            if silent:
                yield f"no word from {', '.join(sorted(silent))}: what they took meanwhile comes later"


def _newest_groups(reports: Mapping[str, SelfReport]) -> dict[int, GroupHere]:
    """Of each group the view of the node that knows the newest term, and of those one that knows a leader."""

    def rank(here: GroupHere) -> tuple[int, bool, int]:
        return here.term, here.leader is not None, here.commit

    newest: dict[int, GroupHere] = {}
    for report in reports.values():
        for here in report.groups:
            known = newest.get(here.group)
            if known is None or rank(here) > rank(known):
                newest[here.group] = here
    return newest


def _totals(reports: Mapping[str, SelfReport], streams: tuple[StreamRow, ...], records: int) -> Totals:
    figures = [report.figures for report in reports.values()]

    def total(of: Callable[[Figures], float]) -> float:
        return round(sum(map(of, figures)), 2)

    return Totals(
        clients=sum(one.clients for one in figures),
        # Records are of all nodes; sessions without one end with their connection.
        sessions=max(records, sum(one.sessions for one in figures)),
        in_messages_s=total(lambda one: one.in_messages_s),
        out_messages_s=total(lambda one: one.out_messages_s),
        in_bytes_s=total(lambda one: one.in_bytes_s),
        out_bytes_s=total(lambda one: one.out_bytes_s),
        stored_bytes=sum(stream.bytes for stream in streams),
    )
