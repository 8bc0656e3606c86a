"""Subscribers hear every event; one that fails is logged, counted and at last left out, and nobody else notices."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest

from tritonprobe.bus import MAX_SUBSCRIBERS, STRIKES, Bus
from tritonprobe.model import Event, LaunchError

EVENT = LaunchError("m.kernel", "ValueError", "launch")


def test_every_subscriber_hears_every_event_in_order() -> None:
    bus = Bus()
    heard: list[Any] = []
    bus.subscribe(lambda event: heard.append(("a", event)))
    bus.subscribe(lambda event: heard.append(("b", event)))
    bus.publish(EVENT)
    assert heard == [("a", EVENT), ("b", EVENT)]


def test_a_subscriber_is_added_once_and_leaves() -> None:
    bus = Bus()
    heard: list[Any] = []
    with bus.subscribed(heard.append):
        bus.subscribe(heard.append)
        bus.publish(EVENT)
    bus.publish(EVENT)
    assert heard == [EVENT]


def test_a_failing_subscriber_is_counted_logged_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    parts: list[str] = []
    heard: list[Event] = []
    calls: list[Event] = []

    def fails(event: Event) -> None:
        calls.append(event)
        raise RuntimeError("mine")

    bus = Bus(on_error=parts.append)
    bus.subscribe(fails)
    bus.subscribe(heard.append)
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        for _ in range(STRIKES + 3):
            bus.publish(EVENT)

    assert len(calls) == STRIKES
    assert len(heard) == STRIKES + 3
    assert parts == ["subscriber"] * STRIKES
    assert len(caplog.records) == 2  # the first failure, and the farewell


def test_the_number_of_subscribers_is_bounded() -> None:
    bus = Bus()
    for i in range(MAX_SUBSCRIBERS):
        bus.subscribe(partial(print, i))
    with pytest.raises(ValueError, match=f"takes {MAX_SUBSCRIBERS} subscribers"):
        bus.subscribe(lambda event: None)


def test_ours_is_called_however_often_it_raises(caplog: pytest.LogCaptureFixture) -> None:
    """Without the recorder no metric would move again; each failure is counted, the first is logged."""
    parts: list[str] = []
    calls: list[Event] = []

    def fails(event: Event) -> None:
        calls.append(event)
        raise RuntimeError("ours")

    bus = Bus(on_error=parts.append)
    bus.subscribe(fails, keep=True)
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        for _ in range(STRIKES + 3):
            bus.publish(EVENT)
    assert len(calls) == STRIKES + 3
    assert parts == ["subscriber"] * (STRIKES + 3)
    assert len(caplog.records) == 1


def test_a_subscriber_need_not_be_hashable() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, event: Event) -> None:
            raise RuntimeError("mine")

    parts: list[str] = []
    bus = Bus(on_error=parts.append)
    bus.subscribe(Unhashable())
    bus.publish(EVENT)
    assert parts == ["subscriber"]


def test_a_signal_inside_subscribe_may_subscribe() -> None:
    bus = Bus()
    heard: list[Event] = []
    with bus._lock:
        bus.subscribe(heard.append)
    bus.publish(EVENT)
    assert heard == [EVENT]


def test_a_bus_takes_over_the_guests_of_another_and_not_its_own() -> None:
    old, new = Bus(), Bus()
    guest: list[Event] = []
    own: list[Event] = []
    old.subscribe(guest.append)
    old.subscribe(own.append, keep=True)
    new.take_over(old)
    new.publish(EVENT)
    assert (guest, own) == ([EVENT], [])
