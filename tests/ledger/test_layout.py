"""The bytes of ledger files: what is written is read back, and whatever else one finds is named, never raised."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tritonprobe.ledger.layout import (
    BY_ID,
    COUNT_AT,
    EXEMPLAR_SLOTS,
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
    pack_exemplar,
    pack_header,
    pack_record,
    schema_id,
    unpack_base,
    unpack_exemplar,
    unpack_header,
    unpack_records,
)
from tritonprobe.ledger.schema import METRICS, TTFT, Metric
from tritonprobe.ledger.store import Exemplar, Traced

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
exemplars = st.builds(
    Traced,
    value=st.floats(min_value=0),
    unix_ns=st.integers(0, 2**62),
    exemplar=st.builds(
        Exemplar,
        trace_id=st.integers(1, 2**128 - 1).map("{:032x}".format),
        span_id=st.integers(1, 2**64 - 1).map("{:016x}".format),
    ),
)
sums = st.builds(
    Sum,
    schema_id=u32,
    labels=labels,
    parts=st.lists(numbers, max_size=4).map(tuple),
    traced=st.none() | exemplars,
)
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


@given(exemplars)
def test_an_exemplar_comes_back(traced: Traced) -> None:
    data = pack_exemplar(traced)
    assert len(data) == 8 * EXEMPLAR_SLOTS
    assert unpack_exemplar(data) == traced


@given(exemplars, exemplars, st.integers(1, 43))
def test_an_exemplar_half_written_over_another_is_none(old: Traced, new: Traced, written: int) -> None:
    data = pack_exemplar(new)[:written] + pack_exemplar(old)[written:]
    assume(data not in (pack_exemplar(old), pack_exemplar(new)))
    assert unpack_exemplar(data) is None


@given(exemplars, st.integers(0, 43), st.integers(1, 255))
def test_no_flipped_byte_of_an_exemplar_goes_unnoticed(traced: Traced, at: int, flip: int) -> None:
    data = bytearray(pack_exemplar(traced))
    data[at] ^= flip
    assert unpack_exemplar(bytes(data)) is None


@given(st.binary(min_size=8 * EXEMPLAR_SLOTS, max_size=8 * EXEMPLAR_SLOTS))
@example(bytes(8 * EXEMPLAR_SLOTS))
def test_any_bytes_may_stand_in_place_of_an_exemplar(data: bytes) -> None:
    assert unpack_exemplar(data) is None


def test_an_exemplar_without_a_trace_is_none_even_if_its_checksum_is_right() -> None:
    data = bytes(40)
    assert unpack_exemplar(data + struct.pack("=I4x", zlib.crc32(data))) is None


@pytest.mark.parametrize(
    ("trace_id", "span_id"),
    [
        ("0" * 32, "1" * 16),
        ("1" * 32, "0" * 16),
        ("A" * 32, "1" * 16),
        ("1" * 31, "1" * 16),
        ("1" * 32, "1" * 16 + "\n"),
    ],
)
def test_what_is_no_id_of_w3c_makes_no_exemplar(trace_id: str, span_id: str) -> None:
    with pytest.raises(ValueError, match="no ids of a trace and a span"):
        Exemplar(trace_id, span_id)


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
    with pytest.raises(FormatError, match=f"by {age} tritonprobe: its format is {version}, this one reads {FORMAT}"):
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
