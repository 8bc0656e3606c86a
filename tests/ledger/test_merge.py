"""A directory of ledger files as one ledger: what adds up, what dies with its process, and no counter ever falls."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.export.conftest import Probed, prometheus_server
from tests.ledger.scrape import SMALL, counters, dies, everything, histogram, program, values
from tritonprobe.export.http import serve
from tritonprobe.ledger import DirectoryReader, FileLedger, Ledger, open_ledger, schema
from tritonprobe.ledger.layout import BASE_NAME
from tritonprobe.model import OTHER

__all__ = ["prometheus_server"]  # a fixture of another room

K = ("k", "all")


def test_counters_and_histograms_add_up_over_the_living_and_the_dead(tmp_path: Path) -> None:
    dies(tmp_path, 1, 2)
    living = FileLedger(tmp_path, size=SMALL)
    living.add(schema.LAUNCHES, K, 4)
    living.observe(schema.COLD_CALL_SECONDS, ("compile",), 0.4)
    reader = DirectoryReader(tmp_path)
    assert values(reader, schema.LAUNCHES) == {K: 7}
    found = histogram(reader, schema.COLD_CALL_SECONDS, "compile")
    assert sum(found.counts) == 3
    assert found.sum == pytest.approx(0.7)
    assert values(reader, schema.VARIANTS) == {}


def test_gauges_are_those_of_the_living_by_their_rule(tmp_path: Path) -> None:
    living = [FileLedger(tmp_path, size=SMALL) for _ in range(3)]
    for i, ledger in enumerate(living):
        ledger.set(schema.VARIANTS, ("k",), 10 * (i + 1))  # a sum
        ledger.set(schema.READY, (), 100.0 + i)  # the latest
        ledger.set(schema.COLD_IN_PROGRESS, ("0",), 50.0 + i)  # the oldest
        ledger.set(schema.INFO, ("1", "3.6.0", "none", "rewrite"), 1.0)
    reader = DirectoryReader(tmp_path)

    def gauges() -> list[dict[tuple[str, ...], float]]:
        metrics = (schema.VARIANTS, schema.READY, schema.COLD_IN_PROGRESS, schema.INFO)
        return [values(reader, metric) for metric in metrics]

    info = {("1", "3.6.0", "none", "rewrite"): 1.0}
    assert gauges() == [{("k",): 60}, {(): 102}, {("0",): 50}, info]
    del ledger, living[2]
    assert gauges() == [{("k",): 30}, {(): 101}, {("0",): 50}, info]
    living[0].set(schema.COLD_IN_PROGRESS, ("0",), None)
    assert values(reader, schema.COLD_IN_PROGRESS) == {("0",): 51}
    living.clear()
    assert gauges() == [{}, {}, {}, {}]


def test_hits_in_memory_are_derived_from_the_sums(tmp_path: Path) -> None:
    ranks = [FileLedger(tmp_path, size=SMALL) for _ in range(4)]
    reader = DirectoryReader(tmp_path)

    def hits() -> float:
        return values(reader, schema.LOOKUPS).get((*K, "memory"), math.nan)

    ranks[0].set(schema.VARIANTS, ("k",), 1)
    for ledger in ranks:  # all of them compile the same kernel at the same time
        ledger.add(schema.LAUNCHES, K)
        ledger.set(schema.COLD_IN_PROGRESS, ("0",), 1790000000.0)
    assert hits() == 0
    ranks[0].add(schema.LAUNCHES, K, 10)
    assert hits() == 10
    for ledger in ranks:
        ledger.add(schema.LOOKUPS, (*K, "compile"))
        ledger.set(schema.COLD_IN_PROGRESS, ("0",), None)
        assert hits() == 10
    assert values(reader, schema.LOOKUPS) == {(*K, "compile"): 4, (*K, "memory"): 10}


def test_an_empty_directory_has_what_the_schema_creates(tmp_path: Path) -> None:
    assert {key[0] for key in everything(DirectoryReader(tmp_path))} == {m.name for m in schema.METRICS if m.created}


def test_one_budget_holds_for_all_processes(tmp_path: Path) -> None:
    gauges, counting = (FileLedger(tmp_path, size=1 << 18) for _ in range(2))
    for i in range(300):
        gauges.set(schema.VARIANTS, (f"{i}",), 1)
    reader = DirectoryReader(tmp_path, budget=1000)
    assert len(values(reader, schema.VARIANTS)) == 300
    for i in range(1000):
        counting.add(schema.LAUNCHES, (f"kernel_{i}", "all"))
    found = values(reader, schema.LAUNCHES)
    assert sum(found.values()) == 1000
    assert 100 < len(found) < 400
    drops = {("launches_total",): 1000 - len(found) + 1}
    assert values(reader, schema.SERIES_DROPPED) == drops
    del gauges  # which makes room; what `other` has counted stays there all the same
    assert values(reader, schema.VARIANTS) == {}
    assert values(reader, schema.LAUNCHES) == found
    assert values(reader, schema.SERIES_DROPPED) == drops


def test_a_reader_shows_as_many_series_as_a_process_there_may_have(tmp_path: Path) -> None:
    series = 12_000
    reader = DirectoryReader(tmp_path)
    with closing(open_ledger(str(tmp_path), 25_000)) as ledger:
        for i in range(series):
            ledger.add(schema.LAUNCHES, (f"kernel_{i}", "all"))
        assert len(values(reader, schema.LAUNCHES)) == series
        assert values(reader, schema.SERIES_DROPPED) == {}
        for i in range(series, 50_000):
            ledger.add(schema.LAUNCHES, (f"kernel_{i}", "all"))
        shown = values(reader, schema.LAUNCHES)
    assert len(shown) <= 30_000  # bounded all the same
    assert sum(shown.values()) == 50_000


@pytest.mark.parametrize(("budget", "grows"), [(100, False), (1000, True)])
def test_what_was_turned_away_stays_so_when_the_budget_grows(budget: int, grows: bool, tmp_path: Path) -> None:
    """Of more than 100 it is not remembered who they were."""
    reader = DirectoryReader(tmp_path, budget)
    with closing(FileLedger(tmp_path, size=1 << 18)) as ledger:
        for i in range(1100):
            ledger.add(schema.LAUNCHES, (f"kernel_{i}", "all"))
        before = values(reader, schema.LAUNCHES)
        assert before[OTHER, OTHER] >= 100
        with closing(open_ledger(str(tmp_path), 10_000)) as larger:
            larger.add(schema.LAUNCHES, ("kernel_new", "all"), 5)
            after = values(reader, schema.LAUNCHES)
    came = ("kernel_new", "all") if grows else (OTHER, OTHER)
    assert after == {**before, came: before.get(came, 0) + 5}


def test_a_compile_is_never_taken_for_a_hit_whenever_one_looks(tmp_path: Path) -> None:
    compiling = program(
        """
ledger = FileLedger(Path(sys.argv[1]), size=1 << 16)
for i in range(10_000_000):
    pair = ("k", f"b{i % 100}")
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), 1790000000.0)
    ledger.add(schema.LAUNCHES, pair)
    ledger.add(schema.LOOKUPS, (*pair, "compile"))
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), None)
    if i == 200: print("warm", flush=True)
""",
        tmp_path,
    )
    try:
        assert compiling.stdout is not None
        compiling.stdout.readline()
        reader = DirectoryReader(tmp_path)
        for _ in range(300):
            found = values(reader, schema.LOOKUPS)
            assert {value for (_, _, tier), value in found.items() if tier == "memory"} == {0}
            assert sum(found.values()) > 100
    finally:
        compiling.kill()
        compiling.communicate()


def test_scrapes_during_folds_forks_and_deaths_never_see_a_counter_fall(tmp_path: Path) -> None:
    """A program forks, counts, dies and folds as fast as it can, under a reader that stays and ones made anew."""
    churn = program(
        """
from tritonprobe.ledger import fold
folder = Path(sys.argv[1])
ledger = FileLedger(folder, size=1 << 16)
cell = ledger.cell(schema.LAUNCHES, K)
said = 0
while os.getppid() == int(sys.argv[2]):
    if os.fork() == 0:
        for i in range(20):
            cell[0] += 1
            ledger.add(schema.COLD_SECONDS, ("k", "ptx", "0"), 0.1)
            ledger.observe(schema.COLD_CALL_SECONDS, ("disk",), 0.7)
        os.kill(os.getpid(), 9)
    os.wait()
    said += 20
    fold.fold(folder, above=5)
    os.write(1, b"%d\\n" % said)
""",
        tmp_path,
        str(os.getpid()),
    )
    assert churn.stdout is not None
    try:
        said, stays, before = 0, DirectoryReader(tmp_path), counters(DirectoryReader(tmp_path))
        folds = 0
        base: bytes | None = None
        while folds < 30:
            for reader in (stays, DirectoryReader(tmp_path)):
                now = counters(reader)
                assert reader.problems == {}
                for key, numbers in before.items():
                    assert all(new >= old for new, old in zip(now[key], numbers, strict=True)), key
                before = now
            said = int(churn.stdout.readline())
            assert values(stays, schema.LAUNCHES)[K] >= said
            latest = (tmp_path / BASE_NAME).read_bytes()[:64] if (tmp_path / BASE_NAME).exists() else None
            folds += latest != base
            base = latest
    finally:
        churn.kill()
        churn.communicate()


def test_a_directory_that_is_gone_leaves_the_last_counts_and_no_gauges(tmp_path: Path) -> None:
    place = tmp_path / "ledger"
    place.mkdir()
    dies(place, 3)
    living = FileLedger(place, size=SMALL)
    living.set(schema.VARIANTS, ("k",), 2)
    reader = DirectoryReader(place)
    before = counters(reader)
    shutil.rmtree(place)
    assert counters(reader).items() >= {**before, ("errors_total", ("ledger_file",)): (1.0,)}.items()
    assert values(reader, schema.VARIANTS) == {}
    assert reader.problems == {".": "cannot be read (No such file or directory)"}


def test_prometheus_sees_no_reset_through_deaths_restarts_forks_and_folds(
    tmp_path: Path, prometheus_server: Callable[..., Any]
) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    reader: Any = DirectoryReader(folder)
    ledger: Ledger = reader
    probed = Probed(ledger)
    work = """
from tritonprobe.ledger import fold
ledger = FileLedger(Path(sys.argv[1]), size=1 << 16)
cell = ledger.cell(schema.LAUNCHES, K)
while True:
    if os.fork() == 0:
        for _ in range(10):
            cell[0] += 1
            ledger.add(schema.COLD_SECONDS, ("k", "ptx", "0"), 0.1)
        os._exit(0)
    os.wait()
    cell[0] += 1
    fold.fold(Path(sys.argv[1]), above=3)
"""
    with serve(probed) as server:
        running = program(work, folder)
        try:
            prometheus = prometheus_server([server.url])
            series = 'tritonprobe_launches_total{kernel="k"}'
            prometheus.wait_for_scrapes(series, 2)
            for scrapes in (6, 12, 18):
                running.kill()
                running.communicate()
                running = program(work, folder)
                prometheus.wait_for_scrapes(series, scrapes)
            running.kill()
            running.communicate()
            last = values(reader, schema.LAUNCHES)[K]
            prometheus.wait_for(series, lambda found: set(found.values()) == {last})
            names = [f"tritonprobe_{name}" for name, _ in counters(reader)]
            suffixes = {False: [""], True: ["_bucket", "_sum", "_count"]}
            counting = {name + end for name in names for end in suffixes[not name.endswith("_total")]}
            resets = {name: prometheus.query(f"resets({name}[5m])") for name in sorted(counting)}
        finally:
            running.kill()
            running.communicate()
    assert {"tritonprobe_cold_call_seconds_bucket", "tritonprobe_cold_seconds_total"} <= resets.keys()
    assert {count for found in resets.values() for count in found.values()} == {0}
    assert all(resets.values())
    assert (folder / BASE_NAME).exists()
