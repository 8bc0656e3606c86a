"""Autotuning: sessions, trials and winners. Touches `Autotuner.prune_configs`, `_bench` and `check_disk_cache`.

`prune_configs` runs only when the tuner has no answer for a key, so it begins the cold call; the guard around
`Autotuner.run` ends it.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter.calls import Calls, OpenCall
from tritonprobe.adapter.census import CensusRecorder
from tritonprobe.adapter.encoding import describe_call
from tritonprobe.adapter.ends import Watch
from tritonprobe.adapter.kernels import jit_function
from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.rewrite import CELLS
from tritonprobe.adapter.trial_grids import Watched
from tritonprobe.adapter.variants import text_of
from tritonprobe.model import Trial, TrialOutcome, Tuning
from tritonprobe.shapes.census_json import text_of_json

MAX_TRIALS = 4096  # kept of one session
_OUTCOME: dict[str, TrialOutcome] = {
    "OutOfResources": "out_of_resources",
    "CompileTimeAssertionFailure": "compile_assertion",
    "PTXASError": "ptxas_error",
}


class Session:
    """One tuner looking for the winner of one key."""

    __slots__ = (
        "call",
        "census",
        "end",
        "from_disk",
        "kept",
        "key",
        "launched",
        "measured",
        "raw_key",
        "start",
        "trials",
        "tuner",
    )

    def __init__(self, tuner: Any, key: Any, call: str, measured: bool, census: CensusRecorder) -> None:
        """``call`` describes the arguments that it tunes with; ``census`` is told of the winner."""
        self.tuner = tuner
        self.raw_key = key
        self.key = text_of(key)
        self.start = self.end = time.monotonic_ns()
        self.trials: list[Trial] = []
        self.launched: dict[str, tuple[str, tuple[int, ...]]] = {}  # by configuration, those that ran: hash and grid
        self.kept: int | None = None  # configurations that pruning left, where it gave a list
        self.from_disk = False
        self.call = call
        self.measured = measured
        self.census = census

    def result(self) -> Tuning:
        winner = None if self.raw_key is None else self.tuner.cache.get(self.raw_key)
        kept = len(self.trials) if self.kept is None else self.kept
        if winner is not None:
            self.census.tuned(self, winner)
        return Tuning(
            key=self.key,
            trials=tuple(self.trials),
            pruned=max(0, len(self.tuner.configs) - kept),  # a user's pruning may add some
            winner=None if winner is None else str(winner),
            from_disk=self.from_disk,
            wall_ns=self.end - self.start,
        )


class Tunings:
    def __init__(
        self,
        registry: Registry,
        calls: Calls,
        watch: Watch,
        enabled: Callable[[], bool],
        measures: Callable[[], bool],
        census: CensusRecorder,
    ) -> None:
        """``measures()`` says whether a benchmark on this device means anything."""
        self._registry = registry
        self._calls = calls
        self._watch = watch
        self._enabled = enabled
        self._measures = measures
        self._census = census

    def install(self, patches: Patches) -> None:
        from triton.runtime.autotuner import Autotuner

        patches.replace(Autotuner, "prune_configs", self._prune_configs)
        patches.replace(Autotuner, "_bench", self._bench)
        patches.replace(Autotuner, "check_disk_cache", self._check_disk_cache)

    def _prune_configs(self, original: Any) -> Any:
        @functools.wraps(original)
        def prune_configs(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
            call, ours = self._calls.begin() if self._enabled() else (None, False)
            if call is None or ours or call.mode != "launch":
                return original(tuner, *args, **kwargs)
            if call.session is None:
                self._begin(call, tuner, args)
            pruned = original(tuner, *args, **kwargs)
            session = call.session
            if session is not None and session.tuner is tuner:
                session.kept = len(pruned) if isinstance(pruned, (list, tuple)) else None
                session.end = time.monotonic_ns()
            return pruned

        return prune_configs

    def _begin(self, call: OpenCall, tuner: Any, args: tuple[Any, ...]) -> None:
        try:
            kwargs = args[0] if args and isinstance(args[0], dict) else {}
            met = {**(tuner.nargs or {}), **kwargs}
            given = {name: met[name] for name in tuner.arg_names if name in met}  # the grid is among the others
            call.session = Session(
                tuner, _key_of(tuner), text_of_json({"arguments": describe_call(given)}), self._measures(), self._census
            )
            call.reasons = (*call.reasons, f"no autotune winner yet for {call.session.key}")
            self._name_bucket(call, tuner, args)
        except Exception:
            self._registry.fault("tuning")
        call.enter("autotune")  # until the call ends; what it compiles is inside, under its own names

    def _name_bucket(self, call: OpenCall, tuner: Any, args: tuple[Any, ...]) -> None:
        try:
            site = self._registry.site(jit_function(tuner))
            if site is not None and call.bucket is None:
                site.autotune_keys = tuple(tuner.keys)
                kwargs = args[0] if args and isinstance(args[0], dict) else {}
                call.bucket = site.bucket({**(tuner.nargs or {}), **kwargs})
        except Exception:
            self._registry.fault("tuning")

    def _bench(self, original: Any) -> Any:
        @functools.wraps(original)
        def bench(tuner: Any, /, *args: Any, config: Any, **meta: Any) -> Any:
            if not self._enabled():
                return original(tuner, *args, config=config, **meta)
            thread, trial = self._registry.thread, object()
            before = thread.config, thread.trials
            try:
                # Inside, so that an interrupt (Ctrl-C) between any two of these leaves nothing behind.
                thread.config, thread.trials = str(config), thread.trials + 1
                self._watch.begin_slow(trial)
                return measured(tuner, *args, config=config, **meta)
            finally:
                thread.config, thread.trials = before
                self._watch.end_slow(trial)

        def measured(tuner: Any, /, *args: Any, config: Any, **meta: Any) -> Any:
            jit = jit_function(tuner)
            site = self._registry.site(jit) if jit is not None else None
            if site is None:
                return original(tuner, *args, config=config, **meta)
            call = self._calls.current
            start = time.monotonic_ns()
            watched = Watched()
            if call is not None:
                call.trial_error = None
                if call.session is not None and call.session.tuner is tuner and "grid" in meta:
                    meta["grid"] = watched.grid(meta["grid"])
            with site.session("trial", CELLS):
                timings = original(tuner, *args, config=config, **meta)
            try:
                if call is not None:
                    self._record(call, tuner, config, timings, start, watched)
            except Exception:
                self._registry.fault("tuning")
            return timings

        return bench

    def _record(self, call: OpenCall, tuner: Any, config: Any, timings: Any, start: int, watched: Watched) -> None:
        session = call.session
        if session is None or session.tuner is not tuner:
            return
        session.end = time.monotonic_ns()
        milliseconds = timings[0] if isinstance(timings, (list, tuple)) else timings
        failed = not math.isfinite(milliseconds)
        outcome: TrialOutcome = _OUTCOME.get(call.trial_error or "", "error") if failed else "ok"
        seconds = milliseconds / 1e3 if self._measures() and not failed else None
        if len(session.trials) < MAX_TRIALS:
            session.trials.append(Trial(str(config), outcome, seconds, session.end - start))
            launched = None if failed else watched.launched()
            if launched is not None:
                session.launched[str(config)] = launched

    def _check_disk_cache(self, original: Any) -> Any:
        @functools.wraps(original)
        def check_disk_cache(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
            found = original(tuner, *args, **kwargs)
            call = self._calls.current
            if call is not None and call.session is not None and call.session.tuner is tuner:
                call.session.from_disk = bool(found)
                call.session.end = time.monotonic_ns()
            return found

        return check_disk_cache


def _key_of(tuner: Any) -> Any:
    """The key that `Autotuner.run` looks for, from its own frame: subclasses override what lies between."""
    frame = sys._getframe(2)
    for _ in range(16):
        names = frame.f_locals
        if frame.f_code.co_name == "run" and names.get("self") is tuner and isinstance(names.get("key"), tuple):
            return names["key"]
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
