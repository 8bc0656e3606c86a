"""The process that `overhead` measures in: launches two kernels hot, with and without each way of watching it is given.

Run as ``python -m tritonprobe.proving.overhead_child``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tritonprobe.proving.modes import WAYS, Shapes
from tritonprobe.proving.processes import Answer, Request, Say, answer
from tritonprobe.proving.rounds import Launch, Launches, UnavailableError, interleave

TELL_EVERY = 20  # blocks


def main(request: Request, say: Say) -> Answer:
    """Measures in a thread of its own, near the bottom of its stack.

    CPython 3.11 and later keep frames in chunks of 16 KiB. A loop whose calls reach just over the end of one maps and
    unmaps memory each time around, and costs ten to forty microseconds more: a matter of how deep the caller is, not of
    what is compared.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(measure, request, say).result()


def measure(request: Request, say: Say) -> Answer:
    from tritonprobe.proving.document import described

    bench = _Bench(request["device"])
    rounds: dict[str, dict[str, Any]] = {}
    unavailable: dict[str, str] = {}
    counting = "none"
    for name, blocks in request["ways"]:
        with tempfile.TemporaryDirectory(prefix="tritonprobe-bench-") as folder:
            try:
                way = WAYS[name](bench.shapes, bench.plain["add"], Path(folder))
            except (UnavailableError, ImportError, RuntimeError, ValueError) as error:
                unavailable[name] = str(error).partition("\n")[0] or type(error).__name__
                continue
            found = interleave(
                way,
                bench.plain,
                bench.watched(name),
                blocks=blocks,
                launches=request["launches"],
                seed=request["seed"],
                finish=bench.finish,
                progress=_telling(say, name, blocks),
            )
            way.close()
            counting = getattr(way, "counting", counting)
        for mode, by_kernel in found.items():
            rounds[mode] = {kernel: asdict(each) for kernel, each in by_kernel.items()}
    return {"made": described(), "rounds": rounds, "unavailable": unavailable, "counting": counting}


def _telling(say: Say, name: str, blocks: int) -> Callable[[int], None]:
    def tell(done: int) -> None:
        if done % TELL_EVERY == 0 or done == blocks:
            say(f"{name}: {done} of {blocks} pairs")

    return tell


class _Bench:
    """The two kernels, their tensors, and the launches as a user writes them."""

    def __init__(self, device: str | None) -> None:
        import torch

        from tritonprobe.adapter.device import activate, parse_device
        from tritonprobe.proving.kernels import add_kernel, matmul_kernel

        self._cuda = device is None
        if device is not None:
            # Here and for good, and not by TRITONPROBE_DEVICE, which comes and goes with instrument().
            activate(parse_device(device))
        place = "cuda" if self._cuda else "cpu"
        self._vectors = [torch.zeros(1024, device=place) for _ in range(3)]
        self._matrices = [torch.zeros(64, 64, device=place, dtype=torch.float16) for _ in range(3)]
        self.shapes: Shapes = {"add": (add_kernel, (3,)), "matmul": (matmul_kernel, (3, 4, 5))}
        x, y, z = self._vectors
        a, b, c = self._matrices

        def add(x: Any, y: Any, out: Any) -> Any:
            add_kernel[(1,)](x, y, out, 1024, BLOCK=1024)
            return out

        def matmul(a: Any, b: Any, out: Any) -> Any:
            matmul_kernel[(1, 1)](
                a, b, out, 64, 64, 64, 64, 1, 64, 1, 64, 1, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, PRECISION="tf32"
            )
            return out

        self._functions = {"add": add, "matmul": matmul}
        self.plain: Launches = {"add": lambda: add(x, y, z), "matmul": lambda: matmul(a, b, c)}
        for launch in self.plain.values():
            launch()

    def watched(self, way: str) -> Mapping[str, Launches]:
        """What is launched while `way` is on, by mode: the same, and under tritonprobe also an op."""
        return {"ours": self.plain, "op": self._ops()} if way == "ours" else {way: self.plain}

    def finish(self) -> None:
        import torch

        if self._cuda:
            torch.cuda.synchronize()

    def _ops(self) -> dict[str, Launch]:
        from tritonprobe.op import op
        from tritonprobe.shapes.buckets import pow2

        def same(left: Any, right: Any, out: Any) -> Any:  # noqa: ARG001  # the fallback has the op's arguments
            return out

        add = op(
            fallback=same,
            supports=lambda x, y, _: x.shape == y.shape,
            bucket=lambda x, *_: {"n": pow2(x.shape[0])},
            name="add",
        )(self._functions["add"])
        matmul = op(
            fallback=same,
            supports=lambda a, b, _: a.shape[1] == b.shape[0],
            bucket=lambda a, b, _: {"M": pow2(a.shape[0]), "N": b.shape[1], "K": b.shape[0]},
            name="matmul",
        )(self._functions["matmul"])
        x, y, z = self._vectors
        a, b, c = self._matrices
        return {"add": lambda: add(x, y, z), "matmul": lambda: matmul(a, b, c)}


if __name__ == "__main__":
    answer(main)
