"""An engine of another shape than ours is served as if nobody were there: nothing of ours is raised into it."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.adapter.conftest import total_of
from tritonprobe.adapter.engines import vllm_steps
from tritonprobe.adapter.engines.attaching import UnknownShapeError
from tritonprobe.adapter.engines.first_steps import FirstSteps
from tritonprobe.adapter.engines.sglang import Sglang
from tritonprobe.adapter.engines.vllm import Vllm
from tritonprobe.adapter.patching import Patches
from tritonprobe.model import RequestCost
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings

SERVING = "class OpenAIServing:\n    {} _get_trace_headers(self, headers): return None\n"
SERVER = "class AsyncLLM:\n    def __init__(self): pass\n    def check_health(self): return 'well'\n"
CORE = """
class EngineCore:
    def __init__(self): self.made = True
    @property
    def model_executor(self): raise RuntimeError("not yet")
"""
WORKER = """
class WorkerWrapperBase:
    def init_worker(self, all_kwargs): pass
    def execute_model(self, {}): return "done"
"""
SGLANG = """
class Scheduler:
    def handle_generate_request(self, recv_req): pass
    def run_batch(self, batch): return "ran"
    def process_batch_result(self, batch, result): pass
"""


def served(source: str, attach: Callable[[Patches, Any], None], call: Callable[[Any], Any]) -> tuple[Any, str]:
    """What a call of the engine comes to, and why we stayed away if we did."""
    module, patches, why = ModuleType("an_engine"), Patches(), ""
    exec(source, module.__dict__)
    try:
        with patches.together():
            attach(patches, module)
    except UnknownShapeError as error:
        why = str(error)
    result = call(module)
    return asyncio.run(result) if inspect.iscoroutine(result) else result, why


@pytest.fixture
def host() -> Runtime:
    return Runtime(Settings())


@pytest.fixture
def vllm(host: Runtime) -> Vllm:
    made = Vllm(host)
    made.attachment.on = True
    return made


def test_a_function_that_is_not_async_is_left_alone(vllm: Vllm) -> None:
    sync = SERVING.format("def")
    assert served(sync, vllm._patch_serving, lambda m: m.OpenAIServing()._get_trace_headers({})) == (
        None,
        "OpenAIServing._get_trace_headers is not async",
    )
    assert served(SERVER, vllm._patch_server, lambda m: m.AsyncLLM().check_health()) == (
        "well",
        "AsyncLLM.check_health is not async",
    )


def test_headers_that_cannot_be_asked_are_no_matter_of_the_clients(host: Runtime, vllm: Vllm) -> None:
    call = served(SERVING.format("async def"), vllm._patch_serving, lambda m: m.OpenAIServing()._get_trace_headers(7))
    assert call == (None, "")
    assert total_of(host, "errors_total") == 1


def test_an_engine_core_that_does_not_show_its_executor_is_made(host: Runtime, vllm: Vllm) -> None:
    assert served(CORE, vllm._patch_core, lambda m: m.EngineCore().made) == (True, "")
    assert total_of(host, "errors_total") == 1


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("*, scheduler_output", {"scheduler_output": 1}),
        ("hidden, scheduler_output", {"hidden": 0, "scheduler_output": 1}),
        ("*scheduler_output", {}),
    ],
)
def test_arguments_in_other_places_are_not_handed_on_by_us(vllm: Vllm, arguments: str, given: dict[str, int]) -> None:
    call = served(
        WORKER.format(arguments), vllm._workers.install, lambda m: m.WorkerWrapperBase().execute_model(**given)
    )
    assert call == ("done", "WorkerWrapperBase.execute_model does not begin with self, scheduler_output")


@pytest.mark.parametrize("tokens", [[1], None, "many", {}])
def test_a_step_of_no_countable_size_is_executed(vllm: Vllm, tokens: Any) -> None:
    output = SimpleNamespace(total_num_scheduled_tokens=tokens, num_scheduled_tokens=())
    source = WORKER.format("scheduler_output")
    assert served(source, vllm._workers.install, lambda m: m.WorkerWrapperBase().execute_model(output)) == ("done", "")


def test_a_request_arrives_before_the_engine_reads_it(host: Runtime) -> None:
    steps = vllm_steps.Steps(host, FirstSteps(host.first_step))
    steps._on = True
    core = SimpleNamespace(vllm_config=SimpleNamespace(model_config=SimpleNamespace(served_model_name="tiny")))
    costs: list[RequestCost] = []
    read_at: list[int] = []

    def reads(_: Any, request: Any) -> None:  # beside a compile this takes long
        read_at.append(time.monotonic_ns())
        if request.request_id == "refused":
            raise ValueError("too long")

    preprocess = steps._preprocess_add_request(reads)
    with host.bus.subscribed(lambda event: costs.append(event) if isinstance(event, RequestCost) else None):
        preprocess(core, SimpleNamespace(request_id="r"))
        with pytest.raises(ValueError, match="too long"):
            preprocess(core, SimpleNamespace(request_id="refused"))
        steps.forget()
    assert [(cost.id, cost.start_ns <= read_at[0]) for cost in costs] == [("r", True)]
    assert not host.live._live
    assert total_of(host, "errors_total") == 0


def test_requests_that_arrive_and_are_never_taken_in_are_bounded(
    host: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_steps, "MAX_ARRIVED", 4)
    steps = vllm_steps.Steps(host, FirstSteps(host.first_step))
    steps._on = True
    core = SimpleNamespace(vllm_config=SimpleNamespace(model_config=SimpleNamespace(served_model_name="tiny")))
    for i in range(10):
        steps._arrive(core, SimpleNamespace(request_id=f"refused {i}"))
    assert [*steps._arrived] == [f"refused {i}" for i in range(6, 10)]
    host.live.request("next").finish()
    assert total_of(host, "errors_total") == 6
    assert len(host.live._live) == 4


@pytest.mark.parametrize("switched_off_in", ["request", "step"])
def test_what_begins_while_another_thread_switches_off_is_forgotten_as_well(
    host: Runtime, monkeypatch: pytest.MonkeyPatch, switched_off_in: str
) -> None:
    steps = vllm_steps.Steps(host, FirstSteps(host.first_step))
    steps._on = True
    owner = SimpleNamespace(vllm_config=SimpleNamespace(model_config=SimpleNamespace(served_model_name="tiny")))
    output = SimpleNamespace(num_scheduled_tokens={"taken in": 1}, total_num_scheduled_tokens=1)
    begin = getattr(host.live, switched_off_in)

    def switched_off_meanwhile(*args: Any, **kwargs: Any) -> Any:
        switch = threading.Thread(target=steps.forget)
        switch.start()
        switch.join()
        return begin(*args, **kwargs)

    preprocess = steps._preprocess_add_request(lambda core, request: None)
    add = steps._add_request(lambda scheduler, request: None)
    schedule = steps._schedule(lambda scheduler: output)
    with monkeypatch.context() as now:
        now.setattr(host.live, switched_off_in, switched_off_meanwhile)
        for call in (
            lambda: preprocess(owner, SimpleNamespace(request_id="arrived")),
            lambda: add(owner, SimpleNamespace(request_id="taken in", num_output_tokens=0)),
            lambda: schedule(owner),
        ):
            steps._on = True
            call()
        if switched_off_in == "request":
            assert not steps._arrived
            assert not steps._requests
            steps.forget()  # ends the step
    for left in (steps._arrived, steps._requests, steps._lives, steps._retired, host.live._live, host.live._steps):
        assert not left
    assert total_of(host, "errors_total") == 0


def scheduled(*names: str, tokens: int = 1) -> SimpleNamespace:
    return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(names, tokens), total_num_scheduled_tokens=tokens)


@pytest.fixture
def serving(vllm: Vllm) -> Iterator[Vllm]:
    """With the requests `a` and `b`, in one process with the engine core."""
    vllm._workers.core = os.getpid()
    vllm._steps._on = True
    owner = SimpleNamespace(vllm_config=SimpleNamespace(model_config=SimpleNamespace(served_model_name="tiny")))
    for name in ("a", "b"):
        vllm._steps._begin(owner, SimpleNamespace(request_id=name, num_output_tokens=0))
    vllm._steps._awaited.clear()
    yield vllm
    vllm._steps.forget()


def test_outputs_end_their_own_runs_whatever_their_order(host: Runtime, serving: Vllm) -> None:
    outputs = iter([scheduled("a"), scheduled("a"), scheduled("b"), scheduled(), scheduled("a")])
    schedule = serving._steps._schedule(lambda scheduler: next(outputs))
    update = serving._steps._update_from_output(lambda scheduler, output, result: {})
    first, second, other, nobodys = (schedule(None) for _ in range(4))
    assert len(host.live._steps) == 2
    update(None, nobodys, None)
    update(None, other, None)
    assert len(host.live._steps) == 1
    update(None, second, None)
    assert len(host.live._steps) == 1
    update(None, first, None)
    assert not host.live._steps
    last = schedule(None)
    assert len(host.live._steps) == 1
    update(None, last, None)
    assert len(host.live._steps) == 1  # the next step may be of the same run
    assert total_of(host, "errors_total") == 0


def test_outputs_that_never_come_back_hold_a_bounded_number_of_steps(
    host: Runtime, serving: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_steps, "MAX_RETIRED", 4)
    schedule = serving._steps._schedule(lambda scheduler: scheduled(next(names)))
    names = itertools.cycle("ab")
    for _ in range(10):
        schedule(None)
    assert len(host.live._steps) == 5
    assert total_of(host, "errors_total") == 0


def test_a_worker_beside_its_scheduler_looks_at_steps_of_sizes_that_are_not_known(
    serving: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    sizes, workers = serving._workers._sizes, serving._workers
    outputs = iter([scheduled("a")] * 5 + [scheduled("a", tokens=7)])
    schedule = serving._steps._schedule(lambda scheduler: next(outputs))
    before = workers._before

    def look(output: Any) -> Any:
        looked.append(output)
        return before(output)

    monkeypatch.setattr(workers, "_before", look)
    execute = workers._execute_model(lambda worker, output: "done")
    for number in range(1, 6):
        assert execute(None, schedule(None)) == "done"
        assert len(looked) == min(number, 4), "the fourth of a size only finds that it is known"
    assert sizes.known == {(1, 1)}
    assert execute(None, schedule(None)) == "done"
    assert len(looked) == 5
    assert not sizes.due


def test_a_worker_in_a_process_of_its_own_looks_at_each_step(host: Runtime, vllm: Vllm) -> None:
    execute = vllm._workers._execute_model(
        lambda worker, output: [running.id for _, running in host.live._steps.values()]
    )
    for number in ("7.1", "7.2", "7.2"):
        output = scheduled("a")
        output._tritonprobe_step = number
        assert execute(None, output) == [number]


def test_a_batch_whose_requests_have_no_ids_is_run(host: Runtime) -> None:
    sglang = Sglang(host)
    sglang.attachment.on = True
    batch = SimpleNamespace(reqs=[object()])
    assert served(SGLANG, sglang._patch_scheduler, lambda m: m.Scheduler().run_batch(batch)) == ("ran", "")
    assert total_of(host, "errors_total") == 1
