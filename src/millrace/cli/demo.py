"""`millrace demo`: run a story and see what it proves."""

from typing import Annotated

import typer

from millrace.cli.common import example, single
from millrace.errors import ConfigError

app = single()

STORIES = (
    "basic",
    "replication",
    "failover",
    "membership",
    "election",
    "pipeline",
    "leaderless",
    "routed",
    "primary-backup",
)


@app.command(epilog=example("millrace demo", "millrace demo basic"))
def demo(name: Annotated[str, typer.Argument(help=f"One of: {', '.join(STORIES)}.")] = "basic") -> None:
    """Run a demo: real processes, a log that reads like a story, and a check at the end."""
    if name not in STORIES:
        raise ConfigError(f"there is no demo {name!r}; there are: {', '.join(STORIES)}")
    import asyncio
    import logging
    from importlib import import_module

    # The story tells what happens; the library's own lines would only say it again.
    logging.getLogger("millrace").setLevel(logging.ERROR)
    asyncio.run(import_module(f"millrace.lab.demo.{name.replace('-', '_')}").run())
