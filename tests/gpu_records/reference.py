"""Attribution record by record, as it was first written: slow, and what the fast way is compared with.

It takes launches as tuples and looks at each record by itself; `tritonprobe.gpu.attribution` has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tritonprobe.gpu.attribution import DROPPED, FOREIGN, Key
from tritonprobe.gpu.matching import Edges
from tritonprobe.gpu.records import Records, grid_code
from tritonprobe.gpu.spans import Ints
from tritonprobe.seen import Label, Seen

_ABSENT, _CERTAIN, _MAYBE = 0, 1, 2
_MAX_BLOCKS = 2**31


@dataclass(slots=True)
class Launches:
    """The launches of a window as columns."""

    keys: list[Key]
    labels: list[Label | None]  # None: an autotune trial
    key: Ints  # of each launch that may have left a record: which of `keys`
    label: Ints
    state: Ints
    before: Ints
    after: Ints
    start_ns: Ints
    end_ns: Ints
    returned: Ints
    """Order and state of each launch; an empty grid is not in them."""
    place: Ints  # of each among those that were seen
    empty: int = 0


@dataclass(slots=True)
class Attribution:
    """``label`` has an index into ``labels`` for each record, FOREIGN or DROPPED; ``launch`` which launch it was.

    ``launch`` is -1 where the records of a name and grid are known to be one bucket's, but not one by one.
    """

    labels: list[Label | None]
    label: Ints
    launch: Ints
    matched: int = 0  # launches whose record was found
    dropped: dict[str, int] = field(default_factory=dict)  # launches, by why they were given up


def columns(seen: Sequence[Seen], edges: Edges) -> Launches:
    """Launches as arrays, each thing that recurs numbered once."""
    identities: dict[tuple[object, ...], int] = {}
    which = [identities.setdefault((s[0], s[1], s[2], s[8]), len(identities)) for s in seen]
    keys: dict[Key, int] = {}
    labels: dict[Label | None, int] = {}
    of_identity = np.empty((len(identities), 3), np.int64)
    for place, (binary, target, key, trial) in enumerate(identities):
        x, y, z = (int(n) for n in target[:3])  # type: ignore[index]  # a Seen's target
        blocks = x * y * z
        if blocks <= 0 or min(x, y, z) < 0:
            of_identity[place] = -1, -1, 0
            continue
        name = binary.name  # type: ignore[attr-defined]  # a Seen's binary
        known = keys.setdefault((name, grid_code(x * binary.ctas, y, z)), len(keys))  # type: ignore[attr-defined]
        label = None if trial else binary.label(key)  # type: ignore[attr-defined]
        of_identity[place] = known, labels.setdefault(label, len(labels)), blocks < _MAX_BLOCKS
    identity = np.array(which, np.int64)
    numbers = np.array([s[3:8] for s in seen], np.int64).reshape(-1, 5)
    key_of, label_of, plain = of_identity[identity].T
    real = key_of >= 0
    before, after, start, end, returned = numbers[real].T
    state = np.full(len(before), _MAYBE, np.int64)
    state[(before > edges.opened) & (after < edges.closing) & (returned == 1) & (plain[real] == 1)] = _CERTAIN
    state[(after < edges.opening) | (before > edges.closed)] = _ABSENT
    return Launches(
        list(keys), list(labels), key_of[real], label_of[real], state, before, after, start, end, returned,
        np.flatnonzero(real), empty=int(len(seen) - real.sum()),
    )  # fmt: skip


def attribute(launches: Launches, records: Records, names: Sequence[str], name_of: npt.NDArray[np.intp]) -> Attribution:
    """Finds the label of each record of one window; `names[name_of[i]]` is the i-th record's function.

    The records are those of kernels launched by themselves, not by a graph, in launch order.
    """
    present = np.flatnonzero(launches.state != _ABSENT)
    present = present[np.argsort(launches.before[present], kind="stable")]
    key, label, state = launches.key[present], launches.label[present], launches.state[present]
    of_record = _keys_of(launches.keys, records, names, name_of)
    ours = of_record >= 0
    size = len(launches.keys)
    found = np.bincount(of_record[ours], minlength=size)
    certain = np.bincount(key[state == _CERTAIN], minlength=size)
    possible = np.bincount(key, minlength=size)
    fits = (certain <= found) & (found <= possible)

    sample = np.full(size, -1, np.int64)
    sample[key] = label  # of any launch of each key
    single = np.bincount(key[label != sample[key]], minlength=size) == 0

    result = Attribution(launches.labels, np.full(len(records), FOREIGN, np.int64), np.full(len(records), -1, np.int64))
    result.label[ours] = np.where(fits & single & (possible > 0), sample, DROPPED)[of_record[ours]]
    _one_by_one(result, fits & (found == possible), of_record, key, present)
    for several in np.flatnonzero(fits & ~single & (found > 0)):
        mine = present[key == several]
        theirs = np.flatnonzero(of_record == several)
        result.label[theirs] = _by_order(launches, mine, len(theirs))
    _count(result, launches, fits, of_record, found, certain)
    return result


def _keys_of(
    keys: Sequence[Key], records: Records, names: Sequence[str], name_of: npt.NDArray[np.intp]
) -> npt.NDArray[np.int64]:
    """Each record's place in `keys`, or -1."""
    known = {key: place for place, key in enumerate(keys)}
    grids, grid_of = np.unique(records.grid, return_inverse=True)
    pair = name_of * len(grids) + grid_of
    used = np.flatnonzero(np.bincount(pair, minlength=len(names) * len(grids)))
    table = np.full(len(names) * len(grids), -1, np.int64)
    for code in used.tolist():
        table[code] = known.get((names[code // len(grids)], int(grids[code % len(grids)])), -1)
    found: Ints = table[pair]
    return found


def _one_by_one(
    result: Attribution, exact: npt.NDArray[np.bool_], of_record: Ints, key: Ints, present: npt.NDArray[np.intp]
) -> None:
    """Where each launch left a record, the n-th record of a name and grid is its n-th launch."""
    chosen_records = np.flatnonzero((of_record >= 0) & np.append(exact, False)[of_record])
    chosen_launches = np.flatnonzero(exact[key])
    # Sorting numbers of 16 bits takes a tenth of the time, and there are seldom more names and grids.
    small = np.int16 if len(exact) < 1 << 15 else np.int64
    by_record = chosen_records[np.argsort(of_record[chosen_records].astype(small), kind="stable")]
    by_launch = chosen_launches[np.argsort(key[chosen_launches].astype(small), kind="stable")]
    result.launch[by_record] = present[by_launch]


def _by_order(launches: Launches, mine: npt.NDArray[np.intp], records: int) -> Ints:
    """The labels of so many records of one name and grid that stand for several buckets, from the launches' order.

    All are DROPPED where a doubtful launch left a record, too: which one, nobody can say.
    """
    sure = mine[launches.state[mine] == _CERTAIN]
    if len(sure) != records:
        return np.full(records, DROPPED, np.int64)
    return _labels_in_order(launches, sure)


def _labels_in_order(launches: Launches, mine: npt.NDArray[np.intp]) -> Ints:
    """One label a launch, in order; DROPPED for launches of several labels that overlap and may have changed places."""
    label = launches.label[mine].copy()
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


def _count(
    result: Attribution, launches: Launches, fits: npt.NDArray[np.bool_], of_record: Ints, found: Ints, certain: Ints
) -> None:
    """How many launches were matched, and why others were not. Counted in records where there are any."""
    ours = of_record >= 0
    result.matched = int((result.label >= 0).sum())
    unclear = int((ours & (result.label == DROPPED) & fits[np.where(ours, of_record, 0)]).sum()) if len(fits) else 0
    wrong = int(certain[~fits].sum())
    edge = int((launches.state == _MAYBE).sum() - (found[fits] - certain[fits]).sum())
    reasons = {"ambiguous": unclear, "misaligned": wrong, "edge": max(edge, 0)}
    result.dropped = {reason: count for reason, count in reasons.items() if count}
