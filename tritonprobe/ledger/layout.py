"""The bytes of a ledger file and of the base that dead files are folded into. Pure: packs and unpacks, opens nothing.

A ledger file has a fixed size and three parts: one page of header, the slots, the index.

    0        magic, format, checksum of what follows up to 128, uuid, pid, start, where the parts lie
    128      how many index records there are: the last thing written for a new series, one aligned store
    4096     slots: float64, aligned
    ...      index records: length, checksum, schema id, first slot, number of slots, label values

The six slots before a histogram's first hold its exemplar: value, Unix time, trace, span, checksum. It is not
stored at once, so a reader may find it half written; then the checksum fails, and it is omitted. It lies before the
numbers because those are written first and read last: who finds an exemplar finds its bucket counted.

A base is written once and read whole: magic, format, checksum of the rest, a random generation, the uuids of the files
that are in it, and each series' sums and exemplar. A sum is kept exactly, as the few float64 that add up to it:
rounded, it could make a counter fall by its last bit when a file is folded, which Prometheus takes for a restart.

Bytes are in the machine's own order, as slots are: a ledger never leaves it. Whatever is wrong is a FormatError.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from tritonprobe.ledger.schema import METRICS, Metric
from tritonprobe.ledger.store import Exemplar, Labels, Traced

MAGIC = b"TPLEDGER"
BASE_MAGIC = b"TPLBASE\0"
FORMAT = 2  # 1 had no exemplars
SIZE = 2 << 20
SERIES = 10_000
"""What `SIZE` bytes are for; larger budgets of series take as much more."""
PAGE = 4096
COUNT_AT = 128
SUFFIX = ".tpl"
BASE_NAME = "base.tpb"

_HEADER = struct.Struct("=8sII16sQqIIII")
_RECORD = struct.Struct("=IIIIIH")
_BASE = struct.Struct("=8sII16sII")
_COUNT = struct.Struct("=Q")
_SHORT = struct.Struct("=H")
_EXEMPLAR = struct.Struct("=dq16s8sI4x")
_EXEMPLAR_SEALED = 40  # the bytes before its checksum
EXEMPLAR_SLOTS = _EXEMPLAR.size // 8
_LEAD = 16  # magic, format, checksum: what stands before the bytes that a checksum covers


class FormatError(ValueError):
    """Bytes that are no ledger, or not one that can be read; the message says which, without naming the file."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the parts of a file of `size` bytes lie: one slot for each 64 bytes, the rest for the index."""

    size: int

    @classmethod
    def within(cls, budget: int) -> Plan:
        """That of a file for so many series."""
        return cls(SIZE * -(-budget // SERIES))

    @property
    def budget(self) -> int:
        """The most series that a file of this size is made for."""
        return self.size // SIZE * SERIES

    @property
    def slots(self) -> int:
        return self.size // 64

    @property
    def index_at(self) -> int:
        return PAGE + 8 * self.slots


@dataclass(frozen=True, slots=True)
class Header:
    """``start_ns`` is Unix time."""

    uuid: bytes
    pid: int
    start_ns: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Record:
    """One series: the metric's schema id, where its slots are, its label values."""

    schema_id: int
    first: int
    slots: int
    labels: Labels


@dataclass(frozen=True, slots=True)
class Sum:
    """One folded series. ``parts`` has, for each slot, the float64 that add up to its exact sum."""

    schema_id: int
    labels: Labels
    parts: tuple[tuple[float, ...], ...]
    traced: Traced | None = None


@dataclass(frozen=True, slots=True)
class Base:
    generation: bytes
    folded: tuple[bytes, ...]
    sums: tuple[Sum, ...]


def schema_id(metric: Metric) -> int:
    """What a record calls its metric: with another kind, label or bound it has another id, and is not added up."""
    return zlib.crc32(repr((metric.name, metric.kind, metric.labels, metric.bounds)).encode())


def exemplar_slots(metric: Metric) -> int:
    """How many slots lie before a series' own, for its exemplar."""
    return EXEMPLAR_SLOTS if metric.kind == "histogram" else 0


BY_ID: dict[int, Metric] = {schema_id(metric): metric for metric in METRICS}


def pack_header(header: Header) -> bytes:
    """The first bytes of a file, with no index record yet."""
    plan = header.plan
    body = _HEADER.pack(
        MAGIC, FORMAT, 0, header.uuid, header.pid, header.start_ns, plan.size, PAGE, plan.slots, plan.index_at
    ).ljust(COUNT_AT, b"\0")
    return _sealed(body) + _COUNT.pack(0)


def unpack_header(data: bytes) -> tuple[Header, int]:
    """The header and the number of index records, from a file's first page. Raises FormatError."""
    if len(data) < PAGE:
        raise FormatError("cut short: it has no whole header")
    _check(data[:COUNT_AT], MAGIC)
    _, _, _, uuid, pid, start_ns, size, *places = _HEADER.unpack_from(data)
    plan = Plan(size)
    if places != [PAGE, plan.slots, plan.index_at] or plan.index_at > size:
        raise FormatError("damaged: its parts overlap")
    return Header(uuid, pid, start_ns, plan), _COUNT.unpack_from(data, COUNT_AT)[0]


def pack_record(record: Record) -> bytes:
    texts = [text.encode() for text in record.labels]
    body = b"".join(part for text in texts for part in (_SHORT.pack(len(text)), text))
    length = _RECORD.size + len(body)
    head = _RECORD.pack(length, 0, record.schema_id, record.first, record.slots, len(texts))
    return head[:4] + struct.pack("=I", _record_sum(head, body)) + head[8:] + body


def unpack_records(data: memoryview | bytes, count: int) -> tuple[list[Record], int, str | None]:
    """Up to `count` records, the bytes they take, and what is wrong with the next one, if not all could be read."""
    found: list[Record] = []
    at = 0
    while len(found) < count:
        try:
            record, length = _record(data, at)
        except FormatError as error:
            return found, at, str(error)
        found.append(record)
        at += length
    return found, at, None


def pack_exemplar(traced: Traced) -> bytes:
    trace, span = bytes.fromhex(traced.exemplar.trace_id), bytes.fromhex(traced.exemplar.span_id)
    data = _EXEMPLAR.pack(traced.value, traced.unix_ns, trace, span, 0)
    return data[:_EXEMPLAR_SEALED] + struct.pack("=I4x", zlib.crc32(data[:_EXEMPLAR_SEALED]))


def unpack_exemplar(data: bytes) -> Traced | None:
    """None for what is no exemplar: none was written yet, or another one is being written right now."""
    value, unix_ns, trace, span, checksum = _EXEMPLAR.unpack(data)
    if checksum != zlib.crc32(data[:_EXEMPLAR_SEALED]):
        return None
    try:
        return Traced(value, unix_ns, Exemplar(trace.hex(), span.hex()))
    except ValueError:
        return None


def pack_base(base: Base) -> bytes:
    pieces = [_BASE.pack(BASE_MAGIC, FORMAT, 0, base.generation, len(base.folded), len(base.sums)), *base.folded]
    for found in base.sums:
        pieces.append(pack_record(Record(found.schema_id, 0, len(found.parts), found.labels)))
        for parts in found.parts:
            pieces.append(_SHORT.pack(len(parts)))
            pieces.append(struct.pack(f"={len(parts)}d", *parts))
        exemplars = [] if found.traced is None else [pack_exemplar(found.traced)]
        pieces += [_SHORT.pack(len(exemplars)), *exemplars]
    return _sealed(b"".join(pieces))


def unpack_base(data: bytes) -> Base:
    """Raises FormatError."""
    if len(data) < _BASE.size:
        raise FormatError("cut short: it has no whole header")
    _check(data, BASE_MAGIC)
    # The checksum has vouched for the rest, but whoever wrote it may have been wrong.
    _, _, _, generation, files, series = _BASE.unpack_from(data)
    at = _BASE.size + 16 * files
    if at > len(data):
        raise FormatError("damaged: its list of files is cut short")
    folded = tuple(data[i : i + 16] for i in range(_BASE.size, at, 16))
    sums: list[Sum] = []
    for _ in range(series):
        record, length = _record(data, at)
        at += length
        parts: list[tuple[float, ...]] = []
        for _ in range(record.slots):
            try:
                (n,) = _SHORT.unpack_from(data, at)
                parts.append(struct.unpack_from(f"={n}d", data, at + 2))
            except struct.error:
                raise FormatError("damaged: a sum is cut short") from None
            at += 2 + 8 * n
        traced, at = _base_exemplar(data, at)
        sums.append(Sum(record.schema_id, record.labels, tuple(parts), traced))
    return Base(generation, folded, tuple(sums))


def base_generation(data: bytes) -> bytes:
    """Which base this is, from its first bytes. Raises FormatError."""
    if len(data) < _BASE.size:
        raise FormatError("cut short: it has no whole header")
    return bytes(_BASE.unpack_from(data)[3])


def _base_exemplar(data: bytes, at: int) -> tuple[Traced | None, int]:
    """The exemplar of a sum, if it has one, and where the next sum begins."""
    try:
        (there,) = _SHORT.unpack_from(data, at)
        end = at + 2 + there * _EXEMPLAR.size
        return (unpack_exemplar(data[at + 2 : end]) if there else None), end
    except struct.error:
        raise FormatError("damaged: an exemplar is cut short") from None


def _record(data: memoryview | bytes, at: int) -> tuple[Record, int]:
    if at + _RECORD.size > len(data):
        raise FormatError("damaged: its index is cut short")
    length, checksum, ident, first, slots, labels = _RECORD.unpack_from(data, at)
    if length < _RECORD.size or at + length > len(data):
        raise FormatError("damaged: an index record has an impossible length")
    raw = bytes(data[at : at + length])
    if checksum != _record_sum(raw[: _RECORD.size], raw[_RECORD.size :]):
        raise FormatError("damaged: an index record fails its checksum")
    return Record(ident, first, slots, _labels(raw, labels)), length


def _labels(raw: bytes, count: int) -> Labels:
    found: list[str] = []
    at = _RECORD.size
    try:
        for _ in range(count):
            (n,) = _SHORT.unpack_from(raw, at)
            found.append(raw[at + 2 : at + 2 + n].decode())
            at += 2 + n
    except (struct.error, UnicodeDecodeError):
        at = -1
    if at != len(raw):
        raise FormatError("damaged: an index record's labels cannot be read")
    return tuple(found)


def _record_sum(head: Sequence[int] | bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(bytes(head[8:])))


def _sealed(data: bytes) -> bytes:
    return data[: _LEAD - 4] + struct.pack("=I", zlib.crc32(data[_LEAD:])) + data[_LEAD:]


def _check(data: bytes, magic: bytes) -> None:
    if data[: len(magic)] != magic:
        raise FormatError("foreign: it is no ledger of tritonprobe")
    version, checksum = struct.unpack_from("=II", data, len(magic))
    if version != FORMAT:
        age = "newer" if version > FORMAT else "older"
        raise FormatError(f"written by {age} tritonprobe: its format is {version}, this one reads {FORMAT}")
    if checksum != zlib.crc32(data[_LEAD:]):
        raise FormatError("damaged: it fails its checksum")
