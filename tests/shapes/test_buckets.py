"""Buckets: names of launch shapes that are the same on every pod."""

from __future__ import annotations

import enum
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.shapes.buckets import (
    MAX_NAME,
    BucketMemo,
    BucketSpec,
    BucketSpecError,
    default_dims,
    default_spec,
    op_bucket,
    parse_spec,
    pow2,
)

MATMUL = ("a_ptr", "b_ptr", "c_ptr", "M", "N", "K", "stride_am", "stride_bk", "BLOCK_M", "GROUP_SIZE_M")
MATMUL_LAUNCH: dict[str, object] = {
    "a_ptr": object(),
    "M": 700,
    "N": 4096,
    "K": 4096,
    "stride_am": 4096,
    "stride_bk": 4096,
    "BLOCK_M": 128,
    "GROUP_SIZE_M": 8,
}


class Mode(enum.IntEnum):
    FP8 = 1


class Layout(str, enum.Enum):
    ROWS = "rows"


class Proxy:
    """Says that it is a number, as proxies do of what they stand for."""

    __class__ = int  # type: ignore[assignment]


def test_a_spec_names_ranges_in_its_own_order():
    spec = parse_spec({"M": "pow2", "N": "exact", "K": (128, 1024, 4096)})
    assert spec.name({"K": 4096, "N": 4096, "M": 700}) == "M<=1024,N=4096,K<=4096"


@pytest.mark.parametrize(
    ("rule", "value", "name"),
    [
        ("exact", 4096, "M=4096"),
        ("exact", 0, "M=0"),
        ("exact", -3, "M=-3"),
        ("exact", True, "M=True"),
        ("exact", "relu", "M=relu"),
        ("exact", Mode.FP8, "M=1"),
        ("exact", Layout.ROWS, "M=rows"),
        ("exact", Proxy(), "all"),
        ("pow2", Proxy(), "all"),
        ((128, 1024), Proxy(), "all"),
        ("pow2", 1, "M<=1"),
        ("pow2", 2, "M<=2"),
        ("pow2", 3, "M<=4"),
        ("pow2", 1024, "M<=1024"),
        ("pow2", 1025, "M<=2048"),
        ("pow2", 0, "M<=0"),
        ("pow2", -5, "M<=0"),
        ((128, 1024, 4096), 1, "M<=128"),
        ((128, 1024, 4096), 128, "M<=128"),
        ((128, 1024, 4096), 129, "M<=1024"),
        ((128, 1024, 4096), 4097, "M>4096"),
        ([-1, 5], -7, "M<=-1"),
    ],
)
def test_what_each_rule_makes_of_a_value(rule, value, name):
    assert parse_spec({"M": rule}).name({"M": value}) == name


@pytest.mark.parametrize("value", [None, 2.5, object(), (3, 5)])
def test_a_dimension_without_a_fitting_value_is_left_out(value):
    spec = parse_spec({"M": "pow2", "N": "exact"})
    assert spec.name({"M": value, "N": 8}) == "N=8"
    assert spec.name({"M": value}) == spec.name({}) == "all"


def test_a_kernel_without_dimensions_has_one_bucket():
    assert parse_spec({}).name({"M": 5}) == BucketSpec().name({}) == "all"


def test_text_of_unknown_objects_is_never_taken_because_a_tensors_text_reads_it():
    class Tensor:
        def __repr__(self) -> str:
            raise AssertionError("read")

        __str__ = __repr__

    assert parse_spec({"x": "exact", "y": "pow2"}).name({"x": Tensor(), "y": Tensor()}) == "all"
    with pytest.raises(BucketSpecError, match=r"op's bucket\['x'\] must be a number or text, not Tensor"):
        op_bucket({"x": Tensor()})
    with pytest.raises(BucketSpecError, match="op's bucket must name its dimensions in text, not by a Tensor"):
        op_bucket({Tensor(): 1})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pow2", """bucket='pow2': expected a mapping such as {"M": "pow2", "N": "exact"}"""),
        (["M"], """bucket=['M']: expected a mapping such as {"M": "pow2", "N": "exact"}"""),
        ({7: "exact"}, "bucket: 7 is not the name of an argument"),
        ({"M": "pow3"}, "bucket['M']: unknown word 'pow3'; use "),
        ({"M": 128}, "bucket['M']: cannot use 128; use "),
        ({"M": None}, "bucket['M']: cannot use None; use "),
        ({"M": ()}, "bucket['M']: no edges; use "),
        ({"M": (128, 1.5)}, "bucket['M']: edge 1.5 is not a whole number; use "),
        ({"M": (True, 128)}, "bucket['M']: edge True is not a whole number; use "),
        ({"M": ("1\n2",)}, "bucket['M']: edge '1\\n2' is not a whole number; use "),
        ({"M": (1024, 128)}, "bucket['M']: edge 128 comes after 1024; use "),
        ({"M": (128, 128)}, "bucket['M']: edge 128 comes after 128; use "),
        ({"Q": "exact"}, "bucket['Q']: the kernel has no such argument; it has M, N"),
    ],
)
def test_a_bad_spec_is_one_line_that_names_the_argument_and_what_is_allowed(spec, message):
    with pytest.raises(BucketSpecError) as raised:
        parse_spec(spec, params=("M", "N"))
    text = str(raised.value)
    assert text.startswith(message)
    assert "\n" not in text
    if message.endswith("use "):
        assert text.endswith('use "exact", "pow2" or ascending whole-number edges such as (128, 1024, 4096)')


@given(st.integers(min_value=1, max_value=2**70))
def test_pow2_is_the_smallest_power_of_two_that_is_not_below(n):
    power = pow2(n)
    assert power & (power - 1) == 0
    assert power // 2 < n <= power


def test_pow2_of_nothing_is_nothing():
    assert pow2(0) == pow2(-9) == 0


@given(st.sets(st.integers(-100, 100), min_size=1), st.integers(-120, 120))
def test_a_value_lies_in_the_range_its_bucket_names(edges, value):
    ordered = sorted(edges)
    name = parse_spec({"M": ordered}).name({"M": value})
    if name.startswith("M>"):
        assert value > int(name[2:]) == ordered[-1]
    else:
        edge = int(name.removeprefix("M<="))
        assert value <= edge
        assert not any(value <= lower for lower in ordered if lower < edge)


@given(st.dictionaries(st.sampled_from("MNKHBD"), st.integers(-(2**64), 2**64), min_size=1), st.randoms())
def test_a_name_does_not_depend_on_the_order_of_the_arguments(values, random):
    spec = parse_spec({"M": "pow2", "N": "exact", "K": (1, 64), "H": "exact", "B": "pow2", "D": "pow2"})
    shuffled = list(values.items())
    random.shuffle(shuffled)
    assert spec.name(dict(shuffled)) == spec.name(values)


def test_long_names_are_cut_yet_stay_different():
    spec = parse_spec({f"dimension_{i}": "exact" for i in range(30)})
    one = spec.name({f"dimension_{i}": i for i in range(30)})
    two = spec.name({f"dimension_{i}": i if i < 29 else 0 for i in range(30)})
    assert len(one) == len(two) == MAX_NAME
    assert one[: MAX_NAME - 9] == two[: MAX_NAME - 9]
    assert one != two


def test_an_enormous_constant_does_not_raise():
    assert len(parse_spec({"M": "exact"}).name({"M": 10**6000})) == MAX_NAME
    assert len(parse_spec({"M": "pow2"}).name({"M": 10**6000})) == MAX_NAME


# What an op's callable may return


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"M": pow2(700), "K": 4096}, "M<=1024,K=4096"),
        ({"dtype": "fp16", "causal": True}, "dtype=fp16,causal=True"),
        ({"page": None}, "page=None"),
        ("prefill", "prefill"),
        ("", "all"),
        ({}, "all"),
    ],
)
def test_an_ops_bucket_is_named_like_a_kernels(value, name):
    assert op_bucket(value) == name


@pytest.mark.parametrize("value", [None, 7, ("M", 8)])
def test_an_ops_bucket_must_be_text_or_a_mapping(value):
    with pytest.raises(BucketSpecError, match="an op's bucket must return text or a mapping, not "):
        op_bucket(value)


# Without a spec


def test_by_default_the_integers_of_the_autotune_key_are_the_dimensions():
    dims = default_dims(MATMUL, MATMUL_LAUNCH, autotune_keys=("N", "K", "a_ptr"), constexprs=("BLOCK_M",))
    assert dims == ("N", "K")


def test_else_every_integer_that_is_neither_a_stride_nor_a_tile_size():
    assert default_dims(MATMUL, MATMUL_LAUNCH, constexprs=("BLOCK_M", "GROUP_SIZE_M")) == ("M", "N", "K")


def test_an_autotune_key_without_integers_in_this_launch_is_no_key():
    assert default_dims(("x", "n"), {"x": None, "n": 5}, autotune_keys=("x",)) == ("n",)


def test_booleans_are_no_dimensions():
    assert default_dims(("n", "causal"), {"n": 5, "causal": True}) == ("n",)


@pytest.mark.parametrize(
    "name",
    ["stride", "stride_am", "strides", "x_stride", "x_row_stride", "x_stride_b", "STRIDE0", "lda", "ldx", "s_k_h"],
)
def test_strides_are_known_by_name(name):
    assert default_dims(("n", name), {"n": 5, name: 4096}) == ("n",)


@pytest.mark.parametrize(
    "name", ["seq", "s_len", "size", "load", "ld_total", "N", "n_cols", "hidden", "block_table_len"]
)
def test_sizes_are_not_taken_for_strides(name):
    assert default_dims((name,), {name: 4096}) == (name,)


def test_a_size_that_equals_a_stride_stays():
    """A contiguous matrix's row stride is its number of columns, so a value alone decides nothing."""
    assert default_dims(("x", "N", "stride_xm"), {"x": object(), "N": 64, "stride_xm": 64}) == ("N",)


@pytest.mark.parametrize("name", ["BLOCK", "BLOCK_M", "XBLOCK", "R0_BLOCK", "BLOCKSIZE", "GROUP_M", "num_warps"])
def test_tile_sizes_are_left_out_when_they_are_constants(name):
    assert default_dims((name, "HEAD_DIM"), {name: 64, "HEAD_DIM": 128}, constexprs=(name, "HEAD_DIM")) == ("HEAD_DIM",)
    assert default_dims((name,), {name: 64}) == (name,)


def test_default_rules_keep_autotune_keys_exact_and_bound_what_traffic_varies():
    tuned = default_spec(MATMUL, MATMUL_LAUNCH, autotune_keys=("N", "K"))
    plain = default_spec(MATMUL, MATMUL_LAUNCH, constexprs=("BLOCK_M", "GROUP_SIZE_M"))
    assert tuned.name(MATMUL_LAUNCH) == "N=4096,K=4096"
    assert plain.name(MATMUL_LAUNCH) == "M<=1024,N<=4096,K<=4096"


# The bound


def test_beyond_the_limit_buckets_become_other_and_are_counted():
    memo = BucketMemo(2)
    assert [memo.admit(name) for name in ("a", "b", "c", "a", "d", "c")] == ["a", "b", "other", "a", "other", "other"]
    assert memo.overflow == 3


def test_other_itself_takes_no_place():
    memo = BucketMemo(1)
    assert [memo.admit(name) for name in ("other", "a", "other")] == ["other", "a", "other"]
    assert memo.overflow == 0


def test_threads_share_the_limit():
    memo = BucketMemo(50)
    admitted: list[set[str]] = [set() for _ in range(8)]

    def work(i: int) -> None:
        admitted[i] = {memo.admit(f"b{n}") for n in range(i * 10, i * 10 + 40)}

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set().union(*admitted) - {"other"}) == 50
