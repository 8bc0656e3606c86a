"""CUPTI's records, byte for byte as its header lays them out, read back as columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu_records.fake_gpu import raw
from tritonprobe.gpu.records import STRIDES, RecordError, busy_ns, grid_code, read

both = pytest.mark.parametrize("stride", STRIDES)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "start": st.integers(1, 2**62),
            "end": st.integers(1, 2**62),
            "device": st.integers(0, 15),
            "context": st.integers(0, 2**32 - 1),
            "stream": st.integers(0, 2**32 - 1),
            "x": st.integers(1, 2**31 - 1),
            "y": st.integers(1, 65535),
            "z": st.integers(1, 65535),
            "block": st.integers(1, 1024),
            "registers": st.integers(0, 255),
            "name": st.integers(0, 2**63),
            "node": st.integers(0, 2**63),
            "graph": st.integers(0, 2**32 - 1),
        }
    ),
    max_size=12,
)


@both
@given(rows=ROWS, cut=st.integers(0, 12))
def test_every_field_comes_back(stride: int, rows: list[dict[str, int]], cut: int) -> None:
    rows = [{**row, "correlation": place} for place, row in enumerate(rows)]
    found = read([raw(rows[:cut], stride), raw(rows[cut:], stride)], stride)
    assert len(found) == len(rows)
    for column in ("start", "end", "name", "node", "graph", "correlation"):
        assert getattr(found, column).tolist() == [row[column] for row in rows], column
    assert found.grid.tolist() == [grid_code(row["x"], row["y"], row["z"]) for row in rows]


@both
def test_records_are_in_launch_order_whatever_buffer_they_came_in(stride: int) -> None:
    chunks = [raw([{"correlation": n, "start": n} for n in numbers], stride) for numbers in ([7, 9], [3, 8], [1])]
    assert read(chunks, stride).start.tolist() == [1, 3, 7, 8, 9]


def test_kernels_of_one_replay_keep_their_order() -> None:
    rows = [{"correlation": correlation, "node": node} for correlation in (5, 4) for node in range(3)]
    found = read([raw(rows)], 216)
    assert list(zip(found.correlation.tolist(), found.node.tolist(), strict=True)) == [
        (correlation, node) for correlation in (4, 5) for node in range(3)
    ]


def test_correlation_ids_begin_again_after_the_last() -> None:
    last = 2**32 - 1
    rows = [{"correlation": c, "start": s} for s, c in ((3, 0), (1, last - 1), (4, 1), (2, last))]
    assert read([raw(rows)], 216).start.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("chunk", "stride", "because"),
    [
        (raw([{}]), 208, "216 bytes are no whole number of 208-byte kernel records"),
        (raw([{}, {"kind": 4}]), 216, "a record of kind 4 among the kernels"),
        (raw([{}]), 217, "217 bytes: expected at least 160, a multiple of 8"),
        (raw([{}]), 72, "72 bytes: expected at least 160"),
    ],
)
def test_other_bytes_are_refused(chunk: np.ndarray[tuple[int], np.dtype[np.uint8]], stride: int, because: str) -> None:
    with pytest.raises(RecordError, match=because):
        read([chunk], stride)


def test_nothing_is_no_record() -> None:
    assert len(read([], 216)) == 0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_busy_time_counts_overlaps_once(spans: list[tuple[int, int]]) -> None:
    rows = [{"start": start, "end": start + length, "correlation": i} for i, (start, length) in enumerate(spans)]
    busy = {t for start, length in spans for t in range(start, start + length)}
    assert busy_ns(read([raw(rows)], 216), 0) == len(busy)
    assert busy_ns(read([raw(rows)], 216), 1) == 0


@given(
    st.integers(0, 1 << 40), st.integers(-(1 << 40), 1 << 62), st.lists(st.integers(1, 10**9), min_size=1, max_size=9)
)
def test_times_move_to_another_clock_of_nanoseconds_unchanged_in_length(
    began: int, apart: int, spans: list[int]
) -> None:
    began += 1 << 41
    records = read([raw([{"start": began + span, "end": began + 3 * span} for span in spans])], 216)
    records.move_to((began, began + apart), (began + 10**7, began + apart + 10**7 + 900))
    assert records.start.tolist() == [began + span + apart for span in spans]
    assert (records.end - records.start).tolist() == [2 * span for span in spans]


def test_times_of_a_clock_that_counts_cycles_become_nanoseconds() -> None:
    """torch's profiler leaves such a clock behind: here of 2.1 GHz, which was read as 0 at 5 s of ours."""
    records = read([raw([{"start": 2100, "end": 4200}, {"start": 21_000_000, "end": 0}])], 216)
    records.move_to((0, 5_000_000_000), (42_000_000, 5_020_000_000))
    assert records.start.tolist() == [5_000_001_000, 5_010_000_000]
    assert records.end.tolist() == [5_000_002_000, 0]  # what has no end yet has none on any clock


def test_a_clock_that_stands_still_leads_nowhere() -> None:
    with pytest.raises(RecordError, match="went on by 0"):
        read([raw([{"start": 1}])], 216).move_to((7, 7), (7, 9))
