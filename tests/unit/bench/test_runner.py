"""The order of the runs, the brokers' life, the generator's build, and one small measurement for real."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from millrace.lab.bench import generator, peers, runner
from millrace.lab.bench.generator import GeneratorError
from millrace.lab.bench.patterns import BY_NAME
from millrace.lab.bench.runner import Subject
from waiting import until

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="the generator is built with gcc")


def program(text: str) -> peers.Broker:
    """A broker in a few lines of Python; its port is the first argument."""
    return peers.Broker(
        name="program", version="1", command=lambda ports, _: [sys.executable, "-c", text, str(ports.load)]
    )


def test_rounds_are_interleaved_within_a_pattern_and_nats_takes_qos_0_only() -> None:
    measured = runner.subjects([3, 5], ["c"], ["mosquitto", "nats"])
    assert [str(s) for s in measured] == [
        "millrace (c) MQTT 3.1.1",
        "millrace (c) MQTT 5",
        "mosquitto MQTT 3.1.1",
        "mosquitto MQTT 5",
        "nats",
    ]
    steps = runner.plan([BY_NAME["qos0-1to1"], BY_NAME["qos1-1to1"]], measured, rounds=2)
    assert [s for p, s in steps if p.name == "qos0-1to1"] == measured * 2
    assert [s for p, s in steps if p.name == "qos1-1to1"] == measured[:-1] * 2


def test_a_broker_that_dies_is_reported_with_its_last_words() -> None:
    dying = program("import sys; sys.exit('first line\\nno such thing')")
    with pytest.raises(peers.PeerError, match="program did not start: no such thing"), peers.running(dying):
        pass


def test_the_accounts_cover_the_processes_that_a_broker_starts_and_none_outlives_the_run() -> None:
    # The child ends with its parent, when the pipe closes.
    parent = program(
        "import socket, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "while True: s.accept()\n"
    )
    with peers.running(parent) as started:
        assert started.pids()[0] == started.process.pid and len(started.pids()) == 2
    assert started.process.poll() is not None


def test_a_failed_run_is_kept_and_the_next_one_still_happens() -> None:
    subject = Subject(broker="program", mqtt=3)
    steps = [(BY_NAME["qos0-1to1"], subject)] * 2
    unused = generator.Generator(path=Path("/nonexistent"))
    brokers: dict[tuple[str, str | None], peers.Broker] = {
        ("program", None): program("import sys; sys.exit('broken')")
    }
    samples = list(runner.run(steps, brokers, unused, seconds=0.1))
    assert [s.error for s in samples] == ["program did not start: broken"] * 2


def test_a_missing_compiler_is_one_clear_line(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(GeneratorError, match="built with gcc, which is not installed here") as caught:
        generator.build(environment)
    assert "\n" not in str(caught.value)


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = tmp_path / "cache" / "millrace"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    chosen = generator.cache_directory({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert chosen.parent == tmp_path and chosen != open_to_all
    assert chosen.stat().st_mode & 0o077 == 0


@needs_compiler
def test_the_generator_is_built_once_for_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)}
    first = generator.build(environment).path
    usage = subprocess.run([first], capture_output=True, text=True, check=False)
    assert usage.returncode == 1 and "-V MQTT version" in usage.stdout
    built_ns = first.stat().st_mtime_ns
    assert generator.build(environment).path == first and first.stat().st_mtime_ns == built_ns
    changed = generator.source() + "/* changed */\n"
    monkeypatch.setattr(generator, "source", lambda: changed)
    second = generator.build(environment).path
    assert second != first and sorted(tmp_path.glob("millrace/*")) == sorted([first, second])


@needs_compiler
def test_a_small_run_against_this_broker(tmp_path: Path) -> None:
    """The whole way: build, start a real process, load it at QoS 1, account for every message and its CPU."""
    command = [sys.executable, "-m", "millrace.cli.main", "bench", "mqtt", "--against", "", "--versions", "5"]
    chosen = ["--patterns", "qos1-one-per-read", "--rounds", "1", "--seconds", "0.2", "--kernels", "python"]
    done = subprocess.run(
        [*command, *chosen, "--json", "-"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (sample,) = json.loads(done.stdout)["samples"]
    values = sample["values"]
    assert (values["proto"], values["qos"], values["P"], values["lost"]) == ("mqtt5", 1, 50, 0)
    assert values["delivered_s"] > 0 and values["rss_kb"] > 0


def test_this_broker_is_in_memory_unless_the_pattern_is_durable() -> None:
    """As the broker itself says, asked over its control port."""
    ours, asked = peers.this_broker("python"), []

    def prepare(ports: peers.Ports, durable: bool) -> None:
        assert ours.prepare is not None
        ours.prepare(ports, durable)
        with urllib.request.urlopen(f"http://127.0.0.1:{ports.control}/v1/streams/default") as answer:
            asked.append(json.load(answer)["capture"])

    watched = dataclasses.replace(ours, prepare=prepare)
    for durable in (False, True):
        with peers.running(watched, durable=durable):
            pass
    assert asked == ["none", "acknowledged"]


@needs_compiler
def test_a_run_that_breaks_off_says_why() -> None:
    deaf = program(
        "import socket, sys\n"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "while True: s.accept()[0].close()\n"
    )
    built = generator.build()
    with peers.running(deaf) as started, pytest.raises(GeneratorError, match=r"peer closed|recv|send"):
        built.run((), port=started.port, pids=started.pids(), seconds=0.1)
    assert started.process.poll() is not None


def descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        # A thread or process may end while we look.
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{one}/task").glob("*/children"):
                found += map(int, path.read_text().split())
    return found[1:]


def test_a_wait_that_is_broken_off_leaves_no_broker_behind() -> None:
    before = descendants(os.getpid())
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt), peers.running(program("import signal; signal.pause()")):
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert set(descendants(os.getpid())) <= set(before)


@needs_compiler
def test_sigterm_ends_the_broker_and_the_generator_too() -> None:
    generator.build()  # its compiler would count as one of the two
    command = [sys.executable, "-m", "millrace.cli.main", "bench", "mqtt", "--against", "", "--seconds", "60"]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(descendants(bench.pid)) == 2, "broker and generator run", timeout_s=60)
        started = descendants(bench.pid)
    finally:
        bench.terminate()
    assert bench.wait(30) == 143
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "both are gone")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--patterns", "qos0-mixd"], "did you mean qos0-mixed?"),
        (["--against", "kafka"], "known are mosquitto, nats"),
        (["--versions", ""], "--versions is empty"),
        (["--patterns", "qos0-mixed", "--qos", "2"], "no pattern is left"),
    ],
)
def test_wrong_use_is_status_2_and_names_the_remedy(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "millrace.cli.main", "bench", "mqtt", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "") and words in done.stderr


def test_the_list_shows_patterns_with_regime_and_targets() -> None:
    command = [sys.executable, "-m", "millrace.cli.main", "bench", "mqtt", "--list", "--qos", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "qos1-one-per-read" in done.stdout and "one per read" in done.stdout
    assert "qos0-1to1" not in done.stdout and "rate >= 10x mosquitto" in done.stdout
