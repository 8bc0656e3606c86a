"""Kernels inside replayed CUDA graphs: nodes matched to the launches that were seen while the graph was captured. Pure.

A record tells which graph and which node of it ran. Node ids rise in capture order, so a graph's nodes, sorted, are the
launches of its capture and whatever else was captured in between. A graph is known once its nodes with Triton's names
are exactly the launches of one capture. A window may show a part of a replay only, and a part of one graph may look
like the whole of another: so all of its nodes must have been seen first. Nothing here holds a graph alive.

Several captures may fit one graph. Where all of them say the same there is nothing to choose. Where they disagree,
those that others have *taken* are left out: that is, as many graphs as there are captures that say so, each known by
nothing but these, and all first replayed after these captures. What is then left must agree, or the graph stays
unknown. If all are taken they count again, as if none were: one capture may have been instantiated twice.

This is certain where each capture became one graph, and every graph with Triton's kernels was captured before our eyes.
A graph that nobody told us of (older than the probe, captured past torch) and that has the very kernels and grids of a
capture passes for it, and may take its place if its first replay in a window came later than the capture: then the
capture's own graph passes for another capture that fits, if there is one. So does a graph that is instantiated again
from a capture that is taken. A graph that was given new arguments in place, with the same kernels and grids, keeps its
buckets. A capture is taken no longer when its graph's number shows another graph, or is forgotten for others' sake;
a choice that was made before stands.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tritonprobe.gpu.attribution import DROPPED, FOREIGN, Key
from tritonprobe.gpu.clock import MAX_CAPTURES, MAX_NODES
from tritonprobe.gpu.records import Records
from tritonprobe.gpu.spans import Ints
from tritonprobe.seen import Label

MAX_GRAPHS = 8192
STEADY = 3
"""After so many windows without a new node, all nodes of a graph have been seen."""

Node = tuple[int, str, int]  # its id, the function's name, the grid's code


@dataclass(slots=True)
class Capture:
    """The launches that were seen while one graph was captured, in order."""

    launches: list[tuple[Key, Label]]
    alive: Callable[[], bool] = lambda: True
    number: int = 0  # the how manieth it is; given by `Graphs`
    keys: tuple[Key, ...] = ()  # of the launches
    functions: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.keys = tuple(key for key, _ in self.launches)
        self.functions = frozenset(name for name, _ in self.keys)


@dataclass(slots=True)
class _Graph:
    since: int  # captures there had been when it was first seen
    nodes: dict[int, Key] = field(default_factory=dict)
    steady: int = 0  # windows since the last new node
    labels: dict[int, Label] | None = None  # by node, once it is known
    of: frozenset[int] = frozenset()  # the captures that it can be of, which agree
    alive: Callable[[], bool] = lambda: True  # whether what it was captured into is still there

    def is_another(self, seen: Sequence[Node], whole: bool) -> bool:
        """Whether this number stands for another graph by now: it was updated in place, or is given out again."""
        if any(self.nodes.get(n, (name, grid)) != (name, grid) for n, name, grid in seen):
            return True
        return not self.alive() or (whole and len(seen) < len(self.nodes))


_Answer = tuple[Capture, dict[int, Label]]  # a capture, and what it calls each of a graph's nodes


class Graphs:
    """The captures seen and the graphs recognised so far."""

    def __init__(self) -> None:
        self._captures: deque[Capture] = deque()
        self._launches = 0  # in all of these
        self._graphs: OrderedDict[int, _Graph] = OrderedDict()
        self._asked: set[int] = set()  # graphs that no capture explains, as things stand
        self._told = 0  # captures so far

    def captured(self, capture: Capture) -> int:
        """A graph has been captured. One that launched nothing through us is of no interest.

        Returns how many captures were given up for it.
        """
        if not capture.launches:
            return 0
        self._told += 1
        capture.number = self._told
        self._captures.append(capture)
        self._launches += len(capture.launches)
        if self._are_too_many():
            self._bury()
        gone = 0
        while self._are_too_many() and len(self._captures) > 1:
            self._launches -= len(self._captures.popleft().launches)
            gone += 1
        self._asked.clear()
        return gone

    def _are_too_many(self) -> bool:
        return len(self._captures) > MAX_CAPTURES or self._launches > MAX_NODES

    def attribute(self, records: Records, names: Sequence[str], off_ns: int) -> tuple[list[Label], Ints]:
        """Labels, and each record's index into them, or FOREIGN. `names[i]` is the function of class i.

        All records are of graphs. DROPPED are those of a graph's first replay in the window, and of replays that still
        ran as records were switched off, at `off_ns`: their times are not to be trusted (kernels of 1 us were recorded
        as taking a thousand times as long).
        """
        self._bury()
        labels: dict[Label, int] = {}
        result = np.full(len(records), FOREIGN, np.int64)
        number, grid = records.graph, records.classes.grid.tolist()
        for graph in np.unique(number).tolist():
            mine = np.flatnonzero(number == graph)
            nodes, first, which = np.unique(records.node[mine], return_index=True, return_inverse=True)
            classes = records.which[mine[first]].tolist()
            seen = [(node, names[each], grid[each]) for node, each in zip(nodes.tolist(), classes, strict=True)]
            known = self._recognise(graph, seen, _shows_whole(records.correlation[mine], which, len(nodes)))
            replay = records.correlation[mine]
            cut = np.unique(replay[records.end[mine] > off_ns])
            doubtful = (replay == replay.min()) | np.isin(replay, cut)
            result[mine[doubtful]] = DROPPED
            if known is not None:
                of_node = np.array(
                    [labels.setdefault(known[n], len(labels)) if n in known else FOREIGN for n, _, _ in seen], np.int64
                )
                result[mine[~doubtful]] = of_node[which[~doubtful]]
        return list(labels), result

    def _recognise(self, number: int, seen: Sequence[Node], whole: bool) -> dict[int, Label] | None:
        """The labels of a graph's nodes, if they are known. `whole`: these are all of them."""
        graph = self._graphs.get(number)
        if graph is None or graph.is_another(seen, whole):
            self._given_up(number)
            graph = self._graphs[number] = _Graph(self._told)
        self._graphs.move_to_end(number)
        before = len(graph.nodes)
        graph.nodes.update({n: (name, grid) for n, name, grid in seen})
        if whole and before and len(graph.nodes) > before:  # what was seen before belonged to another graph
            graph.nodes = {n: (name, grid) for n, name, grid in seen}
        if len(graph.nodes) != before:
            self._given_up(number)
            graph.steady, graph.labels, graph.of = 0, None, frozenset()
            self._forget()
        graph.steady = STEADY if whole else graph.steady + 1
        if graph.labels is None and graph.steady >= STEADY and number not in self._asked:
            captures = self._explain(number, graph.nodes)
            if captures:
                graph.labels = captures[0][1]
                graph.of = frozenset(capture.number for capture, _ in captures)
                alive = [capture.alive for capture, _ in captures]  # without the launches, which may be many
                graph.alive = lambda: any(is_alive() for is_alive in alive)
                self._asked.clear()  # what it has taken is no candidate for others
            else:
                self._asked.add(number)
        return graph.labels

    def _explain(self, number: int, nodes: dict[int, Key]) -> list[_Answer]:
        """The captures that these nodes can be of, with what they call each; none if it is not certain."""
        by_labels: dict[tuple[tuple[int, Label], ...], list[_Answer]] = {}
        for answer in self._answers(nodes):
            by_labels.setdefault(tuple(answer[1].items()), []).append(answer)
        agreeing = list(by_labels.values())
        left = [answers for answers in agreeing if not self._are_taken(number, answers)]
        choice = left or agreeing
        return choice[0] if len(choice) == 1 else []

    def _answers(self, nodes: dict[int, Key]) -> Iterator[_Answer]:
        """What each capture calls these nodes, of those that fit."""
        in_order = sorted(nodes.items())
        theirs: dict[frozenset[str], tuple[Key, ...]] = {}  # the graph's kernels of these functions, in order
        for capture in self._captures:
            functions = capture.functions
            keys = theirs.get(functions)
            if keys is None:
                keys = theirs[functions] = tuple(key for _, key in in_order if key[0] in functions)
            if keys == capture.keys and capture.alive():
                mine = [node for node, key in in_order if key[0] in functions]
                yield capture, {node: label for node, (_, label) in zip(mine, capture.launches, strict=True)}

    def _are_taken(self, number: int, answers: Sequence[_Answer]) -> bool:
        """Whether as many graphs other than this one are these captures, and can be no others."""
        these = {capture.number for capture, _ in answers}
        taken = [g for n, g in self._graphs.items() if n != number and g.of and g.of <= these and g.since >= max(g.of)]
        return len(taken) >= len(these)

    def _bury(self) -> None:
        """Captures whose graph is gone explain nothing any more; what they stood in the way of may be clear now."""
        living = [capture for capture in self._captures if capture.alive()]
        if len(living) < len(self._captures):
            self._captures = deque(living)
            self._launches = sum(len(capture.launches) for capture in living)
            self._asked.clear()

    def _forget(self) -> None:
        kept = sum(len(graph.nodes) for graph in self._graphs.values())
        while len(self._graphs) > MAX_GRAPHS or (kept > MAX_NODES and len(self._graphs) > 1):
            oldest = next(iter(self._graphs))
            self._given_up(oldest)
            kept -= len(self._graphs.pop(oldest).nodes)

    def _given_up(self, number: int) -> None:
        """Nothing is known of that graph any more, and what it had taken is free."""
        self._asked.discard(number)
        graph = self._graphs.get(number)
        if graph is not None and graph.of:
            self._asked.clear()


def _shows_whole(correlation: Ints, node: npt.NDArray[np.intp], nodes: int) -> bool:
    """Whether a replay that neither end of the window may have cut shows every node seen.

    All kernels of one replay have its correlation id; if each kernel had its own, nothing could be said.
    """
    replays = np.unique(correlation)
    if len(replays) < 3 or len(replays) * nodes > 2 * len(correlation):
        return False
    inner = (correlation > replays[0]) & (correlation < replays[-1])
    return len(np.unique(node[inner])) == nodes
