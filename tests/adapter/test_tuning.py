"""Autotuning in a cold call: trials, failed configurations by reason, winners, and results from disk."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton

from tests.adapter import kernels
from tests.adapter.conftest import fresh, samples_of, total_of
from tritonprobe.model import ColdCall
from tritonprobe.runtime import Runtime
from tritonprobe.testing import capture_cold_calls

X = torch.empty(64)
STRICT = "tests.adapter.kernels.strict_kernel"


def tuned(kernel: Any, values: list[dict[str, int]], **options: Any) -> Any:
    configs = [triton.Config(value) for value in values]
    return triton.autotune(configs=configs, key=["n"], **options)(fresh(kernel))


def cold(call: Any) -> ColdCall:
    with capture_cold_calls() as calls:
        call()
    (found,) = calls
    return found


def test_a_session_lists_its_trials_and_the_winner(instrumented: Runtime) -> None:
    milliseconds = iter([3.0, 1.0, 2.0])

    def do_bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [next(milliseconds)] * 3

    tuner = tuned(kernels.add_kernel, [{"BLOCK": b} for b in (64, 128, 256)], do_bench=do_bench)
    call = cold(lambda: tuner[(1,)](X, X, X, 64))

    assert call.tuning is not None
    assert [trial.outcome for trial in call.tuning.trials] == ["ok", "ok", "ok"]
    assert call.tuning.winner == str(tuner.best_config) == call.tuning.trials[1].config
    assert call.reasons[0].startswith("no autotune winner yet for (64, ")
    assert call.reasons[1] == "new kernel"
    assert call.tier == "compile"
    assert sum(found.count for found in call.lookups) == 3
    assert 0 < call.tuning.wall_ns <= call.wall_ns
    assert total_of(instrumented, "autotune_trials_total") == 3
    assert total_of(instrumented, "launches_total") == 1


def test_on_the_compile_only_device_trials_have_no_time(instrumented: Runtime) -> None:
    tuner = tuned(kernels.add_kernel, [{"BLOCK": b} for b in (64, 128)])
    call = cold(lambda: tuner[(1,)](X, X, X, 64))

    assert call.tuning is not None
    assert [trial.seconds for trial in call.tuning.trials] == [None, None]


def test_failed_configurations_are_counted_by_reason(instrumented: Runtime) -> None:
    tuner = tuned(kernels.strict_kernel, [{"BLOCK": 64, "WANTED": w} for w in (500, 5, 200)])
    call = cold(lambda: tuner[(1,)](X, 64))

    assert call.tuning is not None
    assert [trial.outcome for trial in call.tuning.trials] == ["compile_assertion", "ok", "compile_assertion"]
    assert call.error is None
    assert samples_of(instrumented, "autotune_configs_total") == {
        ("ok",): 1,
        ("compile_assertion",): 2,
        ("out_of_resources",): 0,
        ("ptxas_error",): 0,
        ("error",): 0,
        ("pruned",): 0,
    }
    assert total_of(instrumented, "launch_errors_total") == 0
    assert samples_of(instrumented, "lookups_failed_total") == {(STRICT, "n=64"): 2}


def test_a_configuration_that_needs_too_much_shared_memory_is_out_of_resources(instrumented: Runtime) -> None:
    a = torch.empty(256 * 256)
    tuner = tuned(kernels.dot_kernel, [{"SIZE": s} for s in (16, 256)])
    call = cold(lambda: tuner[(1,)](a, a, a, 256))

    assert call.tuning is not None
    assert [trial.outcome for trial in call.tuning.trials] == ["ok", "out_of_resources"]
    assert call.tuning.winner == call.tuning.trials[0].config


def test_pruned_configurations_are_counted(instrumented: Runtime) -> None:
    def first_two(configs: list[Any], args: Any, **kwargs: Any) -> list[Any]:
        return configs[:2]

    tuner = tuned(
        kernels.add_kernel,
        [{"BLOCK": b} for b in (32, 64, 128, 256)],
        prune_configs_by={"early_config_prune": first_two},
    )
    call = cold(lambda: tuner[(1,)](X, X, X, 64))

    assert call.tuning is not None
    assert (call.tuning.pruned, len(call.tuning.trials)) == (2, 2)


def test_a_result_from_disk_needs_no_trial(instrumented: Runtime) -> None:
    values = [{"BLOCK": b} for b in (64, 128)]
    first = tuned(kernels.add_kernel, values, cache_results=True)
    assert cold(lambda: first[(1,)](X, X, X, 64)).tuning.from_disk is False  # type: ignore[union-attr]

    again = tuned(kernels.add_kernel, values, cache_results=True)
    call = cold(lambda: again[(1,)](X, X, X, 64))

    assert call.tuning is not None
    assert call.tuning.from_disk
    assert call.tuning.trials == ()
    assert call.tuning.winner == str(again.best_config)
    assert call.tier == "disk"


def test_an_error_in_tuning_reaches_the_caller_and_counts_as_a_launch_that_raised(instrumented: Runtime) -> None:
    def nothing(configs: list[Any], args: Any, **kwargs: Any) -> list[Any]:
        return []

    tuner = tuned(
        kernels.add_kernel, [{"BLOCK": b} for b in (64, 128)], prune_configs_by={"early_config_prune": nothing}
    )
    for attempt in (1, 2):
        with pytest.raises(triton.runtime.errors.AutotunerError):
            tuner[(1,)](X, X, X, 64)
        assert total_of(instrumented, "launches_total") == attempt
        assert total_of(instrumented, "launch_errors_total") == attempt


def test_an_error_in_a_trial_that_the_tuner_does_not_catch_counts_once(instrumented: Runtime) -> None:
    tuner = tuned(kernels.broken_kernel, [{"BLOCK": b} for b in (64, 128)])
    with capture_cold_calls() as calls, pytest.raises(triton.CompilationError):
        tuner[(1,)](X, 64)

    assert [call.error for call in calls] == ["CompilationError"]
    assert total_of(instrumented, "launches_total") == 1
    assert total_of(instrumented, "autotune_trials_total") == 1
    assert samples_of(instrumented, "launch_errors_total") == {
        ("tests.adapter.kernels.broken_kernel", "CompilationError"): 1
    }


def test_warming_up_a_tuner_compiles_its_configurations_and_is_no_session(instrumented: Runtime) -> None:
    tuner = tuned(kernels.add_kernel, [{"BLOCK": b} for b in (64, 128)])
    with capture_cold_calls() as calls:
        tuner.warmup(X, X, X, 64, grid=(1,))

    assert [(call.mode, call.tier, call.tuning) for call in calls] == [("warmup", "compile", None)] * 2
    assert total_of(instrumented, "warmups_total") == 2
    assert total_of(instrumented, "launches_total") == 0
