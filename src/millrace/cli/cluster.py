"""`millrace cluster`: a local cluster in the foreground."""

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.common import example, family

app = family("Several nodes on this machine.")


@app.command(epilog=example("millrace cluster up", "millrace cluster up --nodes 5 --data /tmp/cluster"))
def up(
    nodes: Annotated[int, typer.Option(min=1, max=9, help="How many nodes.")] = 3,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Data of all nodes.")] = Path("millrace-cluster"),
    base_port: Annotated[
        int, typer.Option(min=1024, max=65_000, help="Node i has MQTT at base + 10 i, HTTP 1, peer 2 above.")
    ] = 18830,
) -> None:
    """Run a cluster until Ctrl-C; what it keeps is in the data directory and comes back next time."""
    import asyncio
    import sys

    from millrace.local_cluster import LocalCluster

    def show(node: str, line: str) -> None:
        sys.stdout.write(f"{node}  {line}\n")
        sys.stdout.flush()

    async def run() -> None:
        data.mkdir(parents=True, exist_ok=True)
        async with LocalCluster(nodes, data, base_port, on_line=show) as cluster:
            for node in cluster.nodes:
                show(node.name, f"serves MQTT on {node.url}, HTTP on {node.http_url}")
            show("all", "Ctrl-C stops the cluster")
            await asyncio.Event().wait()

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        show("all", "stopped")
