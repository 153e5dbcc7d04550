"""URLs: what they mean, what is refused, and that a password never shows."""

import pytest

from millrace.client.connection.address import BrokerAddress, parse
from millrace.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mqtt://h", BrokerAddress(scheme="mqtt", host="h", port=1883)),
        ("mqtts://h", BrokerAddress(scheme="mqtts", host="h", port=8883)),
        ("ws://h", BrokerAddress(scheme="ws", host="h", port=80, path="/")),
        ("wss://h/mqtt", BrokerAddress(scheme="wss", host="h", port=443, path="/mqtt")),
        ("ws://h:9001/a?b=c", BrokerAddress(scheme="ws", host="h", port=9001, path="/a?b=c")),
        ("mqtt://[::1]:1", BrokerAddress(scheme="mqtt", host="::1", port=1)),
        ("mqtt://127.0.0.1:1884/", BrokerAddress(scheme="mqtt", host="127.0.0.1", port=1884)),
        (
            "mqtt://ann:p%40ss%2Fword@h",
            BrokerAddress(scheme="mqtt", host="h", port=1883, username="ann", password="p@ss/word"),
        ),
        ("mqtt://ann@h", BrokerAddress(scheme="mqtt", host="h", port=1883, username="ann")),
    ],
)
def test_a_url_is_taken_apart(url: str, expected: BrokerAddress) -> None:
    assert parse(url) == expected


def test_the_text_of_an_address_is_a_url_without_credentials() -> None:
    address = parse("wss://ann:secret@[::1]:9443/mqtt")
    assert str(address) == "wss://[::1]:9443/mqtt"
    assert "secret" not in repr(address)
    assert address.tls and address.websocket


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:1883",
        "http://h",
        "mqtt:h",
        "mqtt://",
        "mqtt://:1883",
        "mqtt://h:0",
        "mqtt://h:65536",
        "mqtt://h:secret",
        "mqtt://ann:sec/ret@h",
        "mqtt://ann:sec#ret@h",
        "mqtt://h/path",
        "mqtt://h?x=secret",
        "ws://h/#secret",
        "mqtt://[::1",
    ],
)
def test_a_wrong_url_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(url)
    assert "sec" not in str(error.value)
