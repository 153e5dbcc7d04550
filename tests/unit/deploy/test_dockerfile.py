"""The commands of deploy/Dockerfile work: its build and its installation, run by hand in a fresh environment.

The parts with apt and npm are left to an engine; the dashboard is the one that `make setup` built.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import until

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")

pytestmark = pytest.mark.slow


def instruction(pattern: str) -> str:
    """The rest of the one line that begins so."""
    (found,) = re.findall(rf"^{pattern}(.*)$", TEXT, re.M)
    return str(found)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The bin folder of an environment into which the Dockerfile's commands installed the program."""
    work = tmp_path_factory.mktemp("image")
    source = work / "source"
    source.mkdir()
    for name in instruction("COPY (?=pyproject)").removesuffix(" ./").split():
        shutil.copy(ROOT / name, source)
    unwanted = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=unwanted)
    subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], check=True)
    folder = work / "venv" / "bin"
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    build = instruction("RUN (?=python -m pip wheel)").replace("/wheels", str(work / "wheels"))
    subprocess.run(build, shell=True, cwd=source, env=environment, check=True)
    install = instruction("RUN (?=python -m pip install)").partition("&&")[0]
    subprocess.run(install.replace("/wheels", str(work / "wheels")), shell=True, env=environment, check=True)
    yield folder
    shutil.rmtree(work, ignore_errors=True)


def test_the_program_starts_with_the_settings_of_the_image(installed: Path, tmp_path: Path) -> None:
    settings = dict(word.split("=", 1) for word in instruction("ENV ").split())
    command = [installed / "millrace", *json.loads(instruction('CMD (?=\\["start)'))]
    ports = {"MILLRACE_LISTENERS__MQTT": "127.0.0.1:0", "MILLRACE_LISTENERS__HTTP": "127.0.0.1:0"}
    assert settings.keys() >= ports.keys()
    environment = {**os.environ, **settings, **ports, "MILLRACE_NODE__DATA": str(tmp_path / "data")}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=output, stderr=output)
    try:
        until(lambda: " ready: " in log.read_text(), "the node is ready", timeout_s=60)
        port = re.search(r"ready: .*http=(\d+)", log.read_text())
        assert port is not None
        health = re.search(r'CMD (\["python".*\])$', TEXT, re.M)
        assert health is not None
        words = [word.replace("18831", port[1]) for word in json.loads(health[1])]
        subprocess.run([installed / words[0], *words[1:]], check=True, timeout=30)
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/livez", timeout=10) as answer:
            assert answer.status == 200
    finally:
        process.terminate()
        assert process.wait(30) == 0
