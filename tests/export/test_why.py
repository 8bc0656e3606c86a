"""Reasons on a screen: what was specialised first, tuning keys without five times the same type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.export.why import MOST, because

KEY = "no autotune winner yet for (512, 256, 'torch.float32', 'torch.float32', 'torch.float32')"


def test_what_was_specialised_stands_before_what_was_tuned() -> None:
    assert because((KEY, "M: other -> ==1")) == (
        "because M: other -> ==1; no autotune winner yet for (512, 256, 3 x fp32)"
    )


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("(64, 'torch.bfloat16', 'torch.int8')", "(64, bf16, int8)"),
        ("(64, 64, 'torch.float16', 'torch.float16')", "(64, 64, 2 x fp16)"),
        ("(64,)", "(64,)"),
        ("'torch.float32'", "'torch.float32'"),
        ("", ""),
    ],
)
def test_a_tuning_key_keeps_its_numbers(key: str, said: str) -> None:
    assert because((f"no autotune winner yet for {key}",)) == f"because no autotune winner yet for {said}"


def test_many_reasons_are_counted_and_an_error_is_named() -> None:
    many = tuple(f"constexpr C{i}: 1 -> 2" for i in range(MOST + 3))
    assert because(many, "OutOfResources").endswith("; and 3 more; raised OutOfResources")


def test_nothing_recorded_is_said() -> None:
    assert because(()) == "because of no recorded reason"


@given(st.lists(st.text()), st.text())
def test_any_text_is_read(reasons: list[str], key: str) -> None:
    assert because([*reasons, f"no autotune winner yet for {key}"]).startswith("because ")
