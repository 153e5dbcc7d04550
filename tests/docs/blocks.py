"""The code blocks of a Markdown page, and how each is to be run.

A block in the language `console` shows commands, each after `$ `, and under each what it prints. A block in
the language `python` is a program. A comment right above a block says more about it:

    <!-- run: no, it needs three machines -->         it is not run, and why
    <!-- run: terminal 2 -->                          its commands are typed into another terminal
    <!-- run: terminal 2, until "text" -->            its last command goes on; the text says that it is ready
    <!-- run: terminal 2, until 1 client at 18831 --> likewise, when so many clients have subscribed
    <!-- run: terminal 2 shows -->                    no commands: what that terminal has printed meanwhile
    <!-- run: interrupt 2 -->                         Ctrl-C in that terminal, before the block that follows
"""

import re
from dataclasses import dataclass

_FENCE = re.compile(
    r"(?P<notes>(?:^<!-- run: [^\n]* -->\n+)*)^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)
_NOTE = re.compile(r"<!-- run: (.*?) -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command with the output that the page shows; no command: what a terminal has printed meanwhile."""

    command: str | None
    output: str


@dataclass(slots=True, kw_only=True)
class Block:
    language: str
    body: str
    start: int
    end: int
    line: int
    why_not: str = ""
    terminal: int = 1
    ready: str = ""
    ready_clients: tuple[int, int] | None = None
    is_only_shown: bool = False
    interrupts: int = 0

    @property
    def steps(self) -> list[Step]:
        if self.is_only_shown:
            return [Step(command=None, output=self.body)]
        found: list[tuple[list[str], list[str]]] = []
        for line in self.body.splitlines():
            if line.startswith("$ "):
                found.append(([line[2:]], []))
            elif (line == ">" or line.startswith("> ")) and found and not found[-1][1]:
                found[-1][0].append(line[2:])
            elif found:
                found[-1][1].append(line)
            else:
                raise ValueError(f"line {self.line}: a console block begins with a command after `$ `")
        return [Step(command="\n".join(words), output="".join(f"{o}\n" for o in out)) for words, out in found]


def blocks(text: str) -> list[Block]:
    """All code blocks of a page, in their order."""
    found = []
    for match in _FENCE.finditer(text):
        block = Block(
            language=match["language"],
            body=match["body"],
            start=match.start("body"),
            end=match.end("body"),
            line=text.count("\n", 0, match.start("body")) + 1,
        )
        for note in _NOTE.findall(match["notes"]):
            _apply(block, note)
        found.append(block)
    return found


def _apply(block: Block, note: str) -> None:
    if note.startswith("no, "):
        block.why_not = note[4:]
    elif match := re.fullmatch(r"interrupt (\d)", note):
        block.interrupts = int(match[1])
    elif match := re.fullmatch(r"terminal (\d)( shows)?(?:, until \"(.+)\")?", note):
        block.terminal, block.is_only_shown, block.ready = int(match[1]), bool(match[2]), match[3] or ""
    elif match := re.fullmatch(r"terminal (\d), until (\d+) clients? at (\d+)", note):
        block.terminal, block.ready_clients = int(match[1]), (int(match[2]), int(match[3]))
    elif match := re.fullmatch(r"until \"(.+)\"", note):
        block.ready = match[1]
    else:
        raise ValueError(f"line {block.line}: unknown note: run: {note}")


def shape(output: str) -> list[str]:
    """What must not change in an output: its words, not its numbers, times, random names and widths."""
    lines = []
    for line in output.splitlines():
        plain = re.sub(r"\b(?=\w*\d)[0-9a-f]{8,}\b", "#", line)
        plain = re.sub(r"\d[\d,.:TZ-]*", "#", plain)
        plain = re.sub(r"[-─━]{3,}", "---", plain)
        lines.append(" ".join(plain.split()))
    return [line for line in lines if line]
