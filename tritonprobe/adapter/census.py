"""Records the census: called where a variant is new to the process, a module is loaded or a tuner has its winner.

Nothing here runs on a hot launch: launches are the ledger's own counts, read when a census is made. What is kept is
bounded in bytes; what is beyond is counted. A fault of ours is the registry's to count. Touches `_do_compile`'s inputs
and Triton's local names on the stack; never the contents of a tensor.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from tritonprobe.adapter.encoding import EncodingError, describe_call, encode, encode_inputs
from tritonprobe.adapter.environment import environment_of
from tritonprobe.adapter.homes import home_of
from tritonprobe.adapter.kernels import home_name_of, jit_function, name_of
from tritonprobe.adapter.registry import Registry
from tritonprobe.forks import tell_in_child
from tritonprobe.ledger.schema import LAUNCHES
from tritonprobe.ledger.store import Sample
from tritonprobe.model import ColdCall, Event, Mode
from tritonprobe.shapes.census import MAX_KEYS, Census, Cold, Entry, Environment, Texts, Tuned, smallest
from tritonprobe.shapes.census_json import text_of_json

if TYPE_CHECKING:
    from tritonprobe.adapter.tuning import Session

MAX_BYTES = 12 << 20
"""Of JSON that one process remembers."""
MAX_KEY = 16_384
"""Characters of an in-memory key."""
_FRAMES = 8
"""How far up the stack Triton's `run` is looked for."""


class CensusRecorder:
    """What one process met. Safe from any thread; a forked child starts with an empty one."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}  # by hash
        self._tunings: dict[tuple[str, ...], Tuned] = {}
        self._environments: dict[str, Environment] = {}
        self._dropped: Counter[str] = Counter()
        self._bytes = 0
        self.changes = 0
        tell_in_child(self)

    def variant(
        self,
        jit: Any,
        found: tuple[Any, tuple[Any, Any, Any, Any], Any, str],
        frame: FrameType,
        bucket: str,
        mode: Mode,
        config: str | None,
    ) -> None:
        """A lookup came to a variant.

        ``found`` is its in-memory key, its inputs (signature, constants, attributes, options), backend and hash.
        ``frame`` is that of Triton's `run`.
        """
        try:
            key, inputs, backend, digest = found
            now = time.time_ns()
            known = self._entries.get(digest)
            entry = self._new_entry(jit, inputs, backend, digest, now) if known is None else known
            call = {"bucket": bucket, "arguments": describe_call(frame.f_locals.get("bound_args") or {})}
            keys: Texts = (key,) if isinstance(key, str) and len(key) <= MAX_KEY else ()
            met = replace(
                entry,
                keys=keys,
                buckets=(bucket,),
                configs=() if config is None else (config,),
                calls=(text_of_json(call),),
                launched=mode == "launch",
                last_ns=now,
            )
            self._keep(met)
        except (EncodingError, RecursionError):
            self._drop("unrecordable")
        except Exception:
            self._registry.fault("census")

    def adopt(self, entry: Entry, environment: Environment) -> None:
        """A variant was replayed from a census: this process's own would not know it, since it will never be cold."""
        with self._lock:
            if entry.hash not in self._entries:
                self._environments[environment.id] = environment
                self._keep(replace(entry, cold=()))

    def adopt_winner(self, tuned: Tuned, environment: Environment) -> None:
        """A tuner was given this one, or chose it while prewarming."""
        with self._lock:
            self._environments[environment.id] = environment
            self._keep_winner(tuned)

    def grid(self, digest: str) -> None:
        """A variant is about to be launched for the first time: `run` on the stack knows its grid."""
        try:
            entry = self._entries.get(digest)
            frame: FrameType | None = sys._getframe(1)
            if entry is None or not entry.calls:
                return
            for _ in range(_FRAMES):
                if frame is None:
                    return
                if "grid_0" in frame.f_locals:
                    break
                frame = frame.f_back
            else:
                return
            assert frame is not None
            grid = [int(frame.f_locals[f"grid_{i}"]) for i in range(3)]
            bound = describe_call(frame.f_locals.get("bound_args") or {})
            with self._lock:
                entry = self._entries[digest]
                self._entries[digest] = replace(entry, calls=tuple(_with_grid(c, bound, grid) for c in entry.calls))
                self.changes += 1
        except Exception:
            self._registry.fault("census")

    def tuned(self, session: Session, winner: Any) -> None:
        """A tuner has its winner."""
        try:
            jit = jit_function(session.tuner)
            now = time.time_ns()
            place = self._environment(_backend_of(jit))
            found = Tuned(
                kernel=home_name_of(jit),
                environment=place.id,
                key=text_of_json(encode(session.raw_key)),
                winner=text_of_json(str(winner)),
                module=home_of(jit.fn),
                qualname=jit.fn.__qualname__,
                source=source_of(jit),
                call=session.call,
                trials=tuple(sorted((config, *launched) for config, launched in session.launched.items())),
                measured=session.measured,
                sessions=1,
                ns=session.end - session.start,
                first_ns=now,
                last_ns=now,
            )
            with self._lock:
                known = self._tunings.get(found.identity)
                self._keep_winner(found if known is None else known.merged(found))
        except (EncodingError, RecursionError):
            self._drop("unrecordable")
        except Exception:
            self._registry.fault("census")

    def cold_call(self, event: Event) -> None:
        """Adds a cold call's time to the variant it met first; the process's one-time work is nobody's variant's."""
        if not isinstance(event, ColdCall) or event.hash is None:
            return
        once = dict(event.phases).get("process_init", 0)
        cold: Cold = ((event.tier, 1, max(0, event.wall_ns - once)),)
        with self._lock:
            entry = self._entries.get(event.hash)
            if entry is not None and event.tuning is None:
                self._entries[event.hash] = entry.merged(replace(entry, cold=cold))
                self.changes += 1

    def census(self) -> Census:
        """All of it, with the launches as they are counted now."""
        launches: Counter[tuple[str, str]] = Counter()
        for family in self._registry.ledger.collect():
            if family.metric is LAUNCHES:
                for sample in family.samples:
                    if isinstance(sample, Sample):
                        launches[self._at_home(sample.labels[0]), sample.labels[1]] += int(sample.value)
        with self._lock:
            return Census.of(
                self._environments.values(), self._entries.values(), self._tunings.values(), launches, self._dropped
            )

    def after_fork(self) -> None:
        """For a forked child: what was met so far is in its parent's census."""
        self._lock = threading.RLock()
        self._entries.clear()
        self._tunings.clear()
        self._dropped.clear()
        self._bytes = self.changes = 0

    def _at_home(self, label: str) -> str:
        """A kernel's name here, by its label."""
        module, dot, name = label.partition(".")
        return f"{self._registry.homes.get(module, module)}{dot}{name}"

    def _new_entry(self, jit: Any, inputs: tuple[Any, Any, Any, Any], backend: Any, digest: str, now: int) -> Entry:
        signature, constexprs, attrs, options = inputs
        return Entry(
            kernel=home_name_of(jit),
            hash=digest,
            environment=self._environment(backend).id,
            module=home_of(jit.fn),
            qualname=jit.fn.__qualname__,
            source=source_of(jit),
            inputs=text_of_json(encode_inputs(signature, constexprs, attrs, options, backend.parse_options({}))),
            classes=classes_of(jit, signature, constexprs, attrs, options),
            first_ns=now,
        )

    def _keep(self, met: Entry) -> None:
        with self._lock:
            known = self._entries.get(met.hash)
            if known is None:
                size = len(met.inputs) + sum(len(n) + len(c) for n, c in met.classes) + 400
            else:
                size = 0
                met = replace(met, first_ns=known.first_ns, cold=())
                if len(known.calls) >= MAX_KEYS:
                    met = replace(met, calls=())
            before = known or replace(met, keys=(), calls=())
            more = smallest(before.keys, met.keys), smallest(before.calls, met.calls)
            size += sum(map(len, (*more[0], *more[1]))) - sum(map(len, (*before.keys, *before.calls)))
            if not self._room(size):
                self._drop("variants" if known is None else "calls")
                return
            self._entries[met.hash] = met if known is None else known.merged(met)
            self.changes += 1

    def _keep_winner(self, tuned: Tuned) -> None:
        """With its trials only up to half of the bound: without them a server can still take it over."""
        known = self._tunings.get(tuned.identity)
        before = 0 if known is None else _size(known)
        grown = _size(tuned) - before
        if grown > 0 and tuned.trials and self._bytes + grown > MAX_BYTES // 2:
            tuned = replace(tuned, trials=())
            self._drop("trials")
            grown = _size(tuned) - before
        if grown > 0 and not self._room(grown):
            self._drop("tunings")
            return
        self._tunings[tuned.identity] = tuned
        self.changes += 1

    def _room(self, size: int) -> bool:
        if self._bytes + size > MAX_BYTES:
            return False
        self._bytes += size
        return True

    def _drop(self, what: str) -> None:
        with self._lock:
            self._dropped[what] += 1
            self.changes += 1

    def _environment(self, backend: Any) -> Environment:
        found = environment_of(backend)
        with self._lock:
            self._environments[found.id] = found
        return found


def _size(tuned: Tuned) -> int:
    trials = sum(len(config) + len(digest) + 50 for config, digest, _ in tuned.trials)
    return len(tuned.key) + len(tuned.winner) + len(tuned.call) + trials + 400


def source_of(jit: Any) -> str:
    """A digest of a kernel's source, and of what it calls."""
    return hashlib.sha256(str(jit.cache_key).encode(errors="replace")).hexdigest()[:16]


def classes_of(jit: Any, signature: Any, constexprs: Any, attrs: Any, options: Any) -> tuple[tuple[str, str], ...]:
    """The classes of the arguments, as reports show them."""
    from tritonprobe.adapter.variants import variant_of

    variant = variant_of(name_of(jit), jit, signature, constexprs, attrs, options)
    return tuple((name, f"{c.type} {c.value}".strip()) for name, c in variant.args)


def _backend_of(jit: Any) -> Any:
    from triton.runtime.driver import driver

    return jit.device_caches[driver.active.get_current_device()][3]


def _with_grid(call: str, bound: dict[str, Any], grid: list[int]) -> str:
    import json

    known = json.loads(call)
    # As text: a call with True among its arguments equals one with 1.
    if "grid" in known or text_of_json(known.get("arguments")) != text_of_json(bound):
        return call
    return text_of_json({**known, "grid": grid})
