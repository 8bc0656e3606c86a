"""Which launch does each record belong to? Launches seen in order, records in order, and no guessing. Pure.

A record shows the function's name and the grid. If all launches of a window with the same name and grid belong to one
kernel and bucket, as many records as launches are theirs, whatever threads and streams they came from. Where one name
and grid stand for several buckets, order decides: within a thread it is that of the launches; between threads, launches
whose intervals overlap may have changed places, and if that would matter, they are dropped. So is everything of a name
and grid whose records are fewer or more than its launches. An empty grid leaves no record; a launcher that raised may
or may not have left one, as may a launch at the very edge of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tritonprobe.gpu.launch_log import Logged
from tritonprobe.gpu.matching import NEVER, PERHAPS, SURELY, Edges, pair, sift
from tritonprobe.gpu.records import ALL, Chosen, Classes, Records, grid_code
from tritonprobe.gpu.spans import Ints
from tritonprobe.seen import Label

FOREIGN = -1
"""Nobody launched this record through us."""
DROPPED = -2
"""Ours, but whose is not certain."""
_MAX_BLOCKS = 2**31  # from there on the launcher's own product overflows

Key = tuple[str, int]  # the function's name and its grid's code


@dataclass(slots=True)
class Launches:
    """The launches of a window that may have left a record, as columns, in order."""

    keys: list[Key]
    labels: list[Label | None]  # None: an autotune trial
    key_of: Ints  # of each kind of launch: which of `keys`; -1: an empty grid
    label_of: Ints
    kind: Ints
    certain: npt.NDArray[np.bool_]  # it left a record, or else a record is missing
    counts: Ints  # by kind: launches, and certain ones
    before: Ints
    after: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints


@dataclass(slots=True)
class Attribution:
    """``of_class`` has an index into ``labels`` for each class of records, FOREIGN or DROPPED.

    ``apart`` are records of a class that are not all of one label, and their labels: they go before the class's.
    ``records`` and ``launches`` choose, one for one, the records and their launches. Where the records of a name and
    grid are known to be one bucket's, but not one by one, they are not among them.
    """

    labels: list[Label | None]
    of_class: Ints
    apart: list[tuple[npt.NDArray[np.intp], Ints]] = field(default_factory=list)
    records: Chosen = field(default_factory=lambda: ALL)
    launches: Chosen = field(default_factory=lambda: ALL)
    matched: int = 0  # launches whose record was found
    dropped: dict[str, int] = field(default_factory=dict)  # launches, by why they were given up

    def label(self, which: Ints) -> Ints:
        """The label of each record, whose class is `which`."""
        label: Ints = self.of_class[which]
        for records, said in self.apart:
            label[records] = said
        return label


def columns(logged: Logged, edges: Edges) -> Launches:
    """What the window's edges say of each launch, and each thing that recurs numbered once."""
    keys: dict[Key, int] = {}
    labels: dict[Label | None, int] = {}
    key_of, label_of, sort = np.empty((3, len(logged.kinds)), np.int64)
    for place, (binary, target, key, trial) in enumerate(logged.kinds):
        x, y, z = (int(n) for n in target[:3])
        blocks = x * y * z
        if blocks <= 0 or min(x, y, z) < 0:
            key_of[place], label_of[place], sort[place] = -1, -1, NEVER
            continue
        key_of[place] = keys.setdefault((binary.name, grid_code(x * binary.ctas, y, z)), len(keys))
        label = None if trial else binary.label(key)
        label_of[place] = labels.setdefault(label, len(labels))
        sort[place] = SURELY if blocks < _MAX_BLOCKS else PERHAPS
    sifted = sift(logged, sort, edges)
    chosen = sifted.chosen
    return Launches(
        list(keys), list(labels), key_of, label_of, logged.kind[chosen], sifted.certain, sifted.counts,
        logged.before[chosen], logged.after[chosen], logged.start_ns[chosen], logged.end_ns[chosen],
        logged.thread[chosen],
    )  # fmt: skip


def attribute(launches: Launches, records: Records, names: Sequence[str]) -> Attribution:
    """Finds the label of each record of one window; `names[i]` is the function of class i.

    The records are those of kernels launched by themselves, not by a graph, in launch order. What all of a class or a
    kind have in common is found once for it; one by one is looked at what tells records of one name and grid apart.
    """
    size = len(launches.keys)
    key_of_class = _keys_of(launches.keys, records.classes, names)
    ours = key_of_class >= 0
    in_class = records.classes.count
    found = _summed(key_of_class[ours], in_class[ours], size)

    there = launches.counts[:, 0] > 0
    key, label, counts = launches.key_of[there], launches.label_of[there], launches.counts[there]
    possible, certain = _summed(key, counts[:, 0], size), _summed(key, counts[:, 1], size)
    fits = (certain <= found) & (found <= possible)

    sample = np.full(size, -1, np.int64)
    sample[key] = label  # of any launch of each key
    single = np.bincount(key[label != sample[key]], minlength=size) == 0

    of_class = np.full(len(names), FOREIGN, np.int64)
    of_class[ours] = np.where(fits & single & (possible > 0), sample, DROPPED)[key_of_class[ours]]
    result = Attribution(launches.labels, of_class)
    result.matched = int(in_class[of_class >= 0].sum())
    unclear = 0
    for several in np.flatnonzero(fits & ~single & (found > 0)):
        mine = np.flatnonzero(launches.key_of[launches.kind] == several)
        theirs = np.flatnonzero(key_of_class[records.which] == several)
        said = _by_order(launches, mine, len(theirs))
        result.apart.append((theirs, said))
        result.matched += int((said >= 0).sum())
        unclear += int((said == DROPPED).sum())
    # Where each launch left a record, the n-th record of a name and grid is its n-th launch.
    exact = np.append(np.where(fits & (found == possible), np.arange(size), -1), -1)  # -1, as an index, leads to itself
    result.records, result.launches = pair(records.which, exact[key_of_class], launches.kind, exact[launches.key_of])
    edge = int((possible - certain).sum() - (found[fits] - certain[fits]).sum())
    reasons = {"ambiguous": unclear, "misaligned": int(certain[~fits].sum()), "edge": max(edge, 0)}
    result.dropped = {reason: count for reason, count in reasons.items() if count}  # in records where there are any
    return result


def _summed(places: Ints, counts: Ints, size: int) -> Ints:
    """The sum of the counts that have each place."""
    return np.bincount(places, weights=counts, minlength=size).astype(np.int64)


def _keys_of(keys: Sequence[Key], classes: Classes, names: Sequence[str]) -> Ints:
    """Each class's place in `keys`, or -1. A graph's kernels are of none."""
    known = {key: place for place, key in enumerate(keys)}
    named = zip(names, classes.grid.tolist(), classes.graph.tolist(), strict=True)
    return np.array([-1 if graph else known.get((name, grid), -1) for name, grid, graph in named], np.int64)


def _by_order(launches: Launches, mine: npt.NDArray[np.intp], records: int) -> Ints:
    """The labels of so many records of one name and grid that stand for several buckets, from the launches' order.

    All are DROPPED where a doubtful launch left a record, too: which one, nobody can say.
    """
    sure = mine[launches.certain[mine]]
    if len(sure) != records:
        return np.full(records, DROPPED, np.int64)
    return _labels_in_order(launches, sure)


def _labels_in_order(launches: Launches, mine: npt.NDArray[np.intp]) -> Ints:
    """One label a launch, in order; DROPPED for launches of several labels that overlap and may have changed places."""
    label: Ints = launches.label_of[launches.kind[mine]]
    before, after = launches.before[mine], launches.after[mine]
    # A launch that begins after all before it are through begins a new group.
    reached = np.maximum.accumulate(after)
    begins = np.concatenate(([True], before[1:] > reached[:-1]))
    group = np.cumsum(begins) - 1
    lowest, highest = np.full(group[-1] + 1, np.iinfo(np.int64).max), np.full(group[-1] + 1, -1)
    np.minimum.at(lowest, group, label)
    np.maximum.at(highest, group, label)
    label[(lowest != highest)[group]] = DROPPED
    return label
