"""`millrace demo`: run a story and see what it proves."""

from typing import Annotated

import typer

from millrace.cli.shared.common import example, single
from millrace.errors import ConfigError

app = single()

# Each with what it shows and about how long it takes.
STORIES = {
    "basic": ("one broker killed amid QoS 2: nothing lost, nothing twice", "10 s"),
    "replication": ("publish at one node, receive at all the others", "15 s"),
    "failover": ("the leader is killed under load; the others go on", "20 s"),
    "membership": ("a node joins, takes part and leaves", "15 s"),
    "election": ("who leads, and what time-outs have to do with it", "20 s"),
    "pipeline": ("devices to Spark and back through two kills; needs Java", "2 min"),
    "leaderless": ("three nodes without a leader share the work of groups", "30 s"),
    "routed": ("no leader, no log: a session moves between nodes", "15 s"),
    "primary-backup": ("a pair of nodes with an edge function; the primary dies", "40 s"),
}


def _help() -> str:
    lines = [f"  {name:15}{shows} ({time})" for name, (shows, time) in STORIES.items()]
    return (
        "Run a demo: real processes, a log that reads like a story, and a check at the end.\n\n"
        "\b\nDemos, and about how long each takes:\n" + "\n".join(lines)
    )


@app.command(
    help=_help(), epilog=example("millrace demo", "millrace demo failover", "millrace demo pipeline --keep")
)
def demo(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The demo.")] = "basic",
    keep: Annotated[
        bool, typer.Option("--keep", help="Go on at the end, with the dashboard, until Ctrl-C.")
    ] = False,
) -> None:
    """Run a demo."""
    if name not in STORIES:
        raise ConfigError(f"there is no demo {name!r}; there are: {', '.join(STORIES)}")
    import asyncio
    import logging
    from importlib import import_module

    # The story tells what happens; the library's own lines would only say it again.
    logging.getLogger("millrace").setLevel(logging.ERROR)
    from millrace.lab.demo.story import perform

    module = import_module(f"millrace.lab.demo.{name.replace('-', '_')}")
    asyncio.run(perform(module.run, keep=keep))
