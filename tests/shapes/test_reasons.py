"""Reasons: what made a variant new, against the nearest one seen."""

from __future__ import annotations

import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tritonprobe.model import ArgClass, Variant
from tritonprobe.shapes.reasons import (
    MAX_LINES,
    MAX_VALUE,
    NEW_KERNEL,
    RAISED_BEFORE,
    SAME_VARIANT,
    VariantMemory,
    cause_of,
    reasons,
)

PTR = ArgClass("*fp16", "%16")
ONE = ArgClass("", "==1")  # Triton turns an integer 1 into a constant, which has no type of its own
NONE = ArgClass("", "None")


def i32(value: str) -> ArgClass:
    return ArgClass("i32", value)


def const(value: str) -> ArgClass:
    return ArgClass("constexpr", value)


def variant(options: dict[str, str] | None = None, **args: ArgClass) -> Variant:
    spelt = {name.replace("__", "[") + "]" if "__" in name else name: c for name, c in args.items()}
    return Variant("m.kernel", tuple(spelt.items()), tuple((options or {"num_warps": "4"}).items()))


def test_the_first_variant_of_a_kernel():
    assert reasons(variant(n=ONE), []) == (NEW_KERNEL,) == ("new kernel",)


def test_n_as_1_3_5_16_32_1_compiles_three_times():
    """5 and 32 and the second 1 hit in memory, so they never come here."""
    memory = VariantMemory()
    assert memory.explain(variant(x=PTR, n=ONE)) == ("new kernel",)
    assert memory.explain(variant(x=PTR, n=i32("other"))) == ("n: ==1 -> other",)
    assert memory.explain(variant(x=PTR, n=i32("%16"))) == ("n: other -> %16",)


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (i32("%16"), ONE, "n: %16 -> ==1"),
        (i32("%16"), i32("other"), "n: %16 -> other"),
        (ONE, ArgClass("i64", "other"), "n: ==1 -> other"),
        (i32("other"), ArgClass("i64", "other"), "n: i32 -> i64"),
        (i32("%16"), ArgClass("i64", "other"), "n: i32 %16 -> i64 other"),
        (i32("unspecialised"), ArgClass("i64", "unspecialised"), "n: i32 -> i64"),
        (PTR, ArgClass("*fp16", "unaligned"), "n: %16 -> unaligned"),
        (PTR, ArgClass("*bf16", "%16"), "n: fp16 -> bf16"),
        (ArgClass("*kfp32", "%16"), ArgClass("*kbf16", "%16"), "n: kfp32 -> kbf16"),
        (PTR, ArgClass("*bf16", "unaligned"), "n: *fp16 %16 -> *bf16 unaligned"),
        (PTR, i32("%16"), "n: *fp16 -> i32"),
        (PTR, ONE, "n: *fp16 %16 -> ==1"),
        (PTR, NONE, "n: *fp16 %16 -> None"),
        (NONE, PTR, "n: None -> *fp16 %16"),
        (ONE, NONE, "n: ==1 -> None"),
        (ArgClass("fp32", "other"), i32("%16"), "n: fp32 -> i32 %16"),
        (ArgClass("fp32", "other"), ONE, "n: fp32 -> ==1"),
        (ArgClass("fp32", "other"), i32("other"), "n: fp32 -> i32"),
        (ArgClass("fp32", "other"), ArgClass("fp64", "other"), "n: fp32 -> fp64"),
        (i32("%16"), ArgClass("u1", "other"), "n: i32 %16 -> u1"),
        (const("1024"), const("1025"), "constexpr n: 1024 -> 1025"),
        (const("add"), const("mul"), "constexpr n: add -> mul"),
        (const("1"), i32("other"), "n: 1 -> i32 other"),
        (ArgClass("tensordesc<fp16[64, 64]>", ""), ArgClass("tensordesc<fp16[64, 32]>", ""),
         "n: tensordesc<fp16[64, 64]> -> tensordesc<fp16[64, 32]>"),
    ],
)  # fmt: skip
def test_one_argument_changed(before, after, line):
    assert reasons(variant(x=PTR, n=after), [variant(x=PTR, n=before)]) == (line,)


def test_an_option_changed():
    assert reasons(variant({"num_warps": "8"}), [variant({"num_warps": "4"})]) == ("option num_warps: 4 -> 8",)


def test_options_spelt_out_make_the_same_variant_under_another_key():
    memory = VariantMemory()
    memory.explain(variant(n=ONE))
    assert memory.explain(variant(n=ONE)) == ("same variant, other in-memory key",)
    assert reasons(variant(n=ONE), [variant(n=ONE), variant(n=i32("%16"))]) == (SAME_VARIANT,)


def test_what_raised_before_is_the_reason_until_it_does_not():
    memory = VariantMemory()
    assert memory.explain(variant(n=ONE)) == (NEW_KERNEL,)
    memory.raised(variant(n=ONE))
    assert memory.explain(variant(n=ONE)) == ("same variant, which raised before",)
    assert memory.explain(variant(n=ONE)) == (SAME_VARIANT,), "the second time it was made"
    memory.raised(variant(n=ONE))
    assert memory.explain(variant(n=ONE)) == (RAISED_BEFORE,)


def test_what_was_never_made_is_compared_with_nothing():
    memory = VariantMemory()
    memory.explain(variant(n=ONE))
    memory.raised(variant(n=ONE))
    assert memory.explain(variant(n=i32("other"))) == (NEW_KERNEL,)
    assert memory.explain(variant(n=i32("%16"))) == ("n: other -> %16",)
    memory.explain(variant(n=i32("%16")))
    memory.raised(variant(n=i32("%16")))  # for another device, say: the first one is there all the same
    assert memory.explain(variant({"num_warps": "8"}, n=i32("%16"))) == ("option num_warps: 4 -> 8",)


def test_what_raised_and_was_never_explained_is_nothing():
    memory = VariantMemory()
    memory.raised(variant(n=ONE))
    assert memory.explain(variant(n=ONE)) == (NEW_KERNEL,)


def test_elements_of_a_tuple():
    pair = variant(s__0=i32("other"), s__1=i32("other"))
    assert reasons(variant(s__0=i32("other"), s__1=ONE), [pair]) == ("s[1]: other -> ==1",)
    longer = variant(s__0=i32("other"), s__1=i32("other"), s__2=i32("%16"))
    assert reasons(longer, [pair]) == ("s[2]: absent -> i32 %16",)
    assert reasons(pair, [longer]) == ("s[2]: i32 %16 -> absent",)
    assert reasons(variant(s__0=const("8")), [variant(s=NONE)]) == ("constexpr s[0]: absent -> 8", "s: None -> absent")


def test_several_changes_come_in_the_order_of_the_signature_with_options_last():
    seen = variant({"num_warps": "4", "num_stages": "2"}, x=PTR, n=i32("%16"), S=const("64"))
    new = variant({"num_warps": "8", "num_stages": "2"}, x=ArgClass("*bf16", "%16"), n=ONE, S=const("128"))
    assert reasons(new, [seen]) == (
        "x: fp16 -> bf16",
        "n: %16 -> ==1",
        "constexpr S: 64 -> 128",
        "option num_warps: 4 -> 8",
    )


def test_the_nearest_variant_is_the_one_with_the_fewest_differences():
    near = variant(x=PTR, n=i32("%16"), S=const("64"))
    far = variant(x=ArgClass("*fp32", "unaligned"), n=i32("other"), S=const("64"))
    new = variant(x=PTR, n=ONE, S=const("64"))
    assert reasons(new, [near, far]) == reasons(new, [far, near]) == ("n: %16 -> ==1",)


def test_among_equally_near_variants_the_most_recent_is_taken():
    a, b = variant(n=i32("%16")), variant(n=i32("other"))
    assert reasons(variant(n=ONE), [a, b]) == ("n: other -> ==1",)
    assert reasons(variant(n=ONE), [b, a]) == ("n: %16 -> ==1",)


def test_a_variant_seen_again_becomes_the_most_recent():
    memory = VariantMemory()
    for n in (i32("%16"), i32("other"), i32("%16")):
        memory.explain(variant(n=n))
    assert memory.explain(variant(n=ONE)) == ("n: %16 -> ==1",)


def test_kernels_do_not_explain_each_other():
    memory = VariantMemory()
    memory.explain(Variant("m.one", (("n", ONE),), ()))
    assert memory.explain(Variant("m.two", (("n", i32("%16")),), ())) == ("new kernel",)


def test_long_constants_are_cut_yet_stay_different():
    (line,) = reasons(variant(S=const("a" * 500 + "b")), [variant(S=const("a" * 500 + "c"))])
    before, after = line.removeprefix("constexpr S: ").split(" -> ")
    assert before != after
    assert len(before) == len(after) == MAX_VALUE


def test_a_constant_of_several_lines_stays_on_one():
    assert reasons(variant(S=const("a\n  b")), [variant(S=const("c"))]) == ("constexpr S: c -> a b",)


def test_the_number_of_lines_is_bounded_and_the_rest_is_counted():
    before = Variant("k", tuple((f"a{i}", i32("%16")) for i in range(MAX_LINES + 3)), ())
    after = Variant("k", tuple((f"a{i}", ONE) for i in range(MAX_LINES + 3)), ())
    lines = reasons(after, [before])
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "and 3 more"
    assert cause_of(lines[-1]) is None


def test_the_memory_forgets_the_least_recent_variant_and_kernel():
    memory = VariantMemory(max_variants=2, max_kernels=2)
    for value in ("1", "2", "3"):
        memory.explain(variant(S=const(value)))
    assert memory.explain(variant(S=const("1"))) == ("constexpr S: 3 -> 1",)  # forgotten, hence explained as new
    assert memory.explain(variant(S=const("3"))) == (SAME_VARIANT,)
    for kernel in ("m.two", "m.three"):
        memory.explain(Variant(kernel, (), ()))
    assert memory.explain(variant(S=const("3"))) == (NEW_KERNEL,)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("n: %16 -> ==1", "n"),
        ("s[1]: other -> ==1", "s"),
        ("constexpr S: 1024 -> 1025", "S"),
        ("constexpr ACT: a: b -> c", "ACT"),
        ("option num_warps: 4 -> 8", "option num_warps"),
        (NEW_KERNEL, None),
        (SAME_VARIANT, None),
    ],
)
def test_the_cause_is_the_argument_or_the_option(reason, cause):
    assert cause_of(reason) == cause


def test_threads_share_one_memory():
    """Eight threads meet the same 40 variants: each is new once, and the same variant seven times."""
    memory = VariantMemory()
    answers: list[tuple[str, ...]] = []

    def work() -> None:
        for i in range(40):
            answers.append(memory.explain(variant(S=const(str(i)))))  # noqa: PERF401  # threads interleave here

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count((NEW_KERNEL,)) == 1
    assert answers.count((SAME_VARIANT,)) == 7 * 40


classes = st.sampled_from([PTR, ONE, NONE, i32("%16"), i32("other"), const("1"), const("2"), ArgClass("fp32", "other")])
variants = st.builds(
    lambda args, options: Variant("k", tuple(args.items()), tuple(options.items())),
    st.dictionaries(st.sampled_from(["x", "n", "S", "s[0]", "s[1]"]), classes),
    st.dictionaries(st.sampled_from(["num_warps", "num_stages"]), st.sampled_from(["2", "4"])),
)


def differences(a: Variant, b: Variant) -> int:
    left = {**dict(a.args), **{f"option {k}": v for k, v in a.options}}
    right = {**dict(b.args), **{f"option {k}": v for k, v in b.options}}
    return sum(left.get(name) != right.get(name) for name in left.keys() | right.keys())


FOUR = (("num_warps", "4"), ("num_stages", "4"))


@given(variants, st.lists(variants, min_size=1, max_size=8))
@example(Variant("k", (), FOUR[::-1]), [Variant("k", (), FOUR), Variant("k", (), FOUR[:1])])  # in another order
def test_there_is_one_line_for_each_difference_from_the_nearest(new, seen):
    lines = reasons(new, seen)
    fewest = min(differences(new, old) for old in seen)
    assert (lines == (SAME_VARIANT,)) == (fewest == 0)
    assert len(lines) == max(1, fewest)


@given(st.lists(variants, max_size=12))
def test_the_memory_says_what_the_pure_function_says(history):
    memory = VariantMemory()
    seen: list[Variant] = []
    for each in history:
        assert memory.explain(each) == reasons(each, seen)
        seen = [*(old for old in seen if old != each), each]
