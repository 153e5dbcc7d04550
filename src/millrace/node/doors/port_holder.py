"""Which process listens on a port of this machine, so that an error can name it.

Linux tells it in /proc; elsewhere, and for processes of another user, nothing is known.
"""

import os
from pathlib import Path

_LISTENING = "0A"
_COMMAND_CHARACTERS = 60


def holder(port: int, root: Path = Path("/proc")) -> str | None:
    """The process that listens on the port, as `process 4711 (millrace start --data x)`; None if unknown."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port, root)}
    if not sockets:
        return None
    for process in sorted(root.iterdir()):
        if process.name.isdigit() and sockets & _open_files(process):
            return f"process {process.name} ({_command(process)})"
    return None


def _listening(port: int, root: Path) -> set[str]:
    """The inodes of the sockets that listen on the port."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (root / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _open_files(process: Path) -> set[str]:
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            found.add(os.readlink(descriptor))
    except OSError:
        # It ended meanwhile, or belongs to somebody else.
        pass
    return found


def _command(process: Path) -> str:
    """Its command line as a person would write it: `millrace start`, not the interpreter and its module."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").strip("\0").split("\0")
    except OSError:
        return "its name is not known"
    if "millrace.cli.main" in words:
        words = ["millrace", *words[words.index("millrace.cli.main") + 1 :]]
    elif len(words) > 1 and Path(words[1]).name == "millrace":
        words = ["millrace", *words[2:]]
    else:
        words[0] = Path(words[0]).name
    text = " ".join(words)
    return text if len(text) <= _COMMAND_CHARACTERS else f"{text[: _COMMAND_CHARACTERS - 3]}..."
