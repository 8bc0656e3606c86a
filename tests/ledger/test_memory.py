"""A ledger in memory: cells, gauges, histograms, the budget, many threads and forks."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from tritonprobe.ledger import HistogramSample, MemoryLedger, Sample, schema
from tritonprobe.ledger.memory import MAX_LABEL
from tritonprobe.model import TIERS


def values(ledger: MemoryLedger, metric: schema.Metric) -> dict[tuple[str, ...], float]:
    """The samples of one metric that is no histogram, as a scrape would see them."""
    samples = [s for family in ledger.collect() if family.metric is metric for s in family.samples]
    assert len({s.labels for s in samples}) == len(samples)
    return {s.labels: s.value for s in samples if isinstance(s, Sample)}


def histogram(ledger: MemoryLedger, metric: schema.Metric, *labels: str) -> HistogramSample:
    found = [s for family in ledger.collect() if family.metric is metric for s in family.samples]
    return next(s for s in found if isinstance(s, HistogramSample) and s.labels == labels)


def test_a_cell_is_a_series() -> None:
    ledger = MemoryLedger()
    cell = ledger.cell(schema.LAUNCHES, ("softmax", "N=1024"))
    assert values(ledger, schema.LAUNCHES) == {("softmax", "N=1024"): 0}
    cell[0] += 1
    cell[0] += 1
    assert values(ledger, schema.LAUNCHES) == {("softmax", "N=1024"): 2}
    assert ledger.cell(schema.LAUNCHES, ("softmax", "N=1024")) is cell


def test_nothing_recorded_is_absent_except_what_the_schema_creates() -> None:
    ledger = MemoryLedger()
    present = {family.metric for family in ledger.collect()}
    assert present == {metric for metric in schema.METRICS if metric.created}
    assert set(values(ledger, schema.AFTER_READY).items()) == {((tier,), 0) for tier in TIERS}


def test_families_come_in_the_schemas_order() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.ERRORS, ("binder",))
    ledger.add(schema.LAUNCHES, ("k", "all"))
    order = [schema.METRICS.index(family.metric) for family in ledger.collect()]
    assert order == sorted(order)


def test_a_gauge_is_set_and_taken_away() -> None:
    ledger = MemoryLedger()
    ledger.set(schema.READY, (), 1790000000.5)
    assert values(ledger, schema.READY) == {(): 1790000000.5}
    ledger.set(schema.READY, (), None)
    ledger.set(schema.READY, (), None)
    assert values(ledger, schema.READY) == {}


def test_a_value_on_a_bound_belongs_to_the_bucket_that_the_bound_closes() -> None:
    ledger = MemoryLedger()
    bounds = schema.COLD_BOUNDS
    for seconds in (bounds[0], bounds[0] * 1.5, bounds[-1], bounds[-1] * 2):
        ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), seconds)
    found = histogram(ledger, schema.COLD_CALL_SECONDS, "compile")
    assert found.counts[:2] == (1, 1)
    assert found.counts[-2:] == (1, 1)
    assert len(found.counts) == len(bounds) + 1
    assert found.sum == pytest.approx(bounds[0] * 2.5 + bounds[-1] * 3)


def test_no_counter_can_be_made_to_fall() -> None:
    ledger = MemoryLedger()
    for amount in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=r"launches_total is a counter"):
            ledger.add(schema.LAUNCHES, ("k", "all"), amount)
        with pytest.raises(ValueError, match=r"cold_call_seconds cannot take"):
            ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), amount)
    assert values(ledger, schema.LAUNCHES) == {}


def test_wrong_labels_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"launches_total takes the labels \('kernel', 'bucket'\)"):
        MemoryLedger().cell(schema.LAUNCHES, ("softmax",))


def test_beyond_the_budget_series_go_to_other_and_are_counted() -> None:
    ledger = MemoryLedger(budget=300)
    launches = 2000
    for i in range(launches):
        ledger.cell(schema.LAUNCHES, (f"kernel_{i}", "all"))[0] += 1
    found = values(ledger, schema.LAUNCHES)
    kept = len(found) - 1
    assert 0 < kept < 150
    assert found["other", "other"] == launches - kept
    assert sum(found.values()) == launches
    # Each of them came once. (Once the bounded memory of what was turned away is full, each attempt counts.)
    assert values(ledger, schema.SERIES_DROPPED) == {("launches_total",): launches - kept}


def test_a_series_turned_away_again_and_again_is_one_drop() -> None:
    ledger = MemoryLedger(budget=100)
    for _ in range(5):
        ledger.add(schema.LAUNCHES, ("k", "all"))
    assert values(ledger, schema.LAUNCHES) == {("other", "other"): 5}
    assert values(ledger, schema.SERIES_DROPPED) == {("launches_total",): 1}


def test_beyond_the_budget_closed_labels_keep_their_meaning() -> None:
    ledger = MemoryLedger(budget=100)
    ledger.add(schema.COLD_SECONDS, ("k", "ptx", "3"), 2.0)
    ledger.add(schema.STARTUP_COLD, ("ptx",), 2.0)
    ledger.add(schema.AFTER_READY, ("compile",))
    assert values(ledger, schema.COLD_SECONDS) == {("other", "ptx", "3"): 2}
    assert values(ledger, schema.STARTUP_COLD) == {("ptx",): 2}
    assert values(ledger, schema.AFTER_READY)["compile",] == 1


def test_a_scrape_stays_within_the_budget() -> None:
    budget = 1000
    ledger = MemoryLedger(budget)
    for i in range(budget):
        kernel = f"kernel_{i}"
        ledger.add(schema.LAUNCHES, (kernel, "all"), 2)
        ledger.add(schema.LOOKUPS, (kernel, "all", "compile"))
        ledger.observe(schema.TTFT, (kernel,), 0.1)
    shown = 0
    for family in ledger.collect():
        for sample in family.samples:
            shown += len(sample.counts) + 2 if isinstance(sample, HistogramSample) else 1
    overflow = 3 + 25 + 3  # `other` of launches, its lookups and memory tier; of TTFT; and the drops of three metrics
    assert budget * 0.9 < shown <= budget + overflow


def test_names_from_outside_have_a_limit_of_their_own() -> None:
    ledger = MemoryLedger()
    for i in range(schema.MODELS + 10):
        ledger.observe(schema.TTFT, (f"model-{i}",), 0.2)
    assert sum(histogram(ledger, schema.TTFT, "other").counts) == 10
    assert values(ledger, schema.SERIES_DROPPED) == {("time_to_first_token_seconds",): 10}
    ledger.add(schema.LAUNCHES, ("softmax", "all"))
    assert ("softmax", "all") in values(ledger, schema.LAUNCHES)


def test_label_values_become_text_that_every_format_can_carry() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCH_ERRORS, ("k\udc80", "E" * 10_000))
    ledger.add(schema.LAUNCH_ERRORS, ("k\udc80", "E" * 10_000))
    assert values(ledger, schema.LAUNCH_ERRORS) == {("k?", "E" * MAX_LABEL): 2}
    ledger.set(schema.VARIANTS, ("k\udc80",), 1)
    ledger.set(schema.VARIANTS, ("k\udc80",), None)
    assert values(ledger, schema.VARIANTS) == {}


def test_eight_threads_lose_no_count() -> None:
    ledger = MemoryLedger()
    each, threads = 20_000, 8
    start = threading.Barrier(threads)
    before = sys.getswitchinterval()

    def work() -> None:
        start.wait()
        for i in range(each):
            ledger.cell(schema.LAUNCHES, ("k", f"b{i % 7}"))[0] += 1
            ledger.add(schema.ERRORS, (f"part{i % 3}",))
            ledger.observe(schema.COLD_CALL_SECONDS, ("disk",), 0.25)

    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    assert sum(values(ledger, schema.LAUNCHES).values()) == each * threads
    assert sum(values(ledger, schema.ERRORS).values()) == each * threads
    found = histogram(ledger, schema.COLD_CALL_SECONDS, "disk")
    assert sum(found.counts) == each * threads
    assert found.sum == each * threads * 0.25


def test_a_scrape_while_series_are_born_sees_every_family_once() -> None:
    ledger = MemoryLedger(budget=100_000)
    done = threading.Event()

    def work() -> None:
        for i in range(5_000):
            ledger.add(schema.LAUNCHES, (f"k{i}", "all"))
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    seen = 0
    while not done.is_set():
        now = len(values(ledger, schema.LAUNCHES))
        assert now >= seen
        seen = now
    worker.join()
    assert len(values(ledger, schema.LAUNCHES)) == 5_000


def test_a_child_forked_while_a_series_is_born_can_still_count() -> None:
    ledger = MemoryLedger()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger._lock:
            held.set()
            go_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # a child that hangs is killed
        try:
            ledger.add(schema.LAUNCHES, ("k", "all"))
            assert values(ledger, schema.LAUNCHES) == {("k", "all"): 1}
        except BaseException:
            os._exit(1)
        os._exit(0)
    go_on.set()
    holder.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_goes_on_from_a_copy_of_its_parents_numbers() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("k", "all"), 5)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        ledger.add(schema.LAUNCHES, ("k", "all"), 2)
        os.write(theirs, str(values(ledger, schema.LAUNCHES)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(ours, 100).decode() == "{('k', 'all'): 7.0}"
    assert values(ledger, schema.LAUNCHES) == {("k", "all"): 5}
    os.close(ours)
    os.close(theirs)
