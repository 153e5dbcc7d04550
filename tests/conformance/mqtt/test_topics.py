"""Section 4.7: topic names and filters, and what matches what."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import FILTER_INVALID, MALFORMED, PROTOCOL_ERROR


async def _refused(lab: Lab, version: int, name: str) -> None:
    """The filter does not become a subscription: an error code in SUBACK, or the end of the connection."""
    client = await lab.connect(version)
    await client.send(wire.subscribe(1, (name, 0), version=version))
    try:
        seen = await client.receive()
    except AssertionError:
        return
    if seen.kind == wire.SUBACK:
        assert seen.reasons in ((FILTER_INVALID,), (0x80,), (0x83,), (0x87,)), f"got {seen}"
        return
    assert seen.kind == wire.DISCONNECT, f"got {seen}"
    assert seen.reason in (MALFORMED, PROTOCOL_ERROR, FILTER_INVALID), f"got {seen}"
    await client.expect_closed()


@both
@pytest.mark.parametrize("name", ["a#", "a/b#", "#/a", "a/#/b", "##", "a/##", "/#/"])
@covers("MQTT-4.7.1-1")
@covers311("MQTT-4.7.1-2")
async def test_a_misplaced_multi_level_wildcard_is_refused(lab: Lab, version: int, name: str) -> None:
    await _refused(lab, version, name)


@both
@pytest.mark.parametrize("name", ["a+", "+a", "a/b+", "a/+b/c", "++", "+#", "a/++"])
@covers("MQTT-4.7.1-2")
@covers311("MQTT-4.7.1-3")
async def test_a_misplaced_single_level_wildcard_is_refused(lab: Lab, version: int, name: str) -> None:
    await _refused(lab, version, name)


@both
@covers("MQTT-4.7.3-1")
@covers311("MQTT-4.7.3-1")
async def test_an_empty_filter_is_refused(lab: Lab, version: int) -> None:
    await _refused(lab, version, "")


# filter: (topics that match, topics that do not); every name stands under a prefix of its own.
MATCHES = {
    "/sport/#": (("/sport", "/sport/", "/sport/a", "/sport/a/b/c"), ("/sporty", "", "/spor")),
    "/sport/+": (("/sport/a", "/sport/"), ("/sport", "/sport/a/b", "/sport/a/")),
    "/+/b": (("/a/b", "//b"), ("/a/c", "/b", "/a/b/c")),
    "/+/+": (("/a/b", "//", "/a/"), ("/a", "/a/b/c")),
    "/+/b/#": (("/a/b", "/a/b/c", "//b/"), ("/a/c/b",)),
    "/a": (("/a",), ("/A", "/a/", "//a", "/a ", "a", "/a/b")),
    "/#": (("/a", "/", "", "//a/b"), ()),
    "//": (("//",), ("/", "///")),
}


@both
@pytest.mark.parametrize("name", MATCHES)
@covers("MQTT-3.3.2-3", "MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-4")
@covers311("MQTT-3.3.2-3", "MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-4.7.3-4")
async def test_matching(lab: Lab, version: int, name: str) -> None:
    prefix = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((prefix + name, 0))
    matching, others = MATCHES[name]
    for tail in (*others, *matching):
        await client.publish(prefix + tail, tail.encode())
    seen = {(await client.expect(wire.PUBLISH)).topic for _ in matching}
    assert seen == {prefix + tail for tail in matching}
    await client.quiet()


@both
@covers("MQTT-4.7.3-4")
@covers311("MQTT-4.7.3-4")
async def test_look_alikes_are_different_topics(lab: Lab, version: int) -> None:
    """One letter as one code point, and as two; a letter of another script; another case; a space."""
    prefix = lab.topic()
    names = ["/\u00e5", "/a\u030a", "/A", "/\u0410", "/a", "/a ", "/\u2126", "/\u03a9", "/%61", "/./a"]
    client = await lab.connect(version)
    for tail in names:
        subscriber = await lab.connect(version)
        await subscriber.subscribe((prefix + tail, 0))
        for other in names:
            await client.publish(prefix + other, other.encode())
        await subscriber.expect_message(prefix + tail, tail.encode())
        await subscriber.quiet()


@both
@covers("MQTT-4.7.2-1")
@covers311("MQTT-4.7.2-1")
async def test_wildcards_at_the_start_do_not_match_dollar_topics(lab: Lab, version: int) -> None:
    """Neither what clients publish there, if they may, nor the broker's own $SYS."""
    dollar = "$" + lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe(("#", 0), ("+/#", 0), (f"+/{dollar[3:]}", 0))
    publisher = await lab.connect(version)
    for name in (dollar, "$SYS/x"):
        await publisher.send(wire.publish(name, b"x", version=version))
    open_topic = lab.topic()
    other = await lab.connect(version)
    await other.publish(open_topic, b"end")
    topics = []
    while (seen := await watcher.expect(wire.PUBLISH)).topic != open_topic:
        topics.append(seen.topic)
    assert not [name for name in topics if name.startswith("$")]


@both
@covers("MQTT-4.7.2-1")
@covers311("MQTT-4.7.2-1")
async def test_sys_topics_are_reached_by_their_name(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.subscribe(("$SYS/#", 0))
    seen = await client.expect(wire.PUBLISH, within_s=12)
    assert seen.topic.startswith("$SYS/")


@both
@covers("MQTT-4.7.3-1", "MQTT-3.3.2-1")
@covers311("MQTT-4.7.3-1", "MQTT-3.3.2-1")
async def test_unusual_but_legal_topics(lab: Lab, version: int) -> None:
    """A single slash, spaces, code points of two, three and four bytes."""
    client = await lab.connect(version)
    for name in ("/", " ", "a b", "\u07ff", "\ufffd", "\U0010fffd"):
        await client.subscribe((name, 0))
        await client.publish(name, b"x")
        await client.expect_message(name, b"x")
        await client.unsubscribe(name)


@both
@covers("MQTT-4.7.3-3")
@covers311("MQTT-4.7.3-3")
async def test_the_longest_topic(lab: Lab, version: int) -> None:
    """65,535 bytes; one more cannot be written, for the length has two bytes."""
    topic = lab.topic().ljust(65_535, "x")
    client = await lab.connect(version)
    await client.subscribe((topic, 1), (topic[:-1], 0))
    await client.publish(topic, b"x", qos=1)
    await client.expect_message(topic, b"x", qos=1)
    await client.quiet()
