"""`primary-backup`: a stream of two nodes with an edge function; the primary is killed in the middle."""

from millrace.lab.campaign.pair_run import Beat, Outcome, PairRun, create_stream
from millrace.lab.demo.stage import cluster_of
from millrace.lab.demo.story import Story

_BEFORE_S, _AFTER_S = 12.0, 10.0
_INTERVAL_S = 0.25
_COLUMNS = 60
_MODULE = "millrace.lab.demo.edge_busy"


async def run(story: Story) -> None:
    story.title("Primary and backup, an edge function of 50-150 ms, and kill -9 for the primary")
    story.say("stage", "two nodes keep the stream, the third is there for a majority")
    async with cluster_of(story, 3, options=("--set", f"edge.modules={_MODULE}")) as cluster:
        await create_stream(cluster, {"check_interval_ms": 1000}, edge=f"{_MODULE}:work")
        beats = (Beat(keep_last=40),)
        work = PairRun(cluster, interval_s=_INTERVAL_S, beats=beats, say=story.say)
        outcome = await work.run(1, before_s=_BEFORE_S, after_s=_AFTER_S)
    _tell(story, outcome)
    story.proved(
        {
            f"all {outcome.published} messages arrived": not outcome.lost,
            "none came twice": outcome.doubled == 0,
            "the backup took over": "backup" in outcome.sources,
        }
    )


def _tell(story: Story, outcome: Outcome) -> None:
    story.title("What the subscriber saw")
    story.say("published", str(outcome.published))
    story.say("delivered", str(len(outcome.arrived)))
    story.say("doubled", str(outcome.doubled))
    story.say("lost", str(len(outcome.lost)))
    story.say("longest", f"gap of {outcome.longest_gap_s:.2f} s between two messages")
    story.title(
        "Latency, one column for some messages in a row (the slowest of them), from 0 to the top line"
    )
    for line in picture(outcome):
        story.say("", line)


def picture(outcome: Outcome) -> list[str]:
    """Bars from left to right in the order of publishing; the scale is logarithmic, decades of seconds."""
    numbers = sorted(outcome.arrived)
    width = max(1, -(-len(numbers) // _COLUMNS))
    slowest = [
        max(outcome.arrived[number] for number in numbers[start : start + width])
        for start in range(0, len(numbers), width)
    ]
    lines = []
    for label_s in (10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02):
        bars = "".join("█" if took_s >= label_s else " " for took_s in slowest)
        lines.append(f"{label_s:5.2f} s |{bars}")
    return [*lines, "        +" + "-" * len(slowest)]
