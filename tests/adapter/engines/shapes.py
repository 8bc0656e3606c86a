"""A vLLM in outline: the names that the adapter patches, in the shape of 0.21. It serves nothing.

For what has to be seen without vLLM: how parts are attached, what an unknown shape does, how processes tell each other.
That the shape is vLLM's, `test_real_vllm` shows where there is one.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "__init__.py": "import triton\n__version__ = '0.21.0'\n",
    "triton_utils/__init__.py": "",
    "triton_utils/jit_monitor.py": "def activate():\n    print('monitor on', flush=True)\n",
    "v1/__init__.py": "",
    "v1/core/__init__.py": "",
    "v1/core/sched/__init__.py": "",
    "v1/core/sched/scheduler.py": """
from dataclasses import dataclass
@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict
    total_num_scheduled_tokens: int
class Request:
    num_output_tokens = property(lambda self: 0)
class Scheduler:
    def _free_request(self, request): pass
    def add_request(self, request): pass
    def schedule(self): pass
    def update_from_output(self, scheduler_output, model_runner_output): pass
    def finish_requests(self, request_ids, finished_status): pass
""",
    "v1/worker/__init__.py": "",
    "v1/worker/worker_base.py": """
class WorkerWrapperBase:
    def __init__(self, rpc_rank=0): self.rpc_rank = rpc_rank
    def init_worker(self, all_kwargs): pass
    def execute_model(self, scheduler_output): pass
""",
    "v1/engine/__init__.py": "",
    "v1/engine/core.py": """
import vllm.v1.core.sched.scheduler
class EngineCore:
    def __init__(self): self.model_executor = type("UniProc", (), {"driver_worker": None})()
""",
    "v1/engine/async_llm.py": """
class AsyncLLM:
    def __init__(self): pass
    async def check_health(self): pass
""",
}


def write(folder: Path, changes: dict[str, str] | None = None) -> Path:
    """The outline below `folder`, with other contents for some files; returns what belongs on the path."""
    for name, text in {**FILES, **(changes or {})}.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
