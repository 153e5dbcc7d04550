"""The pytest fixture that comes with the package: a broker for a test, from its entry point."""

from importlib.metadata import entry_points

from millrace.client import blocking
from millrace.testing import ThreadedBroker


def test_the_fixture_is_found_by_its_entry_point() -> None:
    assert [one.value for one in entry_points(group="pytest11", name="millrace")] == ["millrace.testing"]


def test_a_test_gets_a_broker_of_its_own(millrace_broker: ThreadedBroker) -> None:
    with blocking.Client(millrace_broker.url) as client, client.subscribe("mine/#", qos=1) as messages:
        client.publish("mine/a", b"1", qos=1)
        assert messages.get(10.0).payload == b"1"


def test_another_test_gets_another_one(millrace_broker: ThreadedBroker) -> None:
    with blocking.Client(millrace_broker.url) as client:
        client.publish("kept", b"1", retain=True)
    with ThreadedBroker() as other:
        assert other.port != millrace_broker.port
