"""Advice: one sentence a reason, which suggests and asks to measure."""

from __future__ import annotations

import pytest

from tritonprobe.model import ArgClass, Variant
from tritonprobe.shapes.advice import advice, advice_for
from tritonprobe.shapes.reasons import NEW_KERNEL, SAME_VARIANT, reasons


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (NEW_KERNEL, ["Prewarm", "before ready"]),
        (SAME_VARIANT, ["the same way in every call"]),
        ("n: %16 -> ==1", ["both classes (%16 and ==1)", 'do_not_specialize=["n"]', "measure"]),
        ("s[1]: other -> ==1", ["both classes (other and ==1)", "an argument of its own"]),
        ("x: %16 -> unaligned", ["`x[1:]`", "copy"]),
        ("x: unaligned -> %16", ["`x[1:]`", "copy"]),
        ("x: *fp16 %16 -> *bf16 unaligned", ["unaligned"]),
        ("x: fp16 -> bf16", ["as fp16 and as bf16", "convert"]),
        ("n: i32 -> i64", ["as i32 and as i64"]),
        ("y: None -> *fp32 %16", ["given and with None"]),
        ("constexpr S: 1024 -> 1025", ["runtime argument", "measure"]),
        ("option num_warps: 4 -> 8", ["`num_warps`"]),
    ],
)
def test_what_a_person_can_do(reason, words):
    text = advice(reason)
    assert text is not None
    assert "\n" not in text
    assert [word for word in words if word not in text] == []


def test_a_line_that_blames_nothing_gets_no_advice():
    assert advice("and 3 more") is None


def test_the_same_advice_is_given_once_in_the_order_of_the_reasons():
    lines = ("x: fp16 -> bf16", "n: %16 -> ==1", "x: fp16 -> bf16", "and 3 more")
    assert advice_for(lines) == (advice("x: fp16 -> bf16"), advice("n: %16 -> ==1"))


def test_advice_reads_what_reasons_writes():
    seen = Variant("k", (("x", ArgClass("*fp16", "%16")), ("n", ArgClass("i32", "%16"))), (("num_warps", "4"),))
    new = Variant("k", (("x", ArgClass("*fp16", "unaligned")), ("n", ArgClass("", "==1"))), (("num_warps", "8"),))
    assert len(advice_for(reasons(new, [seen]))) == 3
