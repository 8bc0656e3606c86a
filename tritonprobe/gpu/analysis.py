"""From what a window saw to sums by kernel and bucket. Pure, numpy; knows no ledger and no CUPTI.

Three kinds of record: launched through us (`attribution`), replayed by a graph (`graphs`), and everybody else's, which
keep their own name under the bucket `external`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonprobe.gpu.attribution import FOREIGN, Attribution, Edges, attribute, columns
from tritonprobe.gpu.graphs import Graphs
from tritonprobe.gpu.records import Ints, Records, busy_ns
from tritonprobe.seen import Label, Seen

EXTERNAL = "external"
"""The bucket of kernels that were launched by somebody else."""


@dataclass(frozen=True, slots=True)
class Known:
    """The records whose launch is known, one by one: label, place among the launches seen, and times."""

    of: Ints
    place: Ints
    launched_ns: Ints  # when the host began to launch it
    start_ns: Ints  # when the GPU began
    end_ns: Ints


@dataclass(frozen=True, slots=True)
class Found:
    """The records of one window by label: label `labels[i]` has the durations ``duration[of == i]``, nanoseconds."""

    labels: list[Label]
    of: Ints
    duration: Ints
    launched: Attribution
    seen: int  # launches, empty grids included
    replayed: int  # records of graphs
    queue_ns: Ints  # from the launcher's return to the kernel's start, where the launch is known
    busy_ns: dict[int, int]  # by device
    known: Known | None = None

    def sums(self) -> list[tuple[Label, int, int]]:
        """Label, records, nanoseconds."""
        count = np.bincount(self.of, minlength=len(self.labels))
        total = np.bincount(self.of, weights=self.duration, minlength=len(self.labels))
        return [(label, int(n), int(ns)) for label, n, ns in zip(self.labels, count, total, strict=True) if n]


def analyse(
    seen: Sequence[Seen],
    records: Records,
    edges: Edges,
    off_ns: int,
    graphs: Graphs,
    text_at: Callable[[int], str],
    external: Callable[[str], str],
) -> Found:
    """`edges` and `off_ns` say where in the order, and when, records were switched.

    `text_at` reads the name at an address; `external` is what a foreign kernel of that name is to be called.
    """
    addresses, name_of = np.unique(records.name, return_inverse=True)
    names = [text_at(address) for address in addresses.tolist()]
    in_graph = records.graph != 0
    alone = np.flatnonzero(~in_graph)
    labels: dict[Label, int] = {}
    of = np.full(len(records), FOREIGN, np.int64)

    launches = columns(seen, edges)
    launched = attribute(launches, records.take(alone), names, name_of[alone])
    table = np.array([-3 if label is None else labels.setdefault(label, len(labels)) for label in launched.labels], int)
    given = launched.label >= 0
    of[alone] = np.where(given, table[np.maximum(launched.label, 0)] if len(table) else FOREIGN, launched.label)

    replayed = np.flatnonzero(in_graph)
    if len(replayed):
        found, label = graphs.attribute(records.take(replayed), names, name_of[replayed], off_ns)
        table = np.array([labels.setdefault(each, len(labels)) for each in found], np.int64)
        of[replayed] = np.where(label >= 0, table[np.maximum(label, 0)] if len(table) else FOREIGN, label)

    foreign = of == FOREIGN
    if foreign.any():
        used = np.bincount(name_of[foreign], minlength=len(names))
        table = np.array(
            [
                labels.setdefault((external(n), EXTERNAL), len(labels)) if u else FOREIGN
                for n, u in zip(names, used, strict=True)
            ],
            np.int64,
        )
        of[foreign] = table[name_of[foreign]]

    kept = of >= 0
    one = alone[launched.launch >= 0]
    launch = launched.launch[launched.launch >= 0]
    known = Known(of[one], launches.place[launch], launches.start_ns[launch], records.start[one], records.end[one])
    queue = np.maximum(records.start[one] - launches.end_ns[launch], 0)
    busy = {device: busy_ns(records, device) for device in np.unique(records.device).tolist()}
    duration = (records.end - records.start)[kept]
    return Found(list(labels), of[kept], duration, launched, len(seen), len(replayed), queue, busy, known)


def into_buckets(found: Found, bounds: Sequence[float], chosen: Sequence[Label]) -> dict[Label, npt.NDArray[np.int64]]:
    """How many records of each chosen label fell between the bounds, which are seconds; the last, above all of them."""
    wanted = [found.labels.index(label) for label in chosen if label in found.labels]
    edges = np.asarray(bounds) * 1e9
    result = {}
    for place in wanted:
        inside = np.searchsorted(edges, found.duration[found.of == place], side="left")
        result[found.labels[place]] = np.bincount(inside, minlength=len(edges) + 1)
    return result
