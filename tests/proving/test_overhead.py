"""What is concluded from rounds; and a tiny real run, whose figures mean nothing and whose shape is the document's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tritonprobe import native
from tritonprobe.proving import overhead
from tritonprobe.proving.modes import WAYS
from tritonprobe.proving.overhead import ARGUMENTS, MODES, PROCESSES, Mode, Overhead, Result, body
from tritonprobe.proving.rounds import Rounds

OURS = MODES[0]
GPU = {"versions": {"triton": "3.6.0"}, "device": "cuda:90 (NVIDIA H200)"}
COMPILE_ONLY = {**GPU, "device": "compile-only:cuda:90"}


def result(base=10.0, other=10.1, again=10.0, mode: Mode = OURS, kernel="add"):
    return Result.of(mode, kernel, Rounds([base] * 9, [other] * 9, [again] * 9), seed=0)


def found(*results: Result, made=GPU, unavailable=None):
    return Overhead(results, unavailable or {}, "native", made)


def test_a_result_is_of_paired_rounds():
    rounds = Rounds(base=[10.0, 20.0, 30.0], other=[11.0, 21.0, 31.0], again=[10.0, 20.0, 30.0])
    found = Result.of(OURS, "add", rounds, seed=0)
    assert (found.difference_us.median, found.difference_us.low, found.difference_us.high) == (1.0, 1.0, 1.0)
    assert found.ratio.median == pytest.approx(1.05)
    assert not found.noisy


def test_noise_beyond_one_percent_makes_it_inconclusive():
    assert not found(result(again=10.09)).inconclusive
    assert found(result(again=10.11)).inconclusive
    assert found(result(again=9.89)).inconclusive
    assert not found(result(again=10.11)).good


def test_the_noise_of_other_ways_is_theirs():
    wrapper = next(mode for mode in MODES if mode.name == "wrapper")
    assert not found(result(), result(mode=wrapper, again=12.0)).inconclusive


@pytest.mark.parametrize(
    ("base", "other", "kept"),
    [(20.0, 20.34, True), (20.0, 20.36, False), (10.0, 10.29, True), (10.0, 10.31, False)],
    ids=["within", "0.36 us", "within 3%", "3.1%"],
)
def test_the_promise_is_a_difference_and_a_ratio(base, other, kept):
    measured = found(result(base, other, base))
    assert measured.promise_kept is kept
    assert measured.good is kept


def test_one_kernel_that_breaks_the_promise_breaks_it():
    assert found(result(), result(other=11.0, kernel="matmul")).promise_kept is False


def test_nothing_is_said_of_the_promise_where_launches_do_nothing_or_noise_is_high():
    dear = result(other=11.0)
    assert found(dear, made=COMPILE_ONLY).promise_kept is None
    assert found(dear, made=COMPILE_ONLY).good
    assert found(replace(dear, noise=result(again=11.0).noise)).promise_kept is None


def test_every_mode_has_a_way_and_every_way_a_process():
    ways = {mode.way for mode in MODES}
    assert ways == set(WAYS) == {way for process in PROCESSES for way in process}


def test_the_kernels_have_as_many_arguments_as_is_said():
    from tritonprobe.proving.kernels import add_kernel, matmul_kernel

    assert {"add": len(add_kernel.arg_names), "matmul": len(matmul_kernel.arg_names)} == ARGUMENTS


@pytest.mark.parametrize(("pairs", "fewer"), [(200, 40), (10, 2), (2, 2)])
def test_other_ways_get_fewer_pairs(pairs, fewer):
    assert overhead.others(pairs) == fewer


def test_a_tiny_real_run():
    said: list[str] = []
    measured = overhead.measure(3, 40, 1, "compile-only:cuda:90", said.append)
    document = json.loads(json.dumps(body(measured, 40, 1)))

    assert measured.counting == ("inline" if native.compiler() is None else "native")
    assert measured.made["device"] == "compile-only:cuda:90"
    assert [(each["mode"], each["kernel"], each["arguments"], each["pairs"]) for each in document["results"]] == [
        (mode, kernel, arguments, pairs)
        for mode, pairs in (("ours", 3), ("op", 3), ("wrapper", 2), ("pre_run_hook", 2))
        for kernel, arguments in (("add", 5), ("matmul", 16))
    ]
    for each in document["results"]:
        assert each.keys() == {
            *("mode", "title", "kernel", "arguments", "pairs", "base_us", "difference_us", "ratio", "noise_ratio"),
            *("noisy", "rounds_us"),
        }
        assert {len(values) for values in each["rounds_us"].values()} == {each["pairs"]}
        assert all(value > 0 for values in each["rounds_us"].values() for value in values)
        for measure in ("difference_us", "ratio", "noise_ratio"):
            assert each[measure]["low"] <= each[measure]["high"]
    assert document["unavailable"].keys() == {"launch_hooks", "proton", "proton_hook", "torch_profiler"}
    assert document["round"]["launches"] == 40
    assert document["promise"]["kept"] is None
    assert document["inconclusive"] is any(each["noisy"] for each in document["results"][:2])
    assert said == ["ours: 3 of 3 pairs", "wrapper: 2 of 2 pairs", "pre_run_hook: 2 of 2 pairs"]
