"""What Inductor's kernels are called: as they are, without what numbers them, and no more names than the bound."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.adapter.inductor_names import MAX_NAME, PREFIX, Names, canonical_name

KERNELS = st.from_regex(r"triton_(poi|red|per|tem)_fused_[a-z_]{1,40}", fullmatch=True).map(lambda n: n.rstrip("_"))


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("triton_poi_fused_add_0", "inductor.triton_poi_fused_add"),
        ("triton_poi_fused_add_mul_17", "inductor.triton_poi_fused_add_mul"),
        ("triton_red_fused__to_copy_sum_2", "inductor.triton_red_fused__to_copy_sum"),
        ("triton_poi_fused_3", "inductor.triton_poi_fused"),
        ("triton_", "inductor.triton"),
        ("add_kernel", "inductor.add_kernel"),
        ("12", "inductor.unnamed"),
        ("", "inductor.unnamed"),
    ],
)
def test_names_as_a_reader_expects_them(kernel: str, name: str) -> None:
    assert canonical_name(kernel) == name


@given(KERNELS, st.integers(0, 99_999), st.integers(0, 99_999))
def test_the_ordinal_makes_no_difference(kernel: str, one: int, other: int) -> None:
    assert canonical_name(f"{kernel}_{one}") == canonical_name(f"{kernel}_{other}")
    assert canonical_name(f"{kernel}_{one}") == PREFIX + kernel[:MAX_NAME].rstrip("_")


@given(st.text(max_size=300))
def test_any_name_gives_one_that_is_short_plain_and_final(kernel: str) -> None:
    name = canonical_name(kernel)
    assert re.fullmatch(r"inductor\.[0-9A-Za-z_]+", name)
    assert len(name) <= len(PREFIX) + MAX_NAME
    assert not re.search(r"_\d+$", name)
    assert canonical_name(name.removeprefix(PREFIX)) == name


@given(st.lists(st.text(max_size=5), max_size=60), st.integers(1, 20))
def test_the_first_names_are_kept_and_the_rest_are_other(given_names: list[str], limit: int) -> None:
    names = Names(limit)
    admitted = [names.admit(name) for name in given_names]

    kept = list(dict.fromkeys(given_names))[:limit]
    assert admitted == [name if name in kept else "inductor.other" for name in given_names]
