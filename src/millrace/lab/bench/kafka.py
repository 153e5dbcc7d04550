"""Apache Kafka as a peer of the Spark benchmark: jars from Maven, one broker on the loopback.

Nothing of Kafka is part of this package. `mvn` resolves the artifacts named here, as it is configured on this
machine, into a directory of the user's cache whose name holds the hash of what was asked for. The directory
is filled aside and renamed: two programs that start at once both find a whole one.

The broker runs as it comes: one node that is its own controller, and flushes left to the operating system.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from millrace.errors import LocalError
from millrace.lab.bench.generator import cache_directory
from millrace.lab.bench.peers import Broker, Ports

KAFKA = "kafka"
KAFKA_TUNED = "kafka-tuned"
SPARK_PEERS = (KAFKA, KAFKA_TUNED)

_FETCH_S_MAX = 900
_FORMAT_S_MAX = 60
_HOST = "127.0.0.1"
_CLUSTER_ID = "bWlsbHJhY2UtYmVuY2gtMQ"


class Artifact(NamedTuple):
    group: str
    name: str
    version: str


BROKER = (Artifact("org.apache.kafka", "kafka_2.13", "4.1.0"),)
# Spark's connector wants libraries that Spark has: only these four jars go beside it.
CONNECTOR = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
)

_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{control}
listeners=PLAINTEXT://{host}:{load},CONTROLLER://{host}:{control}
advertised.listeners=PLAINTEXT://{host}:{load}
controller.listener.names=CONTROLLER
log.dirs={directory}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaError(LocalError):
    """Kafka's jars cannot be had, or its storage cannot be made; one line says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaJars:
    broker: Path
    """A directory with the jars of the broker."""
    connector: tuple[Path, ...]
    """The jars that Spark needs to speak to it."""


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


def fetch_jars() -> KafkaJars | None:
    """The jars, fetched on first use; None where there is no `mvn`."""
    program = shutil.which("mvn")
    if program is None:
        return None
    broker = _fetch(program, pom(BROKER, alone=False))
    connector = _fetch(program, pom(CONNECTOR, alone=True))
    return KafkaJars(broker=broker, connector=tuple(sorted(connector.glob("*.jar"))))


def _fetch(program: str, project: str) -> Path:
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
            raise KafkaError(f"mvn did not bring Kafka's jars within {_FETCH_S_MAX} s") from error
        if done.returncode or not jars.is_dir():
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise KafkaError(
                f"mvn could not fetch Kafka's jars: {lines[0] if lines else done.stderr.strip()}"
            )
        jars.rename(target)
    return target


def kafka_broker(jars: KafkaJars) -> Broker:
    """One broker, its storage made before each start."""
    start = ["java", "-Xmx1g", "-cp", f"{jars.broker}/*"]

    def command(ports: Ports, directory: Path) -> list[str]:
        file = directory / "server.properties"
        file.write_text(
            _CONFIGURATION.format(
                host=_HOST, load=ports.load, control=ports.control, directory=directory / "data"
            )
        )
        make = [*start, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(file)]
        done = subprocess.run(make, capture_output=True, text=True, timeout=_FORMAT_S_MAX, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            raise KafkaError(f"Kafka could not make its storage: {said}")
        return [*start, "kafka.Kafka", str(file)]

    return Broker(name=KAFKA, version=BROKER[0].version, command=command)
