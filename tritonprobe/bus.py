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

from tritonprobe.forks import tell_in_child
from tritonprobe.model import Event

log = logging.getLogger("tritonprobe")

Subscriber = Callable[[Event], None]
MAX_SUBSCRIBERS = 256
STRIKES = 3


class _Subscription:
    __slots__ = ("call", "keep", "strikes")

    def __init__(self, call: Subscriber, keep: bool) -> None:
        self.call = call
        self.keep = keep
        self.strikes = 0


class Bus:
    """Delivers each published event to every subscriber, in the order they came."""

    def __init__(self, on_error: Callable[[str], None] | None = None) -> None:
        """``on_error(part)`` is told of each failing subscriber (it counts `errors_total{part}`)."""
        self._subscriptions: tuple[_Subscription, ...] = ()
        self._lock = threading.RLock()  # reentrant: a signal's handler may run inside
        self._on_error = on_error
        tell_in_child(self)

    def subscribe(self, subscriber: Subscriber, *, keep: bool = False) -> None:
        """Adds `subscriber`; adding it twice changes nothing. Raises ValueError beyond `MAX_SUBSCRIBERS`.

        With `keep` it is called however often it raises. For those without whom nothing would be counted.
        """
        with self._lock:
            if any(known.call == subscriber for known in self._subscriptions):
                return
            if len(self._subscriptions) >= MAX_SUBSCRIBERS:
                raise ValueError(f"the bus takes {MAX_SUBSCRIBERS} subscribers; unsubscribe those that are done")
            self._subscriptions = (*self._subscriptions, _Subscription(subscriber, keep))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscriptions = tuple(known for known in self._subscriptions if known.call != subscriber)

    def take_over(self, other: Bus) -> None:
        """Subscribes who is subscribed to `other`, those it keeps for itself left out."""
        for subscription in other._subscriptions:
            if not subscription.keep:
                self.subscribe(subscription.call)

    @contextmanager
    def subscribed(self, subscriber: Subscriber) -> Iterator[None]:
        self.subscribe(subscriber)
        try:
            yield
        finally:
            self.unsubscribe(subscriber)

    def publish(self, event: Event) -> None:
        """Hands `event` to every subscriber. Never raises."""
        for subscription in self._subscriptions:
            try:
                subscription.call(event)
            except Exception:
                self._failed(subscription)

    def after_fork(self) -> None:
        """For a forked child, whose copy of the lock may be held by a thread that it does not have."""
        self._lock = threading.RLock()

    def _failed(self, found: _Subscription) -> None:
        found.strikes += 1
        if self._on_error is not None:
            self._on_error("subscriber")
        if found.strikes == 1:
            log.warning("tritonprobe: subscriber %r raised; the event goes on to the others", found.call, exc_info=True)
        if found.strikes >= STRIKES and not found.keep:
            log.warning("tritonprobe: subscriber %r raised %d times and is no longer called", found.call, found.strikes)
            self.unsubscribe(found.call)
