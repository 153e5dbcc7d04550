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
    import signal
    import sys

    from millrace.local_cluster import LocalCluster

    def show(node: str, line: str) -> None:
        sys.stdout.write(f"{node}  {line}\n")
        sys.stdout.flush()

    async def run() -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        data.mkdir(parents=True, exist_ok=True)
        cluster = LocalCluster(nodes, data, base_port, on_line=show)
        starting = asyncio.create_task(cluster.start())
        asked = asyncio.create_task(stopping.wait())
        try:
            # Also while the nodes start: nothing may be left running behind us.
            await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.is_set():
                await starting
                for node in cluster.nodes:
                    show(node.name, f"serves MQTT on {node.url}, HTTP on {node.http_url}")
                show("all", f"others join with --set cluster.secret_file={cluster.secret_file}")
                show("all", "Ctrl-C stops the cluster")
                await stopping.wait()
        finally:
            starting.cancel()
            asked.cancel()
            await asyncio.gather(starting, asked, return_exceptions=True)
            await cluster.stop()
            show("all", "stopped")

    asyncio.run(run())
