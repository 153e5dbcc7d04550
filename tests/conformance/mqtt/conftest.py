"""The broker under judgement: an embedded one for each module, or any that already listens.

The embedded broker has a thread of its own, so that a test which blocks or fails cannot stall it and it
cannot lend the test its scheduling. A module that needs other settings has an `endpoint` of its own.
"""

from collections.abc import Iterator

import pytest

from conformance.mqtt.raw import Endpoint, Lab

# $SYS every second, so that no test has to wait ten for it.
DEFAULTS = {"listeners__ws": "127.0.0.1:0", "mqtt__sys_interval_s": 1}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mqtt conformance")
    group.addoption("--broker-port", type=int, default=None, help="judge the broker on this loopback port")
    group.addoption("--broker-ws-port", type=int, default=None, help="its WebSocket port")
    group.addoption("--must-only", action="store_true", help="allow a close without DISCONNECT, a SHOULD")


@pytest.fixture(scope="module")
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    port = request.config.getoption("--broker-port", default=None)
    if port is None:
        from millrace.testing import ThreadedBroker

        with ThreadedBroker(**DEFAULTS) as broker:
            yield Endpoint(port=broker.port, websocket_port=broker.ports["ws"])
    else:
        websocket_port = request.config.getoption("--broker-ws-port", default=None)
        yield Endpoint(port=port, websocket_port=websocket_port)


@pytest.fixture
def lab(endpoint: Endpoint, request: pytest.FixtureRequest) -> Lab:
    must_only = request.config.getoption("--must-only", default=False)
    return Lab(endpoint, must_only=must_only)
