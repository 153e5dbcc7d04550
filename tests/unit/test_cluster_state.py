"""What a local cluster remembers, whose ports are taken by whom, and how its logs are put together."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.local_cluster import logs, state
from millrace.local_cluster.ports import check_free
from millrace.local_cluster.supervisor import next_number
from millrace.node.doors.port_holder import holder

NODE = state.NodeRecord(name="n1", number=0, state="running", mqtt="h:1", http="h:2", peer="h:3")


def test_a_process_that_got_the_id_of_another_is_not_taken_for_it() -> None:
    ours = state.process(os.getpid())
    assert ours.is_running
    assert not state.Process(pid=ours.pid, started="another time").is_running
    ended = subprocess.Popen([sys.executable, "-c", ""])
    mark = state.process(ended.pid)
    ended.wait()
    assert not mark.is_running


def test_the_record_is_found_by_name_here_and_as_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="millrace cluster up"):
        state.find(None)
    record = state.ClusterRecord(base_port=2000, nodes=(NODE,), supervisor=state.process(os.getpid()))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    state.write(elsewhere, record)
    state.remember(elsewhere)
    assert state.find(None) == (elsewhere, record)
    state.DEFAULT_DIRECTORY.mkdir()
    state.write(state.DEFAULT_DIRECTORY, record)
    assert state.find(None) == (state.DEFAULT_DIRECTORY, record)
    with pytest.raises(ConfigError, match="there is no local cluster in nowhere"):
        state.find(Path("nowhere"))


def test_the_number_of_a_removed_node_is_not_given_again(tmp_path: Path) -> None:
    for name in ("n1", "n4"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "FORMAT").touch()
    assert next_number(tmp_path, [0]) == 4
    assert next_number(tmp_path / "empty", []) == 0


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells who has a port")
def test_who_has_a_port_is_said() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert f"process {os.getpid()} (" in (holder(port) or "")
        with pytest.raises(ConfigError, match=rf"port {port} is taken by process {os.getpid()}.*--base-port"):
            check_free([port])
    assert holder(port) is None
    check_free([port])


def test_the_last_lines_of_several_logs_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    for name, second in (("n1", 1), ("n2", 0)):
        file = logs.LogFile(tmp_path, name)
        for line in range(2):
            file.write(f"2026-11-18 02:00:0{second + 2 * line}.000 warning millrace.{name}: {line}")
        file.write("Traceback that has no time")
        file.close()
    shown = logs.tail(tmp_path, ["n1", "n2"], 4)
    assert [(name, line[:3]) for name, line in shown] == [
        ("n2", "202"),
        ("n2", "Tra"),
        ("n1", "202"),
        ("n1", "Tra"),
    ]


@pytest.mark.parametrize(
    ("line", "is_quiet"),
    [
        ("2026-11-18 02:00:00.000 info    millrace.node: mqtt on port 1", True),
        ("2026-11-18 02:00:00.000 warning millrace.node: disk is full", False),
        ('{"time": "x", "node": "n1", "level": "info", "message": "x"}', True),
        ("millrace n1 ready: mqtt=1", True),
        ("Traceback (most recent call last):", False),
    ],
)
def test_only_what_matters_is_shown_in_the_foreground(line: str, is_quiet: bool) -> None:
    assert logs.is_quiet(line) is is_quiet
