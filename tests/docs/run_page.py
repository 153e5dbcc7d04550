"""Run the commands of one page in the order printed, and compare what they print with what the page shows.

It needs a network namespace of its own, so that the ports of the page are free: `test_pages.py` starts it so.
With --rewrite the outputs are written into the page instead.
"""

import fcntl
import json
import os
import shutil
import socket
import struct
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from blocks import Block, blocks, shape  # noqa: E402
from terminals import Terminal  # noqa: E402

from waiting import until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
_COMMAND_S = 300.0
_READY_S = 60.0
# From linux/sockios.h and linux/if.h.
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41


def raise_loopback() -> None:
    """A new network namespace has a loopback interface that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))


def wait_for_subscribers(count: int, port: int) -> None:
    """Until so many clients of the node with this HTTP port have a subscription."""

    def subscribers() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/clients") as answer:
            return sum(one["subscriptions"] > 0 for one in json.load(answer)["items"])

    until(lambda: subscribers() >= count, f"{count} subscribers at {port}", _READY_S)


class PageRun:
    def __init__(self, page: Path, folder: Path) -> None:
        self._text = page.read_text()
        self._folder = folder
        self._terminals: dict[int, Terminal] = {}
        self._environment = {
            "HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "100",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
        }
        (folder / "home").mkdir()

    def run(self) -> tuple[str, list[str]]:
        """The page with the outputs of now, and in what it differs from what it was."""
        pieces, wrong, place = [], [], 0
        for block in blocks(self._text):
            if block.interrupts:
                self._terminal(block.interrupts).interrupt()
            if block.why_not or block.language not in ("console", "python"):
                continue
            body = self._python(block, wrong) if block.language == "python" else self._console(block, wrong)
            pieces += [self._text[place : block.start], body]
            place = block.end
        return "".join([*pieces, self._text[place:]]), wrong

    def _terminal(self, number: int) -> Terminal:
        if number not in self._terminals:
            self._terminals[number] = Terminal(self._folder, self._environment)
        return self._terminals[number]

    def _python(self, block: Block, wrong: list[str]) -> str:
        program = self._folder / f"block-{block.line}.py"
        program.write_text(block.body)
        status, output = self._terminal(9).run(f"python {program}", _COMMAND_S)
        if status:
            wrong.append(f"line {block.line}: the program ended with status {status}: {output}")
        return block.body

    def _console(self, block: Block, wrong: list[str]) -> str:
        terminal, body = self._terminal(block.terminal), []
        steps = block.steps
        for number, step in enumerate(steps):
            status = 0
            if step.command is None:
                output = terminal.printed(step.output.count("\n"), _READY_S)
            elif (block.ready or block.ready_clients) and number == len(steps) - 1:
                output = terminal.begin(step.command, block.ready, _READY_S)
                if block.ready_clients:
                    wait_for_subscribers(*block.ready_clients)
            else:
                status, output = terminal.run(step.command, _COMMAND_S)
            output = output.replace(str(self._folder), "/home/you")
            output = "".join(f"{line.rstrip()}\n" for line in output.strip("\n").splitlines())
            if step.command is not None:
                body.append("$ " + step.command.replace("\n", "\n> ").replace("\n> \n", "\n>\n") + "\n")
            body.append(output)
            # Nodes that start together say so in any order.
            if sorted(shape(output)) != sorted(shape(step.output)):
                shown = f"--- the page\n{step.output}--- now\n{output}"
                wrong.append(f"line {block.line}: {step.command or 'terminal'}\n{shown}")
            if status and not output.startswith("millrace:"):
                wrong.append(f"line {block.line}: {step.command}: status {status}\n{output}")
        return "".join(body)


def main(arguments: list[str]) -> int:
    page = Path(arguments[0])
    raise_loopback()
    folder = Path(tempfile.mkdtemp(prefix="millrace-page-"))
    try:
        text, wrong = PageRun(page, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if "--rewrite" in arguments:
        page.write_text(text)
        wrong = [one for one in wrong if "status" in one.splitlines()[0]]
    for one in wrong:
        sys.stderr.write(f"{page}: {one}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
