"""The bytes of ledger files: what is written is read back, and whatever else one finds is named, never raised."""

from __future__ import annotations

import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tritonprobe.ledger.layout import (
    BY_ID,
    COUNT_AT,
    FORMAT,
    PAGE,
    Base,
    FormatError,
    Header,
    Plan,
    Record,
    Sum,
    base_generation,
    pack_base,
    pack_header,
    pack_record,
    schema_id,
    unpack_base,
    unpack_header,
    unpack_records,
)
from tritonprobe.ledger.schema import METRICS, TTFT, Metric

u32 = st.integers(0, 2**32 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
labels = st.lists(text, max_size=5).map(tuple)
headers = st.builds(
    Header,
    uuid=st.binary(min_size=16, max_size=16),
    pid=st.integers(0, 2**40),
    start_ns=st.integers(0, 2**62),
    plan=st.builds(Plan, st.integers(1, 1000).map(lambda pages: pages * PAGE * 2)),
)
records = st.builds(Record, schema_id=u32, first=u32, slots=u32, labels=labels)
numbers = st.lists(st.floats(allow_nan=False), max_size=4).map(tuple)
sums = st.builds(Sum, schema_id=u32, labels=labels, parts=st.lists(numbers, max_size=4).map(tuple))
uuids = st.binary(min_size=16, max_size=16)
bases = st.builds(
    Base, generation=uuids, folded=st.lists(uuids, max_size=5).map(tuple), sums=st.lists(sums, max_size=5).map(tuple)
)


def page(header: Header, records: int = 0) -> bytes:
    packed = pack_header(header)
    return packed[:COUNT_AT] + struct.pack("=Q", records) + bytes(PAGE - len(packed))


@given(headers, st.integers(0, 2**64 - 1))
def test_a_header_comes_back(header: Header, records: int) -> None:
    assert unpack_header(page(header, records)) == (header, records)


@given(st.lists(records, max_size=10))
def test_records_come_back(written: list[Record]) -> None:
    data = b"".join(map(pack_record, written))
    assert unpack_records(data + bytes(100), len(written)) == (written, len(data), None)


@given(bases)
def test_a_base_comes_back(base: Base) -> None:
    data = pack_base(base)
    assert unpack_base(data) == base
    assert base_generation(data) == base.generation


def test_parts_of_a_file_do_not_overlap_and_slots_are_aligned() -> None:
    for pages in (2, 3, 16, 512):
        plan = Plan(pages * PAGE)
        assert PAGE + 8 * plan.slots == plan.index_at < plan.size
        assert plan.index_at % 8 == 0


def test_every_metric_has_an_id_of_its_own_that_its_bounds_belong_to() -> None:
    assert len(BY_ID) == len(METRICS)
    finer = Metric(TTFT.name, TTFT.kind, TTFT.help, TTFT.labels, bounds=(0.0005, *TTFT.bounds))
    assert schema_id(finer) not in BY_ID
    # Help and what a reader derives may be worded anew: the numbers are the same.
    assert schema_id(Metric(TTFT.name, TTFT.kind, "Other words.", TTFT.labels, bounds=TTFT.bounds)) == schema_id(TTFT)


@given(headers, st.integers(0, PAGE - 1))
def test_a_header_cut_short_is_named(header: Header, length: int) -> None:
    with pytest.raises(FormatError, match=r"^cut short"):
        unpack_header(page(header)[:length])


@given(st.binary(max_size=200).map(lambda data: data.ljust(PAGE, b"\0")))
def test_foreign_bytes_are_named(data: bytes) -> None:
    assume(not data.startswith(b"TPLEDGER"))
    with pytest.raises(FormatError, match=r"^foreign: it is no ledger of tritonprobe"):
        unpack_header(data)


@pytest.mark.parametrize(("version", "age"), [(FORMAT + 1, "newer"), (FORMAT - 1, "older")])
def test_another_format_is_named_with_its_number(version: int, age: str) -> None:
    data = page(Header(bytes(16), 1, 1, Plan(1 << 20)))
    other = data[:8] + struct.pack("=I", version) + data[12:]
    with pytest.raises(FormatError, match=rf"written by {age} tritonprobe: its format is {version}, this one reads 1"):
        unpack_header(other)
    base = pack_base(Base(bytes(16), (), ()))
    with pytest.raises(FormatError, match=rf"its format is {version}"):
        unpack_base(base[:8] + struct.pack("=I", version) + base[12:])


@given(headers, st.integers(0, COUNT_AT - 1), st.integers(1, 255))
def test_no_flipped_byte_of_a_header_goes_unnoticed(header: Header, at: int, flip: int) -> None:
    data = bytearray(page(header))
    data[at] ^= flip
    with pytest.raises(FormatError):
        unpack_header(bytes(data))


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_a_flipped_byte_of_the_index_ends_it_there(written: list[Record], data: st.DataObject) -> None:
    packed = list(map(pack_record, written))
    spoilt = data.draw(st.integers(0, len(packed) - 1))
    at = data.draw(st.integers(0, len(packed[spoilt]) - 1))
    broken = bytearray(packed[spoilt])
    broken[at] ^= data.draw(st.integers(1, 255))
    whole = b"".join([*packed[:spoilt], bytes(broken), *packed[spoilt + 1 :]])
    found, used, problem = unpack_records(whole, len(written))
    assert found == written[:spoilt]
    assert used == sum(map(len, packed[:spoilt]))
    assert problem is not None
    assert problem.startswith("damaged: ")


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_any_bytes_may_stand_in_an_index(data: bytes, count: int) -> None:
    found, used, problem = unpack_records(data, count)
    assert used <= len(data)
    assert len(found) == count or problem is not None


@given(bases, st.data())
def test_no_cut_and_no_flipped_byte_of_a_base_goes_unnoticed(base: Base, data: st.DataObject) -> None:
    packed = pack_base(base)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(FormatError):
        unpack_base(packed[:cut])
    broken = bytearray(packed)
    broken[cut] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        unpack_base(bytes(broken))


@given(st.binary(max_size=300))
def test_any_bytes_may_stand_in_place_of_a_base(data: bytes) -> None:
    assume(not data.startswith(b"TPLBASE"))
    with pytest.raises(FormatError):
        unpack_base(data)
