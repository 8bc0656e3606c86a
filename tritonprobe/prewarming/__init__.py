"""Yesterday's traffic replayed before today's: plan, run, bundle.

`plan` says what to do first and what not at all (pure); `run` does it in this process; `bundle` carries what was
compiled to another machine. Knows the adapter, never an exporter.
"""

from tritonprobe.prewarming.plan import Plan, Task, make_plan
from tritonprobe.prewarming.run import Prewarmed, run
from tritonprobe.prewarming.skipped import Skipped

__all__ = ["Plan", "Prewarmed", "Skipped", "Task", "make_plan", "run"]
