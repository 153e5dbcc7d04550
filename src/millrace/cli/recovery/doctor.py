"""`millrace doctor`: what is in a data directory, what is damaged, and what the next start will do."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.shared.common import AsJson, example, print_json, single

if TYPE_CHECKING:
    from millrace.node.recovery.doctor import DirectoryReport, Finding, ShardReport

app = single()


@app.command(epilog=example("millrace doctor /var/lib/millrace", "millrace doctor ./data --json"))
def doctor(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Data directory of a node.")],
    json: AsJson = False,
) -> None:
    """Look at the data directory of a node that does not run: read every block and say what is good, what is
    damaged, and what the next start will do about it. Nothing is written.

    Exit status: 0 all is good, 1 something is wrong, or a node runs on it."""
    from millrace.node.recovery.doctor import examine

    report = examine(str(directory))
    if json:
        print_json(_plain(report))
    else:
        typer.echo("\n".join(_sentences(report)))
    if not report.is_good:
        raise typer.Exit(1)


def _plain(report: "DirectoryReport") -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(report), "good": report.is_good, "starts": report.starts}


def _sentences(report: "DirectoryReport") -> Iterator[str]:
    others = "it has no other nodes" if report.nodes == 1 else f"a cluster of {report.nodes} nodes"
    yield f"{report.directory}: node {report.identity or 'unknown'}, {others}"
    yield from map(_line, report.findings)
    for shard in report.shards:
        yield _head(shard)
        yield from (f"  {_line(finding)}" for finding in shard.findings)
    yield ""
    yield _verdict(report)


def _head(shard: "ShardReport") -> str:
    if not shard.segments:
        return f"shard {shard.shard} ({shard.holds})"
    facts = [
        f"{shard.segments} segment{'s' if shard.segments > 1 else ''}, {shard.bytes:,} bytes",
        f"entries {shard.first_index} to {shard.last_index}",
        f"offsets {shard.first_offset} to {shard.next_offset - 1}" if shard.next_offset else "no messages",
        f"term {shard.term}, vote {'for ' + shard.vote[:8] if shard.vote else 'for nobody'}",
        "no snapshot" if shard.snapshot_index is None else f"snapshot at {shard.snapshot_index}",
        "synced end unknown" if shard.synced_index is None else f"synced up to {shard.synced_index}",
    ]
    if shard.staged_bytes:
        facts.append(f"{shard.staged_rows} messages ({shard.staged_bytes:,} bytes) staged")
    return f"shard {shard.shard} ({shard.holds}): {'; '.join(facts)}"


def _line(finding: "Finding") -> str:
    then = f" At the next start: {finding.next_start}." if finding.next_start else ""
    return f"{finding.grade}: {finding.says}.{then}"


def _verdict(report: "DirectoryReport") -> str:
    if not report.starts:
        return "The node will not start: see what refuses above."
    if not report.is_good:
        return "Something is wrong; the node will start and do what is said above."
    return "All is good; the node will start."
