"""What `census show` prints: names give way in a narrow terminal, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tritonprobe.cli import census
from tritonprobe.shapes.census import Census

LONG = "vllm.v1.attention.ops.triton_unified_attention.kernel_unified_attention"
TWINS = ("one.package.of.many.a_kernel_with_a_rather_long_name", "another.package.a_kernel_with_a_rather_long_name")


def shown(path: Path, width: int | None, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    Census.of(launches={(name, "n<=8"): 1_000_000 for name in names}).save(path / "census.json")
    monkeypatch.setattr(census, "columns", lambda: width)
    done = CliRunner().invoke(census.census, ["show", str(path / "census.json")])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_a_long_name_is_whole_where_nothing_limits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    head, row, total = shown(tmp_path, None, monkeypatch, LONG)
    assert row.split() == [LONG, "0", "1", "1,000,000", "0", "0.00"]
    assert len(head) == len(row)
    assert total == "0 variants, 0 autotune winners, 1,000,000 launches"


def test_in_a_terminal_it_is_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    head, row, _ = shown(tmp_path, 80, monkeypatch, LONG)
    assert row.split()[0] == "kernel_unified_attention"
    assert len(head) == len(row) <= 80


@pytest.mark.parametrize("width", [80, 60, 20])
def test_what_is_too_long_still_is_cut_and_the_numbers_are_not(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
):
    rows = shown(tmp_path, width, monkeypatch, *TWINS)[1:3]
    assert all("… " in row and row.split()[-5:] == ["0", "1", "1,000,000", "0", "0.00"] for row in rows)
    assert width == 20 or all(len(row) <= width for row in rows)


@pytest.mark.parametrize(
    ("more", "said"), [({}, "no difference\n"), ({("k", "n<=8"): 2}, "1 bucket with other launch counts\n")]
)
def test_a_difference_is_told_and_no_other(more: dict[tuple[str, str], int], said: str, tmp_path: Path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    Census.of(launches={("k", "n<=8"): 1}).save(before)
    Census.of(launches={("k", "n<=8"): 1, **more}).save(after)
    done = CliRunner().invoke(census.census, ["diff", str(before), str(after)])
    assert (done.exit_code, done.output) == (0, said)
