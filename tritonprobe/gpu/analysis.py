"""From what a window saw to sums by kernel and bucket. Pure, numpy; knows no ledger and no CUPTI.

Three kinds of record: launched through us (`attribution`), replayed by a graph (`graphs`), and everybody else's, which
keep their own name under the bucket `external`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonprobe.gpu.attribution import DROPPED, FOREIGN, Attribution, attribute, columns
from tritonprobe.gpu.graphs import Graphs
from tritonprobe.gpu.launch_log import Logged
from tritonprobe.gpu.matching import Edges
from tritonprobe.gpu.records import ALL, Chosen, Records, busy_ns
from tritonprobe.gpu.spans import Ints, Spans, all_in_one
from tritonprobe.seen import Label

EXTERNAL = "external"
"""The bucket of kernels that were launched by somebody else."""
_TRIAL = -3  # a record of an autotune trial
_NONE = -1  # no row


@dataclass(frozen=True, slots=True)
class Known:
    """The records whose launch is known, one by one: label, launching thread, and times."""

    of: Ints  # -1: an autotune trial's
    thread: Ints
    launched_ns: Ints  # when the host began to launch it
    start_ns: Ints  # when the GPU began
    end_ns: Ints


@dataclass(frozen=True, slots=True)
class Found:
    """The records of one window by label: those of label `labels[i]` are in row i of ``spans``."""

    labels: list[Label]
    spans: Spans
    launched: Attribution
    seen: int  # launches, empty grids included
    replayed: int  # records of graphs
    queue: Spans  # from the launcher's return to the kernel's start, where the launch is known
    busy_ns: dict[int, int]  # by device
    known: Known | None = None


def analyse(
    logged: Logged,
    records: Records,
    edges: Edges,
    off_ns: int,
    graphs: Graphs,
    text_at: Callable[[int], str],
    external: Callable[[str], str],
    one_by_one: bool = True,
) -> Found:
    """`edges` and `off_ns` say where in the order, and when, records were switched.

    `text_at` reads the name at an address; `external` is what a foreign kernel of that name is to be called. What is
    known of records one by one is left out unless it is wanted.
    """
    which, classes = records.which, records.classes
    names = _names(classes.name, text_at)
    in_graph = classes.graph != 0
    alone: Chosen = np.flatnonzero(~in_graph[which]) if in_graph.any() else ALL
    labels = _Labels(names, external)

    launches = columns(logged, edges)
    launched = attribute(launches, records.take(alone), names)
    table = labels.table(launched.labels)
    of_class = table[launched.of_class]
    for each in np.flatnonzero((of_class == FOREIGN) & ~in_graph).tolist():
        of_class[each] = labels.of_foreign(each)
    of, replayed = which, 0
    if launched.apart or not isinstance(alone, slice):
        of = of_class[which]
        for place, said in launched.apart:
            of[_within(alone, place)] = table[said]
    if not isinstance(alone, slice):
        in_graphs = np.flatnonzero(in_graph[which])
        replayed = len(in_graphs)
        found, label = graphs.attribute(records.take(in_graphs), names, off_ns)
        of[in_graphs] = labels.table(found)[label]
        foreign = np.flatnonzero(of == FOREIGN)
        for each in np.unique(which[foreign]).tolist():
            of[foreign[which[foreign] == each]] = labels.of_foreign(each)
    if of is which:  # all records of a class are of one label, as nearly always
        row_of = np.maximum(of_class, _NONE)
    else:
        row_of = np.append(np.arange(len(labels)), _NONE)
        of[of < 0] = len(labels)
    one, at = _within(alone, launched.records), launched.launches
    known = None
    if one_by_one:
        found_of = row_of[of[one]]
        known = Known(found_of, launches.thread[at], launches.start_ns[at], records.start[one], records.end[one])
    busy = {device: busy_ns(records, device) for device in np.unique(classes.device).tolist()}
    spans = Spans(records.start, records.end, of, row_of, len(labels))
    queue = all_in_one(launches.end_ns[at], records.start[one])
    return Found(labels.list, spans, launched, len(logged), replayed, queue, busy, known)


class _Labels:
    """The labels of a window, numbered as they come."""

    def __init__(self, names: Sequence[str], external: Callable[[str], str]) -> None:
        self._names = names  # of classes of records
        self._external = external
        self._numbers: dict[Label, int] = {}
        self._foreign: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def list(self) -> list[Label]:
        return list(self._numbers)

    def table(self, labels: Sequence[Label | None]) -> Ints:
        """Our numbers of these labels; DROPPED and FOREIGN, as indexes, lead to themselves. None is a trial's label."""
        mine = [_TRIAL if label is None else self._numbers.setdefault(label, len(self._numbers)) for label in labels]
        return np.array([*mine, DROPPED, FOREIGN], np.int64)

    def of_foreign(self, place: int) -> int:
        """The number of a class that somebody else launched, by its name."""
        name = self._names[place]
        if name not in self._foreign:
            label = (self._external(name), EXTERNAL)
            self._foreign[name] = self._numbers.setdefault(label, len(self._numbers))
        return self._foreign[name]


def _within(outer: Chosen, inner: Chosen) -> Chosen:
    """What `inner` chooses of what `outer` chose. Indexes, or all."""
    if isinstance(outer, slice):
        return inner
    return outer if isinstance(inner, slice) else outer[inner]


def _names(addresses: npt.NDArray[np.uint64], text_at: Callable[[int], str]) -> list[str]:
    """The name at each address."""
    read: dict[int, str] = {}
    for address in addresses.tolist():
        if address not in read:
            read[address] = text_at(address)
    return [read[address] for address in addresses.tolist()]
