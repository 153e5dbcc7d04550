"""Jars of others, fetched by `mvn` for benchmarks and tests; none of them is part of this package.

`mvn` resolves artifacts, as it is configured on this machine, into a directory of the user's cache whose name
holds the hash of what was asked for. The directory is filled aside and renamed: two programs that start at
once both find a whole one.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from millrace.errors import LocalError
from millrace.lab.bench.generator import cache_directory

_FETCH_S_MAX = 900
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class MavenError(LocalError):
    """Jars cannot be had; one line says why."""


class Artifact(NamedTuple):
    group: str
    name: str
    version: str


def pom(artifacts: Sequence[Artifact], *, alone: bool) -> str:
    """A project that depends on these; `alone`: on nothing that they depend on."""
    wanted = "".join(
        f"<dependency><groupId>{one.group}</groupId><artifactId>{one.name}</artifactId>"
        f"<version>{one.version}</version>{_ALONE if alone else ''}</dependency>"
        for one in artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>millrace</groupId><artifactId>bench</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{wanted}</dependencies></project>\n"
    )


def fetch(artifacts: Sequence[Artifact], *, alone: bool = False) -> Path | None:
    """A directory with their jars, fetched on first use; None where there is no `mvn`. MavenError where they
    cannot be had."""
    program = shutil.which("mvn")
    if program is None:
        return None
    project = pom(artifacts, alone=alone)
    target = cache_directory(dict(os.environ)) / f"jars-{hashlib.sha256(project.encode()).hexdigest()[:16]}"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as aside:
        file, jars = Path(aside) / "pom.xml", Path(aside) / "jars"
        file.write_text(project, encoding="utf-8")
        command = [program, "-q", "-B", "-f", str(file), "dependency:copy-dependencies"]
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={jars}"],
                capture_output=True,
                text=True,
                timeout=_FETCH_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MavenError(f"mvn did not bring {artifacts[0].name} within {_FETCH_S_MAX} s") from error
        if done.returncode or not jars.is_dir():
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
            said = lines[0] if lines else done.stderr.strip()
            raise MavenError(f"mvn could not fetch {artifacts[0].name}: {said}")
        jars.rename(target)
    return target
