"""Which large packages a command may load. A list and no time: what is not loaded costs nothing anywhere."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Each takes longer to load than a short command should take in all.
WEB = ("fastapi", "starlette", "pydantic", "uvicorn", "h11", "wsproto", "anyio")
OTHERS = ("prometheus_client", "opentelemetry", "cryptography", "jwt", "multiprocessing", "email", "http")
SCIENCE = ("numpy", "pandas", "pyarrow", "pyspark", "matplotlib")
HEAVY = (*WEB, *OTHERS, *SCIENCE, "rich", "pygments")
# What the broker is made of, beside the packages above.
BROKER = ("millrace.broker.machine", "millrace.replication", "millrace.storage", "millrace.node.server")
# What a node needs only where it is configured or asked for.
UNUSED_BY_A_NODE = (
    "millrace.cli.clusters",
    "millrace.cli.messages",
    "millrace.cli.lab",
    "millrace.lab",
    "millrace.client",
    "millrace.spark",
    "millrace.node.doors.http",
    "millrace.node.doors.websocket",
)

COMMAND = """
import json, sys
from millrace.cli.main import run
sys.argv = ["millrace", *json.loads(sys.argv[1])]
status = run()
sys.stderr.write("\\n" + json.dumps([status, sorted(sys.modules)]))
"""
NODE = """
import json, os, signal, sys
from millrace.cli.main import run
loaded = []
def announced(line):
    loaded.extend(sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)
sys.argv = ["millrace", *json.loads(sys.argv[1])]
import millrace.node.loading as loading
from contextlib import contextmanager
uncollected = loading.uncollected
@contextmanager
def then_listen():
    with uncollected():
        yield
        sys.modules["millrace.node.run"].announce_on_stdout = announced
loading.uncollected = then_listen
status = run()
sys.stderr.write("\\n" + json.dumps([status, sorted(loaded)]))
"""


def loaded_by(program: str, *arguments: str, directory: Path) -> tuple[int, set[str]]:
    done = subprocess.run(
        (sys.executable, "-c", program, json.dumps(arguments)),
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    status, modules = json.loads(done.stderr.rsplit("\n", 1)[1])
    assert "millrace.cli.main" in modules
    return status, set(modules)


def among(modules: set[str], names: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(one == name or one.startswith(name + ".") for one in modules)]


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("--help",), ("start", "--help"), ("completion", "words", "--", "st")],
    ids=" ".join,
)
def test_what_only_prints_loads_no_broker(arguments: tuple[str, ...], tmp_path: Path) -> None:
    status, modules = loaded_by(COMMAND, *arguments, directory=tmp_path)
    assert status == 0
    assert among(modules, (*HEAVY, *BROKER, "asyncio")) == []


@pytest.mark.parametrize(
    "arguments",
    [("status", "--url", "http://127.0.0.1:9"), ("pub", "a", "b", "--url", "mqtt://127.0.0.1:9")],
    ids=["status", "pub"],
)
def test_a_short_command_loads_no_web_framework(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Also where it fails, for want of a node."""
    status, modules = loaded_by(COMMAND, *arguments, directory=tmp_path)
    assert status == 1
    assert among(modules, (*WEB, *SCIENCE, *BROKER[:2], "rich")) == []


def test_a_node_that_serves_has_loaded_what_it_needs(tmp_path: Path) -> None:
    """FastAPI and what belongs to it come with the first request that needs them."""
    given = ("--data", "data", "--mqtt", "127.0.0.1:0", "--http", "127.0.0.1:0")
    status, modules = loaded_by(NODE, "start", *given, directory=tmp_path)
    assert status == 0
    assert among(modules, BROKER) == list(BROKER)
    assert among(modules, (*HEAVY, *UNUSED_BY_A_NODE)) == []
