"""The `memory` tier: launches, trials and warm-ups less the lookups that went further, and never falling."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tritonprobe.ledger import MemoryLedger, Sample, schema


def memory(ledger: MemoryLedger) -> dict[tuple[str, str], float]:
    found = [s for family in ledger.collect() if family.metric is schema.LOOKUPS for s in family.samples]
    return {(s.labels[0], s.labels[1]): s.value for s in found if isinstance(s, Sample) and s.labels[2] == "memory"}


def test_what_looked_no_further_was_found_in_memory() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("k", "N=8"), 10)
    ledger.add(schema.WARMUPS, ("k", "N=8"), 2)
    ledger.add(schema.TRIALS, ("k", "N=8"), 100)
    ledger.add(schema.LOOKUPS, ("k", "N=8", "compile"), 4)
    ledger.add(schema.LOOKUPS, ("k", "N=8", "disk"), 3)
    assert memory(ledger) == {("k", "N=8"): 10 + 2 + 100 - 7}


def test_a_bucket_that_found_everything_in_memory_has_only_that_tier() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("k", "M<=16"), 1)
    ledger.add(schema.LOOKUPS, ("k", "M<=16", "compile"))
    ledger.add(schema.LAUNCHES, ("k", "M<=32"), 5)
    assert memory(ledger) == {("k", "M<=16"): 0, ("k", "M<=32"): 5}


def test_a_kernel_of_the_interpreter_has_no_tiers() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("interpreted", "all"), 7)
    assert memory(ledger) == {}


def test_a_kernel_compiled_before_the_probe_has_hits_once_a_variant_is_known() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("k", "all"), 7)
    assert memory(ledger) == {}
    ledger.set(schema.VARIANTS, ("k",), 1)
    assert memory(ledger) == {("k", "all"): 7}


def test_a_call_that_raised_before_a_variant_was_found_is_in_no_tier() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("k", "all"), 10)
    ledger.add(schema.LOOKUPS, ("k", "all", "compile"))
    ledger.add(schema.LOOKUPS_FAILED, ("k", "all"), 3)
    assert memory(ledger) == {("k", "all"): 6}


def test_lookups_under_another_bucket_make_nothing_negative() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("k", "a"), 1)
    ledger.add(schema.LOOKUPS, ("k", "a", "compile"), 5)
    ledger.add(schema.LOOKUPS, ("k", "never launched", "compile"), 1)
    assert memory(ledger) == {("k", "a"): 0}


def test_hits_do_not_fall_when_lookups_are_told_late() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LOOKUPS, ("k", "all", "compile"))
    ledger.add(schema.LAUNCHES, ("k", "all"), 5)
    assert memory(ledger) == {("k", "all"): 4}
    ledger.add(schema.LOOKUPS, ("k", "all", "disk"), 2)
    assert memory(ledger) == {("k", "all"): 4}
    ledger.add(schema.LAUNCHES, ("k", "all"), 3)
    assert memory(ledger) == {("k", "all"): 5}


def test_a_compile_in_progress_is_not_taken_for_a_hit() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("k", "M<=16"))
    ledger.add(schema.LOOKUPS, ("k", "M<=16", "compile"))
    ledger.add(schema.LAUNCHES, ("k", "M<=32"))
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), 1790000000.0)
    assert memory(ledger) == {("k", "M<=16"): 0, ("k", "M<=32"): 0}
    ledger.add(schema.LOOKUPS, ("k", "M<=32", "compile"))
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), None)
    assert memory(ledger) == {("k", "M<=16"): 0, ("k", "M<=32"): 0}


def test_a_tuning_in_progress_hides_its_trials_but_not_the_hits_of_traffic() -> None:
    ledger = MemoryLedger()
    ledger.set(schema.VARIANTS, ("k",), 1)
    ledger.add(schema.LAUNCHES, ("k", "M<=16"), 10)
    assert memory(ledger) == {("k", "M<=16"): 10}
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), 1790000000.0)
    ledger.add(schema.TRIALS, ("k", "M<=16"), 50)
    ledger.add(schema.LAUNCHES, ("k", "M<=16"), 20)
    assert memory(ledger) == {("k", "M<=16"): 29}
    ledger.add(schema.LOOKUPS, ("k", "M<=16", "compile"), 8)
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), None)
    assert memory(ledger) == {("k", "M<=16"): 30 + 50 - 8}


PAIRS = [("k", "a"), ("k", "b"), ("other", "other")]
steps = st.lists(
    st.tuples(
        st.sampled_from(["launch", "trial", "warmup", "further", "begin", "end", "read"]),
        st.sampled_from(PAIRS),
        st.integers(1, 5),
    ),
    max_size=60,
)


@settings(deadline=None)  # time is not what this is about
@given(steps)
def test_hits_never_fall_and_are_exact_in_the_end(history: list[tuple[str, tuple[str, str], int]]) -> None:
    ledger = MemoryLedger()
    calls: Counter[tuple[str, str]] = Counter()
    further: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str], float] = {}
    cells = {"launch": schema.LAUNCHES, "trial": schema.TRIALS, "warmup": schema.WARMUPS}
    for what, pair, n in history:
        if what in cells:
            ledger.add(cells[what], pair, n)
            calls[pair] += n
        elif what == "further":
            ledger.add(schema.LOOKUPS, (*pair, "compile"), n)
            further[pair] += n
        elif what == "read":
            now = memory(ledger)
            assert all(now[p] >= value for p, value in seen.items())
            seen = now
        else:
            ledger.set(schema.COLD_IN_PROGRESS, ("0",), 1.0 if what == "begin" else None)
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), None)
    # Once launches have caught up with whatever was said too early, the equation holds again.
    for pair in PAIRS:
        ledger.add(schema.LAUNCHES, pair, 1000)
        ledger.add(schema.LOOKUPS, (*pair, "disk"))
        assert memory(ledger)[pair] == max(calls[pair] + 1000 - further[pair] - 1, 0)
