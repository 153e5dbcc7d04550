"""Pipelines that the cluster holds, at one node: it runs those that it owns, and shows all of them.

What is wanted and who owns what stands in the meta group's state. This node starts a supervisor for each
pipeline that is its own, if its configuration allows that, and stops it when the pipeline is another's, is to
stop, or is to run in another way. Before each start it raises the epoch, so no driver of an earlier start
decides anything. As leader of the meta group it also gives pipelines to nodes (`ownership.py`).

What a supervisor reports goes to every node, and each publishes it below `$SYS`.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from millrace.broker.entries.meta import (
    BeginPipeline,
    DeletePipeline,
    FailPipeline,
    OwnPipeline,
    PutPipeline,
    RenewPipelines,
    SteerPipeline,
)
from millrace.broker.meta.pipelines import Pipeline, PipelineSpec, Steer, wrong_text
from millrace.errors import LocalError, MalformedPacket
from millrace.node.cluster.silence import Silence
from millrace.node.config import Config
from millrace.node.peers.messages import PipelineTold
from millrace.node.pipelines.ownership import LEASE_S, RENEW_S, Ownership
from millrace.node.pipelines.reports import REPORTS, Report
from millrace.node.pipelines.running import Place, Run
from millrace.node.replicas.replicas import Replicas
from millrace.node.streams.definitions import Definitions
from millrace.version import Feature

log = logging.getLogger("millrace.pipelines")

_REVIEW_S = 0.5
# Between two starts of a supervisor that ended by itself, as one that was killed: doubled each time.
_PAUSE_S_LEAST, _PAUSE_S_MOST = 1.0, 30.0
# A run of this length sets the pause back.
_STEADY_S = 60.0
# A planned stop waits so long for the word that others may take over at once.
_LEAVE_S = 2.0
# Exit statuses of `millrace.spark.declared`.
_ENDED, _GAVE_UP, _WRONG = 0, 1, 2
NOWHERE = (
    "no node of this cluster runs pipelines: set pipelines.run = true in the configuration of those that may "
    "run their code"
)


class PipelineKeeper:
    """`start` and `stop` once each."""

    def __init__(
        self,
        config: Config,
        definitions: Definitions,
        replicas: Replicas,
        silence: Silence,
        publish_sys: Callable[[dict[str, str]], None],
        wall_us: Callable[[], int],
    ) -> None:
        self._config = config
        self._data = Path(config.node.data)
        self._definitions = definitions
        self._replicas = replicas
        self._silence = silence
        self._publish_sys = publish_sys
        self._wall_us = wall_us
        self.reports: dict[str, dict[str, Any]] = {}
        """The last report of every pipeline of a terminal that told this node."""
        self._told: dict[str, dict[str, Any]] = {}
        """The same of those of the cluster."""
        self._runs: dict[str, Run] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        """How long the last pause was, and when the last start was."""
        self._ownership: Ownership | None = None
        self._renewed_s = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        replicas.messenger.on((PipelineTold,), self._on_told)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run())
        if self._config.pipelines.run:
            self._renewal = loop.create_task(self._renew())

    async def stop(self) -> None:
        """Stop what runs here and leave it to others."""
        tasks = [task for task in (self._task, self._renewal) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        runs, self._runs = self._runs, {}
        for run in runs.values():
            run.stop()
        await asyncio.gather(*(run.ended() for run in runs.values()))
        leave = [
            self._definitions.command(OwnPipeline(name, run.pipeline.epoch, "")) for name, run in runs.items()
        ]
        # Where no majority is there, others take over when the lease ends.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await asyncio.gather(*leave, return_exceptions=True)

    @property
    def _pipelines(self) -> dict[str, Pipeline]:
        return self._definitions.state.pipelines.by_name

    # ------------------------------------------------------------------------------------- review

    async def _run(self) -> None:
        while True:
            if not self._pipelines and not self._runs and not self._told:
                await self._definitions.next_change()
                continue
            try:
                await self._review()
            except LocalError as error:
                log.debug("review: %s", error)
            except Exception:
                log.exception("a review of the pipelines ended in the middle")
            await asyncio.sleep(_REVIEW_S)

    async def _review(self) -> None:
        self._forget_deleted()
        await self._give()
        await self._end_runs()
        if self._config.pipelines.run:
            for name in list(self._pipelines):
                await self._begin(name)

    async def _give(self) -> None:
        """As leader of the meta group: every pipeline that should run has an owner that is there."""
        if not self._definitions.is_leader:
            self._ownership = None
            return
        self._ownership = self._ownership or Ownership()
        state, now_s = self._definitions.state, asyncio.get_running_loop().time()
        unheard = self._silence.since_s.keys()
        for entry in list(self._ownership.review(state.pipelines, state.members.members, unheard, now_s)):
            names = {replica: member.name for replica, member in state.members.members.items()}
            log.info("pipeline %s: %s runs it from now on", entry.name, names[entry.owner])
            await self._definitions.command(entry)

    async def _end_runs(self) -> None:
        """Stop what is not to run here, or not like this; see to what has ended by itself."""
        for name, run in list(self._runs.items()):
            now = self._pipelines.get(name)
            if run.code is not None:
                await self._ended(name, run)
                del self._runs[name]
            elif now is None or not self._is_mine(now) or not _is_same(now, run.pipeline):
                run.stop()

    async def _ended(self, name: str, run: Run) -> None:
        log.info("pipeline %s: its supervisor ended with status %d %s", name, run.code, run.error)
        now = self._pipelines.get(name)
        if now is not None and now.runs and now.version != run.pipeline.version:
            # Somebody asked for it: at once.
            self._pauses.pop(name, None)
        if run.is_stopping or now is None or now.fence != run.pipeline.fence:
            return
        reasons = {_ENDED: "its queries have ended", _GAVE_UP: run.error, _WRONG: run.error}
        if run.code in reasons:
            with suppress(LocalError):
                await self._definitions.command(FailPipeline(name, now.epoch, reasons[run.code]))

    def _is_mine(self, pipeline: Pipeline) -> bool:
        return pipeline.runs and pipeline.owner == self._replicas.replica

    async def _begin(self, name: str) -> None:
        """Start a supervisor for a pipeline of this node that has none."""
        pipeline, now_s = self._pipelines.get(name), asyncio.get_running_loop().time()
        if pipeline is None or name in self._runs or not self._is_mine(pipeline):
            return
        pause_s, began_s = self._pauses.get(name, (0.0, float("-inf")))
        if now_s - began_s > _STEADY_S:
            pause_s = 0.0
        if now_s - began_s < pause_s:
            return
        self._pauses[name] = min(max(2 * pause_s, _PAUSE_S_LEAST), _PAUSE_S_MOST), now_s
        await self._definitions.command(OwnPipeline(name, pipeline.epoch, self._replicas.replica))
        pipeline = self._pipelines[name]
        place = Place.of(self._data, pipeline)
        try:
            await asyncio.to_thread(place.prepare, pipeline, self._definitions.state.members.cluster)
        except LocalError as error:
            await self._definitions.command(FailPipeline(name, pipeline.epoch, str(error)))
            return
        if not pipeline.has_begun:
            await self._definitions.command(BeginPipeline(name, pipeline.epoch))
        run = self._runs[name] = Run(pipeline, lambda report: self._tell(pipeline, report))
        # An entry of this node that was sent since then is in the log.
        self._renewed_s = max(self._renewed_s, now_s)
        run.start(self._config.pipelines, place, self._urls(), self._renewed_s + LEASE_S)

    def _urls(self) -> str:
        """Addresses for the driver: as configured, or those of this node and of the others."""
        if self._config.pipelines.urls:
            return self._config.pipelines.urls
        members = self._definitions.state.members.members
        mine = self._replicas.replica
        found = [members[one].http for one in sorted(members, key=lambda one: (one != mine, one))]
        return ",".join(f"http://{address}" for address in found if address)

    async def _renew(self) -> None:
        """Say that this node is there, as long as it owns anything, and let its supervisors know."""
        loop = asyncio.get_running_loop()
        while True:
            if not any(one.owner == self._replicas.replica for one in self._pipelines.values()):
                await self._definitions.next_change()
                continue
            sent_s = loop.time()
            with suppress(LocalError):
                await self._definitions.command(RenewPipelines(self._replicas.replica))
                self._renewed_s = max(self._renewed_s, sent_s)
                for run in self._runs.values():
                    run.renewed(self._renewed_s + LEASE_S)
            await asyncio.sleep(RENEW_S)

    # ------------------------------------------------------------------------------------- reports

    def _tell(self, pipeline: Pipeline, report: Report) -> None:
        """What a supervisor of this node said, for all nodes."""
        report.place = f"{self._config.node.id}:{Place.of(self._data, pipeline).directory}/driver.log"
        told = PipelineTold(
            pipeline.spec.name,
            pipeline.number,
            pipeline.epoch,
            pipeline.version,
            msgspec.json.encode(report),
        )
        for replica in self._definitions.state.members.members:
            if replica != self._replicas.replica:
                self._replicas.messenger.send(replica, told)
        self._keep(told)

    def _on_told(self, replica: str, number: int, told: PipelineTold) -> None:
        try:
            self._keep(told)
        except msgspec.MsgspecError as error:
            raise MalformedPacket(f"a report of a pipeline that cannot be read: {error}") from None

    def _keep(self, told: PipelineTold) -> None:
        known = self._pipelines.get(told.name)
        if known is None or known.number != told.number or told.epoch < known.epoch:
            return
        report = msgspec.to_builtins(REPORTS.decode(told.report))
        self._told[told.name] = {
            **report,
            "epoch": told.epoch,
            "version": told.version,
            "name": told.name,
            "time_us": self._wall_us(),
        }
        self._publish_sys({f"$SYS/pipelines/{told.name}": json.dumps(self.shown(told.name))})

    def _forget_deleted(self) -> None:
        for name in self._told.keys() - self._pipelines.keys():
            del self._told[name]
            self._publish_sys({f"$SYS/pipelines/{name}": ""})

    def shown(self, name: str) -> dict[str, Any]:
        """A pipeline of the cluster for people, without what its definition may keep secret."""
        pipeline = self._definitions.state.pipelines.named(name)
        report = self._told.get(name, {})
        # An older run says that it stops, or still runs, when another one is wanted.
        is_current = (report.get("epoch"), report.get("version")) == (pipeline.epoch, pipeline.version)
        state, error = report.get("state", "starting") if is_current else "starting", report.get("error", "")
        members = self._definitions.state.members.members
        owner = members.get(pipeline.owner)
        if not pipeline.is_wanted:
            state, error = "stopped", ""
        elif pipeline.failure:
            state, error = "failed", pipeline.failure
        elif owner is None:
            state, error = "waiting", self._why_nowhere(pipeline)
        elif not is_current:
            error = ""
        elif state == "stopped":
            # Nobody asked for that: it is started again, or given up in a moment.
            state = "waiting"
        return {
            "name": name,
            "time_us": report.get("time_us", self._wall_us()),
            "state": state,
            "restarts": report.get("restarts", 0),
            "error": error,
            "queries": report.get("queries", []),
            "place": report.get("place", ""),
            "restart": "",
            "ui": report.get("ui", "") if is_current and state == "running" else "",
            "is_declared": True,
            "node": "" if owner is None else owner.name,
            "epoch": pipeline.epoch,
            "version": pipeline.version,
            "resets": pipeline.resets,
        }

    def _why_nowhere(self, pipeline: Pipeline) -> str:
        members = self._definitions.state.members.members.values()
        able = [one.name for one in members if one.runs_pipelines]
        if not able:
            return NOWHERE
        wanted = pipeline.spec.node
        if wanted and wanted not in able:
            return (
                f"node {wanted} does not run pipelines, or is not there; these do: {', '.join(sorted(able))}"
            )
        return "no node that may run it is there"

    # ------------------------------------------------------------------------------------ commands

    def rows(self) -> list[dict[str, Any]]:
        """The last reports of all pipelines that are known here, by name."""
        found = {**self.reports, **{name: self.shown(name) for name in self._pipelines}}
        return [row for _, row in sorted(found.items())]

    def last_lines(self, name: str) -> dict[str, Any]:
        """The end of the driver's log, and where the whole of it is."""
        report = self._told.get(name, {}) if name in self._pipelines else self.reports.get(name, {})
        return {
            "name": name,
            "time_us": report.get("time_us", 0),
            "place": report.get("place", ""),
            "lines": report.get("log", []),
        }

    def names(self) -> Set[str]:
        """Of the pipelines that the cluster holds."""
        return self._pipelines.keys()

    def named(self, name: str) -> Pipeline:
        return self._definitions.state.pipelines.named(name)

    async def put(self, spec: PipelineSpec, text: str, user: str, *, create_only: bool) -> None:
        """Make a pipeline or upgrade one; LocalError says why not."""
        complaint = await asyncio.to_thread(wrong_text, spec.file, text)
        if complaint is not None:
            raise LocalError(complaint)
        members = self._definitions.state.members
        if not members.understand(Feature.PIPELINES):
            raise LocalError("pipelines of the cluster need all nodes to be upgraded first")
        able = [member.name for member in members.members.values() if member.runs_pipelines]
        if not able:
            raise LocalError(NOWHERE)
        if spec.node and spec.node not in able:
            members.by_name(spec.node)
            raise LocalError(
                f"node {spec.node} does not run pipelines: set pipelines.run = true in its configuration"
            )
        await self._definitions.command(PutPipeline(spec, text, user, create_only))

    async def steer(self, name: str, order: Steer) -> None:
        await self._definitions.command(SteerPipeline(name, order))

    async def delete(self, name: str) -> None:
        await self._definitions.command(DeletePipeline(name))


def _is_same(now: Pipeline, run: Pipeline) -> bool:
    """Whether a run is the one that is wanted."""
    return now.fence == run.fence and now.version == run.version
