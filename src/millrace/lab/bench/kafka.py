"""Apache Kafka as a peer of the Spark benchmark: jars from Maven, one broker on the loopback.

Nothing of Kafka is part of this package; `maven` fetches it.

The broker runs as it comes: one node that is its own controller, and flushes left to the operating system.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from millrace.errors import LocalError
from millrace.lab.bench import maven
from millrace.lab.bench.maven import Artifact
from millrace.lab.bench.peers import Broker, Ports

KAFKA = "kafka"
KAFKA_TUNED = "kafka-tuned"
SPARK_PEERS = (KAFKA, KAFKA_TUNED)

_FORMAT_S_MAX = 60
_HOST = "127.0.0.1"
_CLUSTER_ID = "bWlsbHJhY2UtYmVuY2gtMQ"


BROKER = (Artifact("org.apache.kafka", "kafka_2.13", "4.1.0"),)
# Spark's connector wants libraries that Spark has: only these four jars go beside it.
CONNECTOR = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
)

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
    """Kafka's storage cannot be made; one line says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaJars:
    broker: Path
    """A directory with the jars of the broker."""
    connector: tuple[Path, ...]
    """The jars that Spark needs to speak to it."""


def fetch_jars() -> KafkaJars | None:
    """The jars, fetched on first use; None where there is no `mvn`."""
    broker = maven.fetch(BROKER)
    connector = maven.fetch(CONNECTOR, alone=True)
    if broker is None or connector is None:
        return None
    return KafkaJars(broker=broker, connector=tuple(sorted(connector.glob("*.jar"))))


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
