"""Brokers for the tests: one of each module's own, and as many more as a test starts.

Their logs are printed when they stop; pytest shows that for a test that failed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.device import Device
from e2e.processes import BrokerProcess

StartBroker = Callable[..., BrokerProcess]


@contextmanager
def _starter(directory: Path) -> Iterator[StartBroker]:
    started: list[BrokerProcess] = []

    def start(*arguments: str, under: Sequence[str] = (), **variables: str) -> BrokerProcess:
        broker = BrokerProcess(directory / f"broker-{len(started)}", *arguments, under=under, **variables)
        started.append(broker)
        return broker.wait_ready()

    try:
        yield start
    finally:
        for broker in started:
            broker.stop()
            print(f"broker {broker.process.pid}, ports {broker.ports}:\n{broker.log}")


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start brokers of this test's own."""
    with _starter(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartBroker]:
    """Start brokers that live as long as the module's tests."""
    with _starter(tmp_path_factory.mktemp("shared")) as start:
        yield start


@pytest.fixture(scope="module")
def broker(start_shared: StartBroker) -> BrokerProcess:
    """A broker with its defaults, and a WebSocket door. Tests keep to topics and names of their own."""
    return start_shared("--ws", "127.0.0.1:0", "--set", "mqtt.sys_interval_s=1")


@pytest.fixture
def devices() -> Iterator[Callable[..., Device]]:
    """Make clients; those still there at the end are closed."""
    made: list[Device] = []

    def make(port: int, **options: object) -> Device:
        device = Device(port, **options)  # type: ignore[arg-type]
        made.append(device)
        return device

    yield make
    for device in made:
        device.close()
