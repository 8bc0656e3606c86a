"""vLLM's processes under ``tritonprobe run``: what each says, and that one's ready is everybody's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.adapter.engines import shapes

# A server in outline: an API server that spawns an engine core, whose worker warms up, compiles, and says it is ready.
PROGRAM = """
import multiprocessing, sys, time

def engine_core(warm, conn):
    from types import SimpleNamespace
    from tritonprobe.testing import compile_only
    device = compile_only("cuda:90"); device.__enter__()
    import vllm.v1.engine.core
    from vllm.v1.worker.worker_base import WorkerWrapperBase
    import tritonprobe
    parallel = SimpleNamespace(data_parallel_rank=0, world_size=1)
    config = SimpleNamespace(parallel_config=parallel, instance_id="i")
    worker = WorkerWrapperBase()
    worker.init_worker([{"vllm_config": config, "rank": 0}])
    with tritonprobe.cold_call("warm_up", kind="jit"):
        time.sleep(0.02)
    if warm:
        from vllm.triton_utils import jit_monitor
        jit_monitor.activate()
    vllm.v1.engine.core.EngineCore()
    conn.send("up")
    conn.recv()
    worker.execute_model(None)
    with tritonprobe.cold_call("in_service", kind="jit"):
        time.sleep(0.02)
    time.sleep(0.6)  # a server serves on; its switch has looked at the directory meanwhile
    conn.send(tritonprobe.runtime.current().ready_unix_ns)

if __name__ == "__main__":
    import asyncio
    import vllm
    from vllm.v1.engine.async_llm import AsyncLLM
    server = AsyncLLM()
    multiprocessing.set_start_method("spawn")
    ours, theirs = multiprocessing.Pipe()
    core = multiprocessing.Process(target=engine_core, args=("--warm" in sys.argv, theirs))
    core.start()
    ours.recv()
    asyncio.run(server.check_health())
    ours.send("go")
    theirs_ready = ours.recv()
    import tritonprobe
    time.sleep(0.4)
    print("ready", theirs_ready, tritonprobe.runtime.current().ready_unix_ns, flush=True)
    core.join()
"""


def run(tmp_path: Path, *words: str, changes: dict[str, str] | None = None, **env: str) -> tuple[list[str], list[str]]:
    """The program's own lines, and ours."""
    path = shapes.write(tmp_path / "site", changes)
    (tmp_path / "server.py").write_text(PROGRAM)
    server = [sys.executable, str(tmp_path / "server.py")]
    command = [sys.executable, "-m", "tritonprobe", "run", "--port", "0", "--", *server]
    search = os.pathsep.join((str(path), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [*command, *words],
        env={**os.environ, "PYTHONPATH": search, "TRITON_CACHE_DIR": str(tmp_path / "cache"), **env},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), [line for line in done.stderr.splitlines() if line.startswith("tritonprobe: ")]


def test_the_end_of_the_warm_up_makes_every_process_ready(tmp_path: Path) -> None:
    own, ours = run(tmp_path, "--warm")
    assert own[0] == "monitor on"
    _, core, server = own[1].split()
    assert core == server
    assert int(core) > 0
    said = "\n".join(ours)
    assert "vLLM 0.21.0, API server: kernels and cold calls, and " in said
    assert "vLLM 0.21.0, worker of rank 0: " in said
    assert "vLLM 0.21.0, engine core: kernels and cold calls, and core, ranks, ready, steps" in said
    assert "ready, for vLLM's warm-up has ended; 1 compile 0.0 s, 0 disk hits 0.0 s; from here on" in said
    assert said.count("ready, for") == 1  # by whoever was first
    assert ours[-1].startswith("tritonprobe: 0 launches, 2 cold calls (2 compile) of ")
    assert "; 1 of them after ready (1 compile); metrics were at " in ours[-1]


def test_without_a_monitor_the_first_healthy_answer_does(tmp_path: Path) -> None:
    own, ours = run(tmp_path)
    _, core, server = own[0].split()
    assert core == server
    assert int(core) > 0
    assert "ready, for vLLM says that it is healthy" in "\n".join(ours)
    assert "; 1 of them after ready (1 compile); " in ours[-1]


def test_an_unknown_vllm_keeps_its_cold_calls_and_is_told_what_is_missing(tmp_path: Path) -> None:
    changes = {
        "__init__.py": "import triton\n__version__ = '1.4.2'\n",
        "v1/core/sched/scheduler.py": "class Scheduler:\n    def plan(self): pass\n",
    }
    _, ours = run(tmp_path, "--warm", changes=changes)
    (core,) = [line for line in ours if "engine core: kernels" in line]
    assert "vLLM 1.4.2, which was not tried (0.21.x was), engine core: kernels and cold calls, and " in core
    assert "; no steps: " in core
    assert "add_request" in core
    assert "; 1 of them after ready (1 compile); " in ours[-1]


def test_an_allow_list_that_leaves_the_plugin_out_is_told(tmp_path: Path) -> None:
    _, ours = run(tmp_path, "--warm", VLLM_PLUGINS="other")
    assert any("VLLM_PLUGINS leaves our plugin out, so attached by the environment" in line for line in ours)
