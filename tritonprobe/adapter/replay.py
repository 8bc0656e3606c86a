"""Replays census entries: `_do_compile` with the recorded inputs, then the module's load. No launch, no tensors.

What cannot be replayed is `Stale`, with the reason. Each replay is verified: a variant whose hash is not the recorded
one is taken out of memory again, since no launch would look for it. Touches `JITFunction._do_compile`, `ASTSource`,
`device_caches`, `CompiledKernel._init_handles` and an `Autotuner`'s `cache`.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import threading
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tritonprobe.adapter.census import source_of
from tritonprobe.adapter.encoding import EncodingError, decode, decode_inputs
from tritonprobe.adapter.environment import differences, environment_now
from tritonprobe.adapter.homes import MAIN, home_of, home_of_main, is_file_of_main
from tritonprobe.adapter.kernels import home_name_of, jit_function, name_of
from tritonprobe.adapter.rewrite import CELLS
from tritonprobe.adapter.variants import MAX_TEXT, text_of
from tritonprobe.ledger.schema import WARMUPS
from tritonprobe.living import in_modules, instances
from tritonprobe.shapes.census import Census, Entry, Tuned

if TYPE_CHECKING:
    from tritonprobe.adapter.core import Adapter

log = logging.getLogger("tritonprobe")

KIND = "prewarm"
Inputs = tuple[dict[str, Any], dict[Any, Any], dict[Any, Any], dict[str, Any]]
"""Of a compile: signature, constants, attributes and options."""


class Stale(Exception):  # noqa: N818  # it reads as what it says
    """An entry that this process cannot replay; the message says why."""


class Replay:
    """Replays entries of one census in this process, on Triton's active device."""

    def __init__(self, adapter: Adapter, census: Census, modules: Collection[str] = ()) -> None:
        """``modules`` are packages that may be imported, beside those that the program loaded itself.

        Raises what Triton raises where there is no device.
        """
        self._adapter = adapter
        self._census = census
        self._allowed = {name.partition(".")[0] for name in (*sys.modules, *modules)}
        self._kernels: dict[str, list[Any]] = {}
        self._building: dict[str, threading.Lock] = {}
        self._index()
        self.environment = environment_now()

    def fits(self, entry: Entry | Tuned) -> None:
        """Whether what is recorded would be found in this environment. Raises Stale with each difference."""
        recorded = self._census.environments.get(entry.environment)
        if recorded is None:
            raise Stale("its environment is not in the census")
        differs = differences(recorded, self.environment)
        if differs:
            raise Stale("; ".join(differs))

    def of_this_target(self, entry: Entry) -> bool:
        recorded = self._census.environments.get(entry.environment)
        return recorded is None or recorded.target == self.environment.target

    def kernels(self, entry: Entry | Tuned) -> list[Any]:
        """The living kernels that it was recorded from, as they are now. Raises Stale."""
        self.fits(entry)
        # A script of then may be a module now.
        name = f"{home_of_main()}.{entry.qualname}" if entry.module in MAIN else entry.kernel
        found = self._kernels.get(name)
        if found is None:
            self.resolve(entry.module, entry.qualname)
            self._index()
            found = self._kernels.get(name)
        if found is None:
            raise Stale(f"{entry.module} has no kernel {entry.qualname}")
        same = [jit for jit in found if source_of(jit) == entry.source]
        if not same:
            raise Stale("the kernel's source changed, or something that it calls")
        return same

    def resolve(self, module: str, qualname: str, user: str | None = None) -> Any:
        """An object of an allowed module, imported if need be; ``user`` is the module that needs it. Raises Stale."""
        found: Any = self._module(module, user)
        for name in qualname.split("."):
            try:
                found = getattr(found, name)
            except Exception:  # a module may have a __getattr__
                raise Stale(f"{module} has no {qualname}{_SCRIPT if module in MAIN else ''}") from None
        return found

    def _module(self, name: str, user: str | None) -> Any:
        """Never the program itself once more: a second import would run it."""
        is_main = name in MAIN or name == home_of_main()
        # Somebody may have imported it as well, and the kernel's own is meant then.
        if is_main and (user in MAIN or name not in sys.modules):
            return sys.modules[MAIN[0]]
        if name not in sys.modules and name.partition(".")[0] not in self._allowed:
            raise Stale(f"module {name} is not one that the program loaded; allow {name.partition('.')[0]}")
        try:
            if name not in sys.modules and is_file_of_main(name):
                raise Stale(f"module {name} is this program, which was started as a script: use python -m {name}")
            return importlib.import_module(name)
        except Stale:
            raise
        except (Exception, SystemExit) as error:  # a module may be a program
            raise Stale(f"module {name} cannot be imported: {type(error).__name__}: {error}") from None

    def prepare(self, entry: Entry) -> None:
        """For the main thread: makes what Triton makes once a kernel, and takes no lock for. Raises Stale."""
        from triton.runtime.driver import driver

        for jit in self.kernels(entry):
            backend = jit.device_caches[driver.active.get_current_device()][3]
            self._adapter.process_init(backend)

    def replay(self, entry: Entry, load: bool = True) -> bool:
        """Compiles or reads the variant, and loads it. False if all of it was in memory. Raises Stale, or Triton's own.

        Safe on several threads for different hashes, once `prepare` was called.
        """
        fresh = False
        jits = self.kernels(entry)
        for jit in jits:
            fresh = self._into(jit, entry, load) or fresh
        here = replace(entry, kernel=home_name_of(jits[0]), module=home_of(jits[0].fn))
        self._adapter.census.adopt(here, self._census.environments[entry.environment])
        return fresh

    def expand(self, entry: Entry, only: str | None = None) -> set[str]:
        """Compiles the entry as every configuration of its autotuners, or one; the hashes of these binaries.

        They are on the disk then, for a tuner that is yet to choose. Raises Stale, or what Triton raises.
        """
        from triton.runtime.driver import driver

        done: set[str] = set()
        device = driver.active.get_current_device()
        for jit in self.kernels(entry):
            tuners = [tuner for tuner in living_tuners() if tuner.fn is jit]  # heuristics between them may depend on it
            for text, config in {str(config): config for tuner in tuners for config in tuner.configs}.items():
                if only in (None, text):
                    done |= self._as(jit, entry, device, config)
        return done

    def _as(self, jit: Any, entry: Entry, device: Any, config: Any) -> set[str]:
        """One entry as one configuration. Nothing if that cannot be compiled: the tuner will find the same."""
        signature, constexprs, attrs, options = self._inputs(jit, entry)
        changed = config.all_kwargs()
        names = {name: (place,) for place, name in enumerate(jit.arg_names)}
        constexprs.update({names[name]: value for name, value in changed.items() if name in names})
        options.update({name: value for name, value in changed.items() if name not in names})
        in_memory, *_ = jit.device_caches[device]
        key = f"{_NO_KEY}: {config}"
        try:
            kernel = self._build(jit, key, device, (signature, constexprs, attrs, options))
            return set() if kernel is None else {kernel.hash}
        except Exception as error:
            log.debug("tritonprobe: %s as %s: %s", entry.kernel, config, error)
            return set()
        finally:
            in_memory.pop(key, None)

    def was_measured_here(self, tuned: Tuned) -> bool:
        """Whether its winner is one for this device."""
        recorded = self._census.environments.get(tuned.environment)
        return tuned.measured and recorded is not None and recorded.device == self.environment.device

    def text_of_key(self, tuned: Tuned) -> str:
        """As the reasons of cold calls have it: ``no autotune winner yet for ...``."""
        try:
            return text_of(decode(json.loads(tuned.key), self.resolve))
        except Exception:  # a census may say anything, and a program's own types raise anything
            return tuned.key[:MAX_TEXT]

    def chose(self, tuned: Tuned) -> None:
        """A tuner chose, while prewarming."""
        self._adapter.census.adopt_winner(tuned, self.environment)

    def take_over(self, tuned: Tuned) -> bool:
        """Gives the tuner the recorded winner; False if it has one. Raises Stale."""
        recorded = self._census.environments.get(tuned.environment)
        jits = self.kernels(tuned)
        if recorded is not None and recorded.device != self.environment.device:
            raise Stale(f"its winner was chosen on {recorded.device}, and this is {self.environment.device}")
        tuners = [tuner for tuner in living_tuners() if any(jit_function(tuner) is jit for jit in jits)]
        if not tuners:
            raise Stale("the kernel has no autotuner any more")
        try:
            key, winner = decode(json.loads(tuned.key), self.resolve), json.loads(tuned.winner)
            hash(key)
        except TypeError as error:  # an EncodingError, too
            raise Stale(str(error)) from None
        fresh = False
        for tuner in tuners:
            # From the tuner's own list: one made from text would lack its hooks.
            config = next((config for config in tuner.configs if str(config) == winner), None)
            if config is None:
                raise Stale(f"the autotuner has no configuration {winner} any more")
            if key not in tuner.cache:
                tuner.cache[key] = config
                fresh = True
        return fresh

    def _into(self, jit: Any, entry: Entry, load: bool) -> bool:
        from triton.runtime.driver import driver

        device = driver.active.get_current_device()
        in_memory, *_ = jit.device_caches[device]
        missing = [key for key in entry.keys if key not in in_memory]
        loaded = all(in_memory[key].module is not None for key in entry.keys if key in in_memory)
        if entry.keys and not missing and (loaded or not load):
            return False
        site = self._adapter.registry.site(jit)
        if site is None:
            self._compile(jit, entry, device, missing, load)
            return True
        bucket = entry.buckets[0] if entry.buckets else "unknown"
        thread = self._adapter.registry.thread
        with site.session("warmup", CELLS):
            call, ours = self._adapter.calls.begin(name_of(jit), "warmup")
            if call is not None and ours:
                call.kind, call.bucket, call.reasons = KIND, bucket, ("prewarmed from a census",)
            thread.prewarming = bucket
            try:
                self._compile(jit, entry, device, missing, load)
            finally:
                thread.prewarming = None
                if call is not None and ours:
                    self._adapter.calls.close(call)
        return True

    def _compile(self, jit: Any, entry: Entry, device: Any, missing: list[str], load: bool) -> None:
        inputs = self._inputs(jit, entry)
        in_memory, *_ = jit.device_caches[device]
        for key in missing or ([] if entry.keys else [_NO_KEY]):
            kernel = self._build(jit, key, device, inputs)
            if kernel is None or kernel.hash != entry.hash or key == _NO_KEY:
                in_memory.pop(key, None)
            if kernel is None:
                raise Stale("a jit_cache_hook took the compile away")
            self._count(jit)
            if kernel.hash != entry.hash:
                raise Stale(f"compiled to {kernel.hash[:12]}, recorded was {entry.hash[:12]}: something else differs")
        if load:
            # Binaries of one signature share a launcher, which Triton 3.6 compiles: once, and not in each thread.
            types = str([kind for kind in inputs[0].values() if kind != "constexpr"])
            with self._building.setdefault(types, threading.Lock()):
                for key in entry.keys:
                    in_memory[key]._init_handles()

    def _build(self, jit: Any, key: str, device: Any, inputs: Inputs) -> Any:
        """Triton's `_do_compile`. One binary may be an entry and a configuration of others: threads that come to it at
        the same time compile it once, and the later ones find it on the disk.
        """
        signature, constexprs, attrs, options = inputs
        parsed = jit.device_caches[device][3].parse_options(options)
        binary = f"{jit.ASTSource(jit, signature, constexprs, attrs).hash()} {parsed.hash()}"
        with self._building.setdefault(binary, threading.Lock()):
            return jit._do_compile(key, signature, device, constexprs, parsed, attrs, True)

    def _inputs(self, jit: Any, entry: Entry) -> Inputs:
        try:
            return decode_inputs(json.loads(entry.inputs), partial(self.resolve, user=jit.fn.__module__))
        except EncodingError as error:
            raise Stale(str(error)) from None

    def _count(self, jit: Any) -> None:
        """Each lookup belongs to a launch, a trial or a warm-up: the memory tier is worked out from that."""
        site = self._adapter.registry.site(jit)
        bucket = self._adapter.registry.thread.prewarming
        if site is not None and bucket is not None:
            self._adapter.registry.ledger.add(WARMUPS, (site.name, bucket))

    def _index(self) -> None:
        found: dict[str, list[Any]] = {}
        for jit in self._adapter.registry.kernels():
            found.setdefault(home_name_of(jit), []).append(jit)
        self._kernels = found  # at once: other threads look into it


_NO_KEY = "tritonprobe: no key was recorded"
_SCRIPT = (
    ": a script's own kernels are found in that program alone; move them into a module that can be imported, "
    "or replay the census in the program, with tritonprobe run --prewarm"
)


def living_tuners() -> list[Any]:
    """Every `Autotuner` of the process."""
    from triton.runtime.autotuner import Autotuner

    return list({id(tuner): tuner for tuner in (*in_modules(Autotuner), *instances(Autotuner))}.values())
