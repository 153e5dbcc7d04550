"""Small parts of the administration: figures, logins, live listeners, pages, and how messages are shown."""

import asyncio
import base64
import json

import pytest

from millrace.limits import LIVE_EVENTS_WAITING_MAX, LIVE_LISTENERS_MAX, LOGINS_MAX
from millrace.node.access.identity import Identity, Proof
from millrace.node.admin import figures, people
from millrace.node.admin.events import EventLog
from millrace.node.admin.live import Live, as_sent
from millrace.node.admin.logins import LIFE_S, PageLogins
from millrace.node.admin.people import page_of
from millrace.node.admin.shapes import Session
from millrace.node.admin.tail import tailed
from millrace.node.doors.http.admin import paging
from millrace.node.doors.http.problems import Problem
from millrace.types import Message, Properties

# ---------------------------------------------------------------------------------------------- figures


def test_a_rate_is_what_happened_between_two_looks() -> None:
    now = [10.0]
    sampler = figures.Sampler(lambda: now[0])
    sampler.sample({"in": 100, "gone": 5})
    assert sampler.rate("in") == 0
    now[0] += 2
    sampler.sample({"in": 160})
    assert sampler.rate("in") == 30
    assert sampler.rate("gone") == 0
    now[0] += 1
    sampler.sample({"in": 20})
    assert sampler.rate("in") == 0, "a counter that begins anew is no flow backwards"


def test_the_lag_shown_is_the_worst_of_late() -> None:
    sampler = figures.Sampler(lambda: 0.0)
    for lag_ms in (500.0, *([1.0] * 39), 7.0):
        sampler.add_lag(lag_ms)
    assert sampler.loop_lag_ms == 7.0


def test_a_process_knows_its_memory_and_processor_time() -> None:
    assert figures.memory_bytes() > 1_000_000
    assert figures.cpu_s() > 0


# ----------------------------------------------------------------------------------------------- logins

ANN = Identity(username="ann", proof=Proof.PASSWORD, password_hash="hash")


def test_a_login_ends_by_itself_and_by_hand() -> None:
    logins = PageLogins()
    token = logins.begin(ANN, 0.0)
    found = logins.find(token, LIFE_S - 1)
    assert found == ANN
    assert logins.find(token, LIFE_S + 1) is None
    other = logins.begin(ANN, 0.0)
    logins.end(other)
    assert logins.find(other, 1.0) is None
    assert logins.find("", 1.0) is None
    logins.end("unknown")


def test_logins_are_bounded_and_the_oldest_go() -> None:
    logins = PageLogins()
    tokens = [logins.begin(ANN, float(number)) for number in range(LOGINS_MAX + 10)]
    assert len(logins) == LOGINS_MAX
    assert logins.find(tokens[0], 0.0) is None
    assert logins.find(tokens[-1], 0.0) is not None
    assert len(set(tokens)) == len(tokens)
    logins.begin(ANN, LIFE_S * 3.0)
    assert len(logins) == 1, "those whose time is over make room"


# ------------------------------------------------------------------------------------------------- live


def test_a_slow_listener_gets_the_newest_overview_and_hears_what_it_missed() -> None:
    async def scenario() -> None:
        count = 0

        async def overview() -> tuple[bytes, list[object]]:
            nonlocal count
            count += 1
            return b"%d" % count, []

        live = Live(overview)  # type: ignore[arg-type]
        listener = live.join(lambda: True)
        assert listener is not None
        for number in range(50):
            listener.on_overview(b"%d" % number)
        events = EventLog("n1", lambda: 0)
        events.listeners.append(live.on_event)
        for number in range(LIVE_EVENTS_WAITING_MAX + 30):
            events.record("link", "info", str(number))
        name, data = await listener.next() or ("", b"")
        assert (name, json.loads(data)) == ("skipped", {"count": 30})
        for number in range(30, LIVE_EVENTS_WAITING_MAX + 30):
            name, data = await listener.next() or ("", b"")
            assert (name, json.loads(data)["text"]) == ("event", str(number))
        assert await listener.next() == ("overview", b"49"), "the others would be old news"
        assert (await listener.next() or ("",))[0] == "overview", "made by the hub itself"
        live.close()
        assert await listener.next() is None

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_listeners_are_bounded_and_nothing_is_made_without_one() -> None:
    async def scenario() -> None:
        made = 0

        async def overview() -> tuple[bytes, list[object]]:
            nonlocal made
            made += 1
            return b"{}", []

        live = Live(overview)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert made == 0
        listeners = [live.join(lambda: True) for _ in range(LIVE_LISTENERS_MAX)]
        assert live.join(lambda: True) is None
        for listener in listeners:
            assert listener is not None
            live.leave(listener)
        assert live.join(lambda: True) is not None
        live.close()

    asyncio.run(scenario())


def test_a_server_sent_event_is_one_data_line() -> None:
    assert as_sent("event", b'{"text":"a\\nb"}') == b'event: event\ndata: {"text":"a\\nb"}\n\n'
    assert as_sent("", b"").startswith(b":")


# ------------------------------------------------------------------------------------------------ pages


def _session(client_id: str) -> Session:
    return Session(
        client_id=client_id,
        user=None,
        owner="n1",
        is_connected=False,
        expiry_s=60,
        away_since_us=1,
        subscriptions=0,
        queued=0,
        unfinished_qos2=0,
        has_will=False,
    )


def test_pages_go_through_all_rows_once_and_in_order() -> None:
    rows = [_session(f"c{number:02}") for number in (7, 3, 9, 1, 5)]
    seen, after = [], None
    while found := page_of(rows, 2, after, people.place_of):
        seen += [row.client_id for row in found]
        after = people.place_of(found[-1])
    assert seen == ["c01", "c03", "c05", "c07", "c09"]


@pytest.mark.parametrize("cursor", ["x", "bm90IGpzb24=", "WzFd", "WzEsMl0="])
def test_a_cursor_that_no_page_gave_is_refused(cursor: str) -> None:
    with pytest.raises(Problem):
        paging.place(cursor, str)


def test_a_cursor_comes_back_as_it_was() -> None:
    hostile = ('"<script>\n\x00', "n1")
    assert paging.place(paging.packed(hostile), str) == hostile


# ------------------------------------------------------------------------------------------------- tail


def test_a_payload_is_text_where_it_can_be_and_cut_where_it_is_long() -> None:
    shown = tailed(Message(topic="a", payload="grün".encode()), 5)
    assert (shown.payload, shown.encoding, shown.payload_bytes, shown.time_us) == ("grün", "utf-8", 5, 5)
    binary = tailed(Message(topic="a", payload=b"\xff\x00"), 5)
    assert (base64.b64decode(binary.payload), binary.encoding) == (b"\xff\x00", "base64")
    long = tailed(Message(topic="a", payload="ü".encode() * 40_000), 5)
    assert (long.encoding, long.payload_bytes, len(long.payload)) == ("utf-8", 80_000, 32_768)
    odd = tailed(Message(topic="a", payload=b"x" + "ü".encode() * 40_000), 5)
    assert odd.encoding == "utf-8" and odd.payload.endswith("ü"), "a cut through a character drops it"


def test_properties_of_mqtt_5_are_shown() -> None:
    properties = Properties(content_type="text/plain", user=(("a", "b"), ("a", "c")))
    shown = tailed(Message(topic="a", payload=b"", properties=properties), 1)
    assert (shown.content_type, shown.user_properties) == ("text/plain", (("a", "b"), ("a", "c")))
