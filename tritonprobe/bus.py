"""Subscribers for the events of `tritonprobe.model`: bounded, and never the served program's problem.

A subscriber is a plain callable. One that raises is logged once, counted, and after `STRIKES` failures no longer
called: our fault never becomes the fault of the program we watch. Events are rare (cold calls, finished requests,
errors); nothing here runs on a hot launch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tritonprobe.model import Event

log = logging.getLogger("tritonprobe")

Subscriber = Callable[[Event], None]
MAX_SUBSCRIBERS = 256
STRIKES = 3


class Bus:
    """Delivers each published event to every subscriber, in the order they came."""

    def __init__(self, on_error: Callable[[str], None] | None = None) -> None:
        """``on_error(part)`` is told of each failing subscriber (it counts `errors_total{part}`)."""
        self._subscribers: tuple[Subscriber, ...] = ()
        self._strikes: dict[Subscriber, int] = {}
        self._lock = threading.Lock()
        self._on_error = on_error

    def subscribe(self, subscriber: Subscriber) -> None:
        """Adds `subscriber`; adding it twice changes nothing. Raises ValueError beyond `MAX_SUBSCRIBERS`."""
        with self._lock:
            if subscriber in self._subscribers:
                return
            if len(self._subscribers) >= MAX_SUBSCRIBERS:
                raise ValueError(f"the bus takes {MAX_SUBSCRIBERS} subscribers; unsubscribe those that are done")
            self._subscribers = (*self._subscribers, subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers = tuple(s for s in self._subscribers if s != subscriber)
            self._strikes.pop(subscriber, None)

    @contextmanager
    def subscribed(self, subscriber: Subscriber) -> Iterator[None]:
        self.subscribe(subscriber)
        try:
            yield
        finally:
            self.unsubscribe(subscriber)

    def publish(self, event: Event) -> None:
        """Hands `event` to every subscriber. Never raises."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                self._failed(subscriber)

    def _failed(self, subscriber: Subscriber) -> None:
        strikes = self._strikes[subscriber] = self._strikes.get(subscriber, 0) + 1
        if self._on_error is not None:
            self._on_error("subscriber")
        if strikes == 1:
            log.warning("tritonprobe: subscriber %r raised; the event goes on to the others", subscriber, exc_info=True)
        if strikes >= STRIKES:
            log.warning("tritonprobe: subscriber %r raised %d times and is no longer called", subscriber, strikes)
            self.unsubscribe(subscriber)
