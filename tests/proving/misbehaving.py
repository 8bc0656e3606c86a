"""A measuring process that does as it is told; run as ``python -m tests.proving.misbehaving``."""

from __future__ import annotations

import os
import sys

from tritonprobe.proving.processes import answer


def measure(request, say):
    do = request["do"]
    if do == "talk":
        sys.stdout.write("a compiler's chatter")  # nobody's answer
        say("half way")
    elif do == "raise":
        raise ValueError("no such thing as\na line")
    elif do == "die":
        os._exit(3)
    elif do == "environment":
        return {"environment": dict(os.environ), "path": sys.path}
    elif do == "forget to switch on":
        from tritonprobe.proving.modes import Ours
        from tritonprobe.proving.overhead_child import _Bench

        bench = _Bench("compile-only:cuda:90")
        ours = Ours(bench.shapes)
        bench.plain["add"]()
        ours.check(False, {"add": 1})
        ours.check(True, {"add": 1})
    elif do == "forget to switch off":
        from tritonprobe.proving.modes import Ours
        from tritonprobe.proving.overhead_child import _Bench

        bench = _Bench("compile-only:cuda:90")
        ours = Ours(bench.shapes)
        ours.on()
        bench.plain["add"]()
        ours.check(True, {"add": 1, "matmul": 0})
        ours.check(False, {})
    return {"done": do}


if __name__ == "__main__":
    answer(measure)
