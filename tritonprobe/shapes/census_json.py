"""The census as JSON: what docs/census.md describes, written and read. Pure but for reading one file.

A document that cannot be used is refused with the place in it that is wrong, and a version that is not ours by number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tritonprobe.documents import read_json
from tritonprobe.files import is_special
from tritonprobe.model import TIERS
from tritonprobe.shapes.census import MAX_COUNT, Census, CensusError, Entry, Environment, Texts, Tuned, smallest

FORMAT = "tritonprobe census"
VERSION = 1
MAX_FILE = 1 << 28
"""Bytes of a file that is read at all: a merge of many processes, and far more than one of them may have."""
MAX_NAME = 4096
"""Characters of a name: of a kernel, a module, a bucket, a digest."""


def load(path: Path) -> Census:
    """Raises CensusError with the file's name."""
    if is_special(path):
        raise CensusError(f"{path}: no regular file")
    try:
        with path.open("rb") as file:
            found = file.read(MAX_FILE + 1)
    except OSError as error:
        raise CensusError(f"{path}: {error.strerror}") from None
    if len(found) > MAX_FILE:
        raise CensusError(f"{path}: more than {MAX_FILE >> 20} MiB is no census")
    try:
        return parse(found)
    except CensusError as error:
        raise CensusError(f"{path}: {error}") from None


def parse(found: str | bytes) -> Census:
    """Raises CensusError."""
    try:
        document = read_json(found)
    except ValueError as error:
        raise CensusError(f"no census: {error}") from None
    return _Reader(document).census()


def text(census: Census) -> str:
    """The document, a line an entry; the same census is always the same text."""
    return "".join(pieces(census))


def pieces(census: Census, **more: Any) -> Iterator[str]:
    """The text in small pieces: a server's threads have their turn between any two. `more` are fields of the writer."""
    launches: dict[str, dict[str, int]] = {}
    for (kernel, bucket), n in census.launches.items():
        launches.setdefault(kernel, {})[bucket] = n
    yield f'{{"format":{text_of_json(FORMAT)},"version":{VERSION}'
    yield from _rows("environments", (environment_to(e) for _, e in sorted(census.environments.items())))
    yield from _rows("entries", (_entry(entry) for _, entry in sorted(census.entries.items())))
    yield from _rows("tunings", (_tuned(tuned) for _, tuned in sorted(census.tunings.items())))
    for name, value in {"launches": launches, "dropped": dict(census.dropped), **more}.items():
        yield f',\n"{name}":{text_of_json(value)}'
    yield "}\n"


def _rows(name: str, rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield f',\n"{name}":['
    for place, row in enumerate(rows):
        yield ("," if place else "") + "\n" + text_of_json(row)
    yield "]"


def text_of_json(value: Any) -> str:
    """JSON as the census keeps it: one text for one value. Raises ValueError on what JSON cannot say."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def environment_to(e: Environment) -> dict[str, Any]:
    """The environment as JSON."""
    return {
        "triton": e.triton,
        "triton_key": e.triton_key,
        "target": e.target,
        "ptxas": e.ptxas,
        "device": e.device,
        "torch": e.torch,
        "python": e.python,
        "variables": dict(e.variables),
    }


def _entry(e: Entry) -> dict[str, Any]:
    return {
        "kernel": e.kernel,
        "hash": e.hash,
        "environment": e.environment,
        "module": e.module,
        "qualname": e.qualname,
        "source": e.source,
        "inputs": json.loads(e.inputs),
        "classes": [list(pair) for pair in e.classes],
        "keys": list(e.keys),
        "buckets": list(e.buckets),
        "configs": list(e.configs),
        "calls": [json.loads(call) for call in e.calls],
        "cold": {tier: {"calls": count, "ns": ns} for tier, count, ns in e.cold},
        "launched": e.launched,
        "first_ns": e.first_ns,
        "last_ns": e.last_ns,
    }


def _tuned(t: Tuned) -> dict[str, Any]:
    return {
        "kernel": t.kernel,
        "environment": t.environment,
        "module": t.module,
        "qualname": t.qualname,
        "source": t.source,
        "key": json.loads(t.key),
        "winner": json.loads(t.winner),
        "call": json.loads(t.call),
        "trials": [{"config": config, "hash": digest, "grid": list(grid)} for config, digest, grid in t.trials],
        "measured": t.measured,
        "sessions": t.sessions,
        "ns": t.ns,
        "first_ns": t.first_ns,
        "last_ns": t.last_ns,
    }


class _Reader:
    """Takes a parsed document apart and names the first thing in it that is not what it should be."""

    def __init__(self, document: Any) -> None:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CensusError(f'no census: "format" is not "{FORMAT}"')
        version = document.get("version")
        if version != VERSION or type(version) is not int:  # true is 1 to Python
            raise CensusError(
                f"census version {str(version)[:20]}: this tritonprobe reads version {VERSION}; upgrade it"
            )
        self._document = document

    def census(self) -> Census:
        return Census.of(
            [environment_from(at, e) for at, e in self._rows("environments")],
            [self._entry(at, e) for at, e in self._rows("entries")],
            [self._tuned(at, t) for at, t in self._rows("tunings")],
            {
                (_name("launches", kernel), _name("launches", bucket)): _whole(f"launches.{kernel}.{bucket}", n)
                for kernel, buckets in self._table(self._document, "launches", "launches").items()
                for bucket, n in self._table({"_": buckets}, "_", f"launches.{kernel}").items()
            },
            {
                _name("dropped", what): _whole(f"dropped.{what}", n)
                for what, n in self._table(self._document, "dropped", "dropped").items()
            },
        )

    def _rows(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        rows = self._document.get(name)
        if not isinstance(rows, list):
            raise CensusError(f"{name}: expected a list")
        for i, row in enumerate(rows):
            if not isinstance(row, dict):
                raise CensusError(f"{name}[{i}]: expected an object")
            yield f"{name}[{i}]", row

    @staticmethod
    def _table(row: dict[str, Any], name: str, at: str) -> dict[str, Any]:
        table = row.get(name)
        if not isinstance(table, dict):
            raise CensusError(f"{at[:200]}: expected an object")
        return table

    def _entry(self, at: str, row: dict[str, Any]) -> Entry:
        calls = row.get("calls")
        if not isinstance(calls, list) or not isinstance(row.get("inputs"), dict):
            raise CensusError(f"{at}: expected inputs, an object, and calls, a list")
        return Entry(
            kernel=_named(at, row, "kernel"),
            hash=_named(at, row, "hash"),
            environment=_named(at, row, "environment"),
            module=_named(at, row, "module"),
            qualname=_named(at, row, "qualname"),
            source=_named(at, row, "source"),
            inputs=_json(at, row["inputs"]),
            classes=_pairs(at, row, "classes"),
            keys=_texts(at, row, "keys"),
            buckets=tuple(_name(f"{at}.buckets", bucket) for bucket in _texts(at, row, "buckets")),
            configs=_texts(at, row, "configs"),
            calls=smallest(tuple(_call(f"{at}.calls", call) for call in calls), ()),
            cold=tuple(self._cold(at, row)),
            launched=_flag(at, row, "launched"),
            first_ns=_whole(f"{at}.first_ns", row.get("first_ns")),
            last_ns=_whole(f"{at}.last_ns", row.get("last_ns")),
        )

    def _cold(self, at: str, row: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
        tiers = self._table(row, "cold", f"{at}.cold")
        if not set(tiers) <= set(TIERS):
            raise CensusError(f"{at}.cold: expected tiers, {', '.join(TIERS)}")
        for tier in sorted(tiers):
            calls = self._table(tiers, tier, f"{at}.cold.{tier}")
            yield tier, _whole(f"{at}.cold.{tier}", calls.get("calls")), _whole(f"{at}.cold.{tier}", calls.get("ns"))

    @staticmethod
    def _tuned(at: str, row: dict[str, Any]) -> Tuned:
        return Tuned(
            kernel=_named(at, row, "kernel"),
            environment=_named(at, row, "environment"),
            module=_named(at, row, "module"),
            qualname=_named(at, row, "qualname"),
            source=_named(at, row, "source"),
            key=_json(f"{at}.key", row.get("key")),
            winner=_json(f"{at}.winner", _text(at, row, "winner")),
            call=_call(f"{at}.call", row.get("call")),
            trials=tuple(_trials(at, row.get("trials", []))),  # not in files of those who wrote none yet
            measured=_flag(at, row, "measured"),
            sessions=_whole(f"{at}.sessions", row.get("sessions")),
            ns=_whole(f"{at}.ns", row.get("ns")),
            first_ns=_whole(f"{at}.first_ns", row.get("first_ns")),
            last_ns=_whole(f"{at}.last_ns", row.get("last_ns")),
        )


def environment_from(at: str, row: Any) -> Environment:
    """Raises CensusError, with the place."""
    if not isinstance(row, dict) or not isinstance(row.get("variables"), dict):
        raise CensusError(f"{at}: expected an object with variables, an object")
    torch, variables = row.get("torch"), row["variables"]
    if torch is not None and not isinstance(torch, str):
        raise CensusError(f"{at}.torch: expected text or null")
    return Environment(
        triton=_named(at, row, "triton"),
        triton_key=_named(at, row, "triton_key"),
        target=_named(at, row, "target"),
        ptxas=_named(at, row, "ptxas"),
        device=_named(at, row, "device"),
        torch=None if torch is None else _name(f"{at}.torch", torch),
        python=_named(at, row, "python"),
        variables=tuple(sorted((_name(at, name), _named(at, variables, name)) for name in variables)),
    )


def _pairs(at: str, row: dict[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    rows = row.get(name)
    if not isinstance(rows, list) or not all(map(_is_pair, rows)):
        raise CensusError(f"{at}.{name}: expected a list of pairs of texts")
    return tuple((first, second) for first, second in rows)


def _is_pair(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and all(isinstance(text, str) for text in row)


def _text(at: str, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise CensusError(f"{at}.{name}: expected text")
    return value


def _named(at: str, row: Mapping[str, Any], name: str) -> str:
    return _name(f"{at}.{name}", _text(at, row, name))


def _name(at: str, name: str) -> str:
    if len(name) > MAX_NAME:
        raise CensusError(f"{at}: a name of {len(name):,} characters, and {MAX_NAME:,} are allowed")
    return name


def _texts(at: str, row: dict[str, Any], name: str) -> Texts:
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise CensusError(f"{at}.{name}: expected a list of texts")
    return smallest(tuple(value), ())


def _flag(at: str, row: dict[str, Any], name: str) -> bool:
    value = row.get(name)
    if not isinstance(value, bool):
        raise CensusError(f"{at}.{name}: expected true or false")
    return value


def _whole(at: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise CensusError(f"{at[:200]}: expected a whole number, 0 or more, of at most 63 bits")
    return value


def _call(at: str, value: Any) -> str:
    """A call: `arguments` by name, and the `grid` if it was launched."""
    if not isinstance(value, dict) or not isinstance(value.get("arguments", {}), dict):
        raise CensusError(f"{at}: expected an object with arguments, an object")
    _grid(at, value.get("grid", []))
    return _json(at, value)


def _trials(at: str, rows: Any) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """In order, so that the same trials are always the same text."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CensusError(f"{at}.trials: expected a list of objects")
    trials = [
        (_text(at, row, "config"), _named(at, row, "hash"), _grid(f"{at}.trials", row.get("grid"))) for row in rows
    ]
    yield from sorted(trials)


def _grid(at: str, grid: Any) -> tuple[int, ...]:
    if not isinstance(grid, list) or not all(isinstance(n, int) for n in grid):
        raise CensusError(f"{at}: expected a grid of whole numbers")
    return tuple(grid)


def _json(at: str, value: Any) -> str:
    try:
        return text_of_json(value)
    except ValueError:  # 1e999 is infinite to Python
        raise CensusError(f"{at}: not a number that JSON knows") from None
