"""Carries out a plan in this process: in threads, under a deadline, and whatever stops it, what is done stays done.

Threads, since Triton's compiler, ptxas and gcc leave the interpreter lock: sixteen of them compile four times as fast
as one (docs/prewarm.md). Each variant is one task; the calling thread does what Triton takes no lock for. A stale entry
is named and skipped, a failing one too. Ctrl-C and the deadline stop handing tasks out; those under way are finished.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tritonprobe.prewarming.plan import Plan, Task, make_plan, untuned, winners
from tritonprobe.prewarming.skipped import Skipped, told
from tritonprobe.shapes.census import Census, Entry
from tritonprobe.wording import counted

if TYPE_CHECKING:
    from tritonprobe.adapter.core import Adapter
    from tritonprobe.adapter.replay import Replay

log = logging.getLogger("tritonprobe")

MAX_THREADS = 16
GRACE_SECONDS = 10.0
"""What is under way at the deadline, or at Ctrl-C, gets to finish in."""
MAX_SHOWN = 200
"""Characters of an error in a reason."""
Progress = Callable[[int, int, str], None]
"""Told of variants done, of all that are planned, and of the kernel that was done last."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Autotuners without a winner for this device choose, but for those of `without`; each is told before."""

    about_to: Callable[[str], None] = lambda _: None
    without: frozenset[str] = frozenset()


@dataclass(slots=True)
class Prewarmed:
    """What came of it: what was planned was replayed, there before, skipped or left undone.

    ``coverage`` is the share of the census's launches whose variants are there now.
    """

    planned: int = 0
    replayed: int = 0
    """Compiled, read or loaded now."""
    on_disk: int = 0
    """Of these, those whose binary Triton's cache folder had before."""
    there_before: int = 0
    """In memory, and loaded."""
    winners: int = 0
    """Winners that autotuners have now, taken over or chosen."""
    configurations: int = 0
    """Binaries for tuners that are yet to choose, beside the recorded ones."""
    left_out: int = 0
    unneeded: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    """Variants, and winners beside them."""
    undone: int = 0
    """Planned, and not begun or not ended when it was stopped."""
    seconds: float = 0.0
    coverage: float | None = None
    stopped: str | None = None
    """``deadline`` or ``interrupt``, if something of the plan was not begun for that."""

    @property
    def variants_skipped(self) -> int:
        return sum(not skipped.winner for skipped in self.skipped)

    def summary(self) -> str:
        """``21 variants in 0.4 s: 2 compiled, 19 there before; 0 skipped``: in memory, or in Triton's cache."""
        compiled = self.replayed - self.on_disk
        there = self.on_disk + self.there_before
        variants = counted(compiled + there, "variant")
        winners = len(self.skipped) - self.variants_skipped
        rest = [f"{self.variants_skipped:,} skipped"]
        rest += [f"{self.undone:,} not done"] if self.undone else []
        rest += [f"{counted(winners, 'winner')} skipped"] if winners else []
        done = f"{variants} in {self.seconds:.1f} s: {compiled:,} compiled, {there:,} there before"
        return f"{done}; {', '.join(rest)}"


def run(
    census: Census,
    adapter: Adapter,
    *,
    cover: float = 1.0,
    budget: float | None = None,
    timeout: float | None = None,
    threads: int | None = None,
    modules: Collection[str] = (),
    expand: bool = False,
    tune: Tuning | None = None,
    progress: Progress | None = None,
) -> Prewarmed:
    """Replays `census` on Triton's active device.

    ``budget`` is in seconds: the plan leaves out what does not fit. ``timeout`` is when to stop in any case. With
    ``expand`` a kernel whose tuner chose where nothing can be measured is compiled in all of its configurations; with
    ``tune`` the tuners choose here and now, which takes the GPU: for a process that does not serve.

    Raises ValueError for a bad `cover`, RuntimeError while a stream captures, and what Triton raises without a device.
    """
    from tritonprobe.adapter.device import is_capturing
    from tritonprobe.adapter.replay import Replay

    begin = time.monotonic()
    if is_capturing():
        raise RuntimeError("prewarm loads modules, which breaks the graph that is being captured: call it before")
    workers = threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
    replay = Replay(adapter, census, modules)
    budget_ns = None if budget is None else int(budget * 1e9)
    choosing = frozenset() if tune is None else _choosing(census, replay)
    # What only tuners met is compiled while they choose, and measured as it comes.
    others = census.without(lambda entry: entry.kernel in choosing and not entry.launched)
    plan = make_plan(others, cover=cover, budget_ns=budget_ns, workers=workers, on_disk=_on_disk())
    result = Prewarmed(planned=len(plan.tasks), left_out=len(plan.left_out), unneeded=len(plan.unneeded))
    run_ = _Run(replay, result, _deadline(begin, budget, timeout), progress)
    run_.expanded = untuned(census) if expand else frozenset()
    run_.on_disk = frozenset(task.entry.identity for task in plan.tasks if task.on_disk)
    try:
        with adapter.parsing.in_turn():
            run_.tasks(_ready_to_go(plan, replay, result), len(plan.tasks), workers)
            run_.take_over(census, workers, tune)
    except KeyboardInterrupt:
        result.stopped = "interrupt"
    result.configurations = len(run_.configurations - {entry.hash for entry in census.entries.values()})
    result.undone = result.planned - result.replayed - result.there_before - result.variants_skipped
    result.coverage = coverage(census, plan, replay, run_.there)
    result.seconds = time.monotonic() - begin
    for line in told(result.skipped):
        log.info("tritonprobe: prewarm %s", line)
    return result


def _choosing(census: Census, replay: Replay) -> frozenset[str]:
    """Kernels whose tuners have no winner for this device."""
    return frozenset(tuned.kernel for tuned in winners(census) if not replay.was_measured_here(tuned))


def _deadline(begin: float, *seconds: float | None) -> float | None:
    return min((begin + each for each in seconds if each is not None), default=None)


def coverage(census: Census, plan: Plan, replay: Replay, there: Collection[tuple[str, ...]]) -> float | None:
    """The share of the launches on this target that `there` stands for; None if the census has none for it."""
    unneeded = {entry.identity for entry in plan.unneeded}
    mine = [e for k, e in census.entries.items() if k not in unneeded and replay.of_this_target(e)]
    if not mine:
        return None
    weights = census.weights(mine)
    if not any(weights.values()):
        weights = dict.fromkeys(weights, 1.0)
    return sum(weights[e.identity] for e in mine if e.identity in there) / sum(weights.values())


class _Run:
    """One run's tasks, deadline and account."""

    def __init__(self, replay: Replay, result: Prewarmed, deadline: float | None, progress: Progress | None) -> None:
        from tritonprobe.adapter.device import elsewhere

        self._replay = replay
        self._result = result
        self._deadline = deadline
        self._progress = progress
        self._go_there = elsewhere()
        self._done = 0
        self.there: set[tuple[str, ...]] = set()
        self.configurations: set[str] = set()  # hashes; one operation of a set is safe on any thread
        self.expanded: frozenset[str] = frozenset()  # kernels whose entries are compiled in every configuration
        self.on_disk: frozenset[tuple[str, ...]] = frozenset()  # entries that were there before anything was compiled

    def tasks(self, tasks: Iterator[list[Entry]], total: int, workers: int) -> None:
        """Replays each list of entries, which are one binary, as one task."""
        executor = ThreadPoolExecutor(workers, "tritonprobe-prewarm", self._go_there or (lambda: None))
        under_way: dict[Future[list[bool]], list[Entry]] = {}
        try:
            for entries in tasks:
                if self._late():
                    break
                under_way[executor.submit(self._one, entries)] = entries
                # A short queue: what the deadline or Ctrl-C finds in it is not begun any more.
                while len(under_way) >= 2 * workers and self._collect(under_way, total):
                    pass
            while under_way and self._collect(under_way, total):
                pass
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            begun = [future for future in under_way if not future.cancelled()]
            # What hangs must not keep a server from its traffic.
            for future in wait(begun, timeout=GRACE_SECONDS).done:
                self._account(future, under_way.pop(future), total)

    def take_over(self, census: Census, workers: int, tuning: Tuning | None) -> None:
        """Gives tuners their recorded winners; with a `tuning`, those that have none here choose."""
        from tritonprobe.adapter.trials import tune

        for tuned in winners(census):
            if self._late():
                return
            try:
                if tuning is None or self._replay.was_measured_here(tuned):
                    self._result.winners += self._replay.take_over(tuned)
                elif tuned.kernel not in tuning.without:
                    tuning.about_to(tuned.kernel)
                    with ThreadPoolExecutor(workers, "tritonprobe-prewarm", self._go_there or (lambda: None)) as pool:
                        self._replay.chose(tune(self._replay, census, tuned, pool))
                    self._result.winners += 1
            except Exception as error:
                skipped = _skipped(tuned.kernel, error)
                self._result.skipped.append(replace(skipped, winner=True, key=self._replay.text_of_key(tuned)))

    def _one(self, entries: list[Entry]) -> list[bool]:
        loads_here = self._go_there is not None
        done = [self._replay.replay(entry, loads_here) for entry in entries]
        if entries[0].kernel in self.expanded:
            self.configurations |= self._replay.expand(entries[0])
        return done

    def _late(self) -> bool:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._result.stopped = "deadline"
            return True
        return False

    def _collect(self, under_way: dict[Future[list[bool]], list[Entry]], total: int) -> bool:
        """Waits for the next task to end. False if the deadline comes first."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        done = wait(under_way, timeout=left, return_when=FIRST_COMPLETED).done
        for future in done:
            self._account(future, under_way.pop(future), total)
        return bool(done) or not self._late()

    def _account(self, future: Future[list[bool]], entries: list[Entry], total: int) -> None:
        self._done += len(entries)
        try:
            fresh = future.result()
            if self._go_there is None:
                fresh = [self._replay.replay(entry) or was for entry, was in zip(entries, fresh, strict=True)]
        except Exception as error:
            self._result.skipped += [_skipped(entry.kernel, error) for entry in entries]
        else:
            self._result.replayed += sum(fresh)
            self._result.there_before += len(fresh) - sum(fresh)
            self._result.on_disk += sum(
                was and entry.identity in self.on_disk for entry, was in zip(entries, fresh, strict=True)
            )
            self.there.update(entry.identity for entry in entries)
        if self._progress is not None:
            self._progress(self._done, total, entries[0].kernel)


def _ready_to_go(plan: Plan, replay: Replay, result: Prewarmed) -> Iterator[list[Entry]]:
    """The plan's entries in their order, those of one binary together; stale ones are named and left out."""
    alike: dict[str, list[Task]] = {}
    for task in plan.tasks:
        alike.setdefault(task.entry.hash, []).append(task)
    for tasks in alike.values():
        good: list[Entry] = []
        for task in tasks:
            try:
                replay.prepare(task.entry)
                good.append(task.entry)
            except Exception as error:
                result.skipped.append(_skipped(task.entry.kernel, error))
        if good:
            yield good


def _skipped(kernel: str, error: Exception) -> Skipped:
    """Whatever comes of one entry, the others are replayed: a census is a file, and may say anything."""
    from tritonprobe.adapter.replay import Stale

    because = str(error)
    if not isinstance(error, Stale):
        because = f"{type(error).__name__}: {because.strip().partition(chr(10))[0][:MAX_SHOWN]}"
    return Skipped(kernel, because)


def _on_disk() -> Callable[[Entry], bool]:
    """Whether Triton's cache folder has an entry's binary: the group file, which Triton writes last."""
    from tritonprobe.adapter.diskkey import cache_folder, entry_folder, is_read
    from tritonprobe.prewarming.folders import GROUP

    folder = cache_folder() if is_read() else None

    def there(entry: Entry) -> bool:
        name = entry_folder(entry.hash)
        return folder is not None and name is not None and any(Path(folder, name).glob(f"{GROUP}*"))

    return there
