"""These tests need Triton's interpreter, which is chosen before Triton is imported: `../test_interpreter.py` runs them.

Two faults of Triton's interpreter are repaired here, since they hit it and not the kernels.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if not INTERPRETED:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def repaired_interpreter() -> None:
    from triton import language as tl
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def with_index(tensor: Any, scope: Any) -> None:
        # Triton 3.6 turns an array of one element into a loop bound with int(), which NumPy 2.4 refuses; 3.9 does this:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    dot = interpreter.InterpreterBuilder.create_dot

    def wide_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        # The interpreter keeps bfloat16 as 16-bit integers, and up to 3.9 multiplies those. They are the upper halves
        # of float32 numbers.
        a, b = (
            interpreter.TensorHandle((x.data.astype("uint32") << 16).view("float32"), tl.float32)
            if x.dtype.scalar == tl.bfloat16
            else x
            for x in (a, b)
        )
        return dot(self, a, b, *rest)

    interpreter._patch_lang_tensor = with_index
    interpreter.InterpreterBuilder.create_dot = wide_dot
