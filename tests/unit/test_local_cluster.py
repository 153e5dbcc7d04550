"""Ports for processes that come and go, and what those processes say."""

import asyncio
import sys
from pathlib import Path

from millrace.local_cluster import NodeProcess, PortBlock

# One line longer than a reader of lines holds, then more than a pipe does.
TALKATIVE = """
print("a" * 140_000)
for number in range(20_000):
    print("line", number)
"""
PATIENCE_S = 20.0


def test_two_who_look_for_ports_at_once_never_get_the_same() -> None:
    blocks = [PortBlock() for _ in range(3)]
    taken = [block.take() for block in blocks for _ in range(2)]
    for block in blocks:
        block.close()
    assert len(set(taken)) == 6
    assert len({port // 100 for port in taken}) == 3


def test_a_node_that_says_a_very_long_line_is_heard_to_its_end(tmp_path: Path) -> None:
    """Unread, its output would stop it at the next line."""

    async def scenario() -> None:
        said: list[str] = []
        node = NodeProcess(
            0, tmp_path, 1, tmp_path / "secret", join=None, on_line=lambda _, text: said.append(text)
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", TALKATIVE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                await node._read(process.stdout)
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        assert said[-1] == "line 19999"
        assert "too long" in said[0]

    asyncio.run(scenario())
