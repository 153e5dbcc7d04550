"""The event log of a node: bounded, in order, and never drowned by what clients do."""

import logging

import pytest

from millrace.limits import CLIENT_EVENTS_PER_S_MAX, EVENTS_MAX
from millrace.node.admin.events import EventLog, newest_of, order


class Clock:
    def __init__(self) -> None:
        self.us = 1_000_000_000

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events(clock: Clock) -> EventLog:
    return EventLog("n1", clock)


def test_the_newest_comes_first_and_ids_are_unlike(events: EventLog) -> None:
    for number in range(3):
        events.record("election", "info", f"event {number}", term=number)
    page = events.page(10)
    assert [event.text for event in page] == ["event 2", "event 1", "event 0"]
    assert len({event.id for event in page}) == 3, "three within a microsecond"
    assert page[0].fields == {"term": 2}


def test_what_is_kept_has_a_bound(events: EventLog, clock: Clock) -> None:
    for _ in range(EVENTS_MAX + 100):
        events.record("link", "info", "up")
    assert len(events) <= EVENTS_MAX


def test_clients_are_counted_where_there_are_too_many(events: EventLog, clock: Clock) -> None:
    for number in range(CLIENT_EVENTS_PER_S_MAX + 70):
        events.record("client", "info", f"client {number}")
    assert len(events) == CLIENT_EVENTS_PER_S_MAX
    clock.us += 1_000_000
    events.flush()
    assert events.page(1)[0].fields == {"count": 70}
    events.flush()
    assert len(events) == CLIENT_EVENTS_PER_S_MAX + 1, "told once"


def test_what_is_only_counted_need_not_be_put_into_words(events: EventLog, clock: Clock) -> None:
    for _ in range(CLIENT_EVENTS_PER_S_MAX):
        assert not events.leaves_out()
        events.record("client", "info", "came")
    assert events.leaves_out() and events.leaves_out()
    events.record("client", "info", "came")
    clock.us += 1_000_000
    assert not events.leaves_out()
    events.flush()
    assert events.page(1)[0].fields == {"count": 3}


def test_a_fleet_that_reconnects_does_not_push_out_an_election(events: EventLog, clock: Clock) -> None:
    events.record("election", "info", "n1 leads")
    for _ in range(2 * EVENTS_MAX):
        clock.us += 1_000_000 // CLIENT_EVENTS_PER_S_MAX
        events.record("client", "info", "came")
    assert [event.text for event in events.page(10, kind="election")] == ["n1 leads"]


def test_refused_clients_fill_neither_the_log_nor_the_place_of_what_administrators_did(
    events: EventLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    events.record("access", "info", "'root' added user ann")
    for _ in range(2 * EVENTS_MAX):
        events.record("access", "warning", "wrong password")
    assert caplog.messages.count("access: wrong password") == CLIENT_EVENTS_PER_S_MAX
    for _ in range(2 * EVENTS_MAX):
        clock.us += 1_000_000 // CLIENT_EVENTS_PER_S_MAX
        events.record("access", "warning", "wrong password")
    assert [event.text for event in events.page(10, search="added")] == ["'root' added user ann"]


def test_a_page_goes_on_where_the_last_one_ended(events: EventLog) -> None:
    for number in range(5):
        events.record("link", "info", str(number))
    first = events.page(2)
    second = events.page(2, before=order(first[-1]))
    assert [event.text for event in first + second] == ["4", "3", "2", "1"]
    assert [event.text for event in events.page(9, after_us=first[1].time_us)] == ["4"]
    assert [event.text for event in events.page(9, search="3")] == ["3"]


def test_pages_of_several_nodes_are_merged_by_time(clock: Clock) -> None:
    logs = [EventLog(name, clock) for name in ("n1", "n2")]
    for number in range(6):
        clock.us += 1
        logs[number % 2].record("link", "info", str(number))
    merged = newest_of([log.page(3) for log in logs], 4)
    assert [event.text for event in merged] == ["5", "4", "3", "2"]


def test_listeners_hear_at_once_and_the_log_says_it_too(
    events: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    heard = []
    events.listeners.append(lambda event: heard.append(event.text))
    with caplog.at_level(logging.DEBUG, "millrace.events"):
        events.record("client", "info", "'c' connected")
        events.record("storage", "error", "full")
    assert heard == ["'c' connected", "full"]
    assert [record.levelname for record in caplog.records] == ["DEBUG", "ERROR"]


def test_long_values_are_cut_and_absent_ones_left_out(events: EventLog) -> None:
    events.record("client", "info", "x" * 5_000, client_id="y" * 5_000, user=None)
    event = events.page(1)[0]
    assert len(event.text) == len(str(event.fields["client_id"])) == 1_000
    assert "user" not in event.fields
