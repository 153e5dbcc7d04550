"""`millrace top`: the cluster at a glance, live."""

import contextlib
import select
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer

from millrace.cli.clusters.top_view import TABS, Picture, body, heading, screen
from millrace.cli.shared.common import AsJson, duration_s, example, print_json, single
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, ask, door
from millrace.cli.shared.tables import width
from millrace.errors import ConfigError, MillraceError

app = single()

_CLIENTS_MAX = 200
_TURN_S = 0.1
_KEYS = {b"\t": 1, b"\x1b[C": 1, b"l": 1, b"\x1b[Z": -1, b"\x1b[D": -1, b"h": -1}
_SCROLL = {b"\x1b[B": 1, b"j": 1, b"\x1b[A": -1, b"k": -1, b"\x1b[6~": 10, b" ": 10, b"\x1b[5~": -10}


@app.command(
    epilog=example("millrace top", "millrace top --once", "millrace top --every 5s --url 10.0.0.1:18831")
)
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one picture of everything and end.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="Time between two pictures.")] = "1s",
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Show nodes, streams, clients and groups, live. Keys: q ends, Tab and arrows switch and scroll."""
    every_s = duration_s(every)
    picture = _look(url)
    if json:
        print_json({"overview": picture.overview, "clients": picture.clients, "groups": picture.groups})
        return
    if once:
        _print(picture)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("top needs a terminal; --once prints one picture")
    _run(url, picture, every_s)


def _look(url: str) -> Picture:
    """Ask for everything."""
    overview = ask(url, "/v1/overview", what="the overview")
    clients = ask(url, "/v1/clients", what="clients", limit=_CLIENTS_MAX)["items"]
    groups = door(url).get("/v1/groups")["groups"]
    return Picture(overview=overview, clients=clients, groups=groups)


def _print(picture: Picture) -> None:
    fits = width()
    for line in heading(picture, fits):
        sys.stdout.write(f"{line}\n")
    for tab in TABS:
        sys.stdout.write(f"\n{tab.upper()}\n")
        for line in body(picture, tab, fits):
            sys.stdout.write(f"{line}\n")


class _Watcher:
    """Looks again and again in a thread of its own, so that keys are heard while a node is slow."""

    def __init__(self, url: str, picture: Picture, every_s: float) -> None:
        self._url, self._every_s = url, every_s
        self.picture = picture
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millrace-top", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            try:
                self.picture = _look(self._url)
            except MillraceError as error:
                self.picture = replace(self.picture, trouble=str(error))

    def stop(self) -> None:
        self._ending.set()


def _run(url: str, picture: Picture, every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    watcher = _Watcher(url, picture, every_s)
    tab = first = 0
    try:
        with _keys_unbuffered(), Live(console=Console(), screen=True, auto_refresh=False) as live:
            shown: list[str] = []
            while True:
                columns, rows = shutil.get_terminal_size()
                lines = screen(watcher.picture, TABS[tab], first, columns, rows)
                if lines != shown:
                    shown = lines
                    live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
                key = _key()
                if key in (b"q", b"Q", b"\x1b", b"\x04"):
                    return
                if key in _KEYS:
                    tab, first = (tab + _KEYS[key]) % len(TABS), 0
                last = len(body(watcher.picture, TABS[tab], columns)) - 1
                first = max(0, min(first + _SCROLL.get(key, 0), last))
    except KeyboardInterrupt:
        return
    finally:
        watcher.stop()


def _key() -> bytes:
    """The key that is pressed within a moment, as the terminal sends it; nothing otherwise."""
    import os

    ready, _, _ = select.select([sys.stdin], [], [], _TURN_S)
    return os.read(sys.stdin.fileno(), 16) if ready else b""


@contextlib.contextmanager
def _keys_unbuffered() -> Iterator[None]:
    """Hear keys at once and do not show them, for as long as this lasts."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
