"""Kernels of replayed graphs, matched to the launches seen in the capture; whatever is not sure is not said."""

from __future__ import annotations

import weakref

import pytest

from tests.gpu_records.fake_gpu import Names, raw, sums
from tritonprobe.gpu import graphs as graphs_module
from tritonprobe.gpu import launch_log
from tritonprobe.gpu.analysis import analyse
from tritonprobe.gpu.attribution import Key
from tritonprobe.gpu.cupti import text_at
from tritonprobe.gpu.graphs import STEADY, Capture, Graphs
from tritonprobe.gpu.matching import Edges
from tritonprobe.gpu.records import grid_code, read
from tritonprobe.seen import Label

NAMES = ["a", "b", "library"]
Launch = tuple[Key, Label]


def launch(name: str, grid: int, bucket: str) -> Launch:
    return (name, grid_code(grid, 1, 1)), (f"m.{name}", bucket)


CAPTURED = [launch("a", 3, "small"), launch("b", 3, "all"), launch("a", 9, "large"), launch("a", 3, "small")]
NODES = [("a", 3), ("library", 50), ("b", 3), ("a", 9), ("a", 3)]


class Replays:
    """Windows over replays of graphs."""

    def __init__(self) -> None:
        self.graphs = Graphs()
        self.correlation = 0

    def window(
        self, nodes: list[tuple[str, int]], replays: int = 4, graph: int = 2, part: slice = slice(None), off: int = 1000
    ) -> list[str]:
        """What is said of each node, in the last replay of a window. The n-th replay ends at n, the window at `off`."""
        rows = []
        for _ in range(replays):
            self.correlation += 1
            rows += [
                {
                    "name": NAMES.index(name),
                    "x": grid,
                    "correlation": self.correlation,
                    "graph": graph,
                    "node": 1000 + i,
                    "end": self.correlation,
                }
                for i, (name, grid) in enumerate(nodes)
            ][part]
        records = read([raw(rows)], 216)
        labels, of = self.graphs.attribute(records, [NAMES[n] for n in records.classes.name.tolist()], off)
        each = len(rows) // replays
        assert set(of[:each].tolist()) == {-2}, "the first replay's times are not to be trusted"
        return [labels[i][1] if i >= 0 else {-1: "unknown", -2: "dropped"}[i] for i in of[-each:].tolist()]


def test_nodes_are_the_captures_launches_in_order() -> None:
    replays = Replays()
    replays.graphs.captured(Capture(CAPTURED))
    assert replays.window(NODES) == ["small", "unknown", "all", "large", "small"]


def test_a_replay_that_still_ran_as_records_were_switched_off_is_dropped() -> None:
    replays = Replays()
    replays.graphs.captured(Capture(CAPTURED))
    assert replays.window(NODES, off=3) == ["dropped"] * len(NODES)
    assert replays.window(NODES, off=8) == ["small", "unknown", "all", "large", "small"]


def test_a_graph_older_than_the_probe_is_unknown() -> None:
    assert set(Replays().window(NODES)) == {"unknown"}


def test_a_capture_that_comes_later_is_found() -> None:
    replays = Replays()
    assert set(replays.window(NODES)) == {"unknown"}
    replays.graphs.captured(Capture(CAPTURED))
    assert "large" in replays.window(NODES)


def test_several_graphs_are_told_apart_by_their_kernels() -> None:
    replays = Replays()
    replays.graphs.captured(Capture(CAPTURED))
    replays.graphs.captured(Capture([launch("a", 4, "other")]))
    assert replays.window([("a", 4)], graph=7) == ["other"]
    assert replays.window(NODES, graph=8)[0] == "small"


def test_captures_that_look_alike_and_disagree_are_not_guessed() -> None:
    replays = Replays()
    replays.graphs.captured(Capture([launch("a", 3, "one")]))
    replays.graphs.captured(Capture([launch("a", 3, "another")]))
    assert replays.window([("a", 3)]) == ["unknown"]


def test_the_same_again_is_no_disagreement() -> None:
    replays = Replays()
    for _ in range(2):
        replays.graphs.captured(Capture([launch("a", 3, "one")]))
    assert replays.window([("a", 3)]) == ["one"]


def test_a_capture_that_is_a_graph_already_is_no_other() -> None:
    """The program let go of the first graph, and something still holds it; or both are replayed."""
    replays = Replays()
    replays.graphs.captured(Capture([launch("a", 3, "one")]))
    assert replays.window([("a", 3)], graph=2) == ["one"]
    replays.graphs.captured(Capture([launch("a", 3, "another")]))
    assert replays.window([("a", 3)], graph=3) == ["another"]
    assert replays.window([("a", 3)], graph=2) == ["one"]


def test_one_capture_may_be_two_graphs() -> None:
    replays = Replays()
    replays.graphs.captured(Capture([launch("a", 3, "one")]))
    assert [replays.window([("a", 3)], graph=graph) for graph in (2, 3)] == [["one"], ["one"]]
    replays.graphs.captured(Capture([launch("a", 3, "another")]))
    assert replays.window([("a", 3)], graph=4) == ["another"]
    assert replays.window([("a", 3)], graph=5) == ["unknown"]  # either of them once more


def test_captures_that_agree_are_taken_by_as_many_graphs() -> None:
    replays = Replays()
    for bucket in ("one", "one", "another"):
        replays.graphs.captured(Capture([launch("a", 3, bucket)]))
        if bucket == "one":
            assert replays.window([("a", 3)], graph=2) == ["one"]
    assert replays.window([("a", 3)], graph=3) == ["unknown"]
    replays = Replays()
    for bucket, graph in (("one", 2), ("one", 3), ("another", 4)):
        replays.graphs.captured(Capture([launch("a", 3, bucket)]))
        assert replays.window([("a", 3)], graph=graph) == [bucket]


def test_a_graph_that_stayed_unknown_is_known_once_the_others_capture_is_taken_or_gone() -> None:
    for ends in (True, False):
        replays, longer = Replays(), Living()
        replays.graphs.captured(Capture([launch("a", 3, "one")]))
        replays.graphs.captured(Capture([launch("a", 3, "another"), launch("b", 3, "all")], longer))
        assert replays.window([("a", 3), ("b", 3)], graph=2) == ["unknown", "unknown"]  # b may be somebody else's
        if ends:
            longer.alive = False
            assert replays.window([("a", 3), ("b", 3)], graph=2) == ["one", "unknown"]
        else:
            assert replays.window([("a", 3)], graph=3) == ["one"]
            assert replays.window([("a", 3), ("b", 3)], graph=2) == ["another", "all"]


def test_a_graph_that_was_there_before_a_capture_takes_nothing() -> None:
    """It passes for the capture's while nothing else does, and must not push the capture's own into another bucket."""
    replays = Replays()
    assert replays.window([("a", 3)], graph=2) == ["unknown"]
    replays.graphs.captured(Capture([launch("a", 3, "one")]))
    assert replays.window([("a", 3)], graph=2) == ["one"]
    replays.graphs.captured(Capture([launch("a", 3, "another")]))
    assert replays.window([("a", 3)], graph=3) == ["unknown"]


def test_a_number_that_stands_for_another_graph_has_taken_nothing() -> None:
    replays = Replays()
    replays.graphs.captured(Capture([launch("a", 3, "one")]))
    assert replays.window([("a", 3)], graph=2) == ["one"]
    assert replays.window([("a", 4)], graph=2) == ["unknown"]  # updated in place
    replays.graphs.captured(Capture([launch("a", 3, "another")]))
    assert replays.window([("a", 3)], graph=3) == ["unknown"]


def test_a_graph_that_is_forgotten_has_taken_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MAX_GRAPHS", 1)
    replays = Replays()
    replays.graphs.captured(Capture([launch("a", 3, "one")]))
    assert replays.window([("a", 3)], graph=2) == ["one"]
    replays.window([("library", 3)], graph=4)
    replays.graphs.captured(Capture([launch("a", 3, "another")]))
    assert replays.window([("a", 3)], graph=3) == ["unknown"]


def test_a_capture_whose_graph_is_gone_explains_nothing() -> None:
    replays = Replays()
    replays.graphs.captured(Capture([launch("a", 3, "one")], alive=lambda: False))
    replays.graphs.captured(Capture([launch("a", 3, "another")]))
    assert replays.window([("a", 3)]) == ["another"]


class Living:
    """Whether a graph is still there."""

    alive = True

    def __call__(self) -> bool:
        return self.alive


def test_a_number_that_is_given_out_again_means_the_new_graph() -> None:
    replays, first = Replays(), Living()
    replays.graphs.captured(Capture([launch("a", 9, "large")], first))
    assert replays.window([("a", 9)]) == ["large"]
    first.alive = False
    assert replays.window([("a", 9)]) == ["unknown"]
    replays.graphs.captured(Capture([launch("a", 9, "odd")]))
    assert replays.window([("a", 9)]) == ["odd"]


@pytest.mark.parametrize("nodes", [[("a", 9), ("library", 50)], [("library", 50), ("a", 9)], [("a", 9)]])
def test_a_graph_of_that_number_with_other_nodes_is_another(nodes: list[tuple[str, int]]) -> None:
    replays, first = Replays(), Living()
    replays.graphs.captured(Capture([launch("b", 3, "all"), launch("b", 3, "all")], first))
    assert replays.window([("b", 3), ("b", 3)]) == ["all", "all"]
    first.alive = False
    replays.graphs.captured(Capture([launch("a", 9, "large")]))
    assert "large" in replays.window(nodes)


def test_part_of_a_replay_is_not_taken_for_another_graphs_whole() -> None:
    """A window that sees the end of one long replay only: what is seen there is all of a smaller capture."""
    replays = Replays()
    replays.graphs.captured(Capture([launch("a", 9, "wrong"), launch("a", 3, "wrong")]))
    replays.graphs.captured(Capture(CAPTURED))
    assert set(replays.window(NODES, replays=2, part=slice(3, 5))) == {"unknown"}
    assert replays.window(NODES, replays=2)[3] == "unknown"  # a longer part may still be missing
    for _ in range(STEADY):
        last = replays.window(NODES, replays=2)
    assert last == ["small", "unknown", "all", "large", "small"]


def test_a_graph_updated_in_place_is_looked_at_anew() -> None:
    replays = Replays()
    replays.graphs.captured(Capture([launch("a", 3, "one")]))
    assert replays.window([("a", 3)]) == ["one"]
    assert replays.window([("a", 4)]) == ["unknown"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MAX_NODES", 4)
    replays = Replays()
    for bucket in ("one", "two", "three"):
        replays.graphs.captured(Capture([launch("a", 3, bucket), launch("b", 3, bucket)]))
    assert len(replays.graphs._captures) == 2
    for graph in range(5):
        replays.window([("a", 3), ("b", 4)], graph=graph)
    assert len(replays.graphs._graphs) == 2


def test_too_many_captures_are_told_of_and_those_of_dead_graphs_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MAX_CAPTURES", 3)
    replays, living = Replays(), [Living() for _ in range(5)]
    captures = [Capture([launch("a", grid, f"of {grid}")], alive) for grid, alive in enumerate(living)]
    assert [replays.graphs.captured(capture) for capture in captures[:3]] == [0, 0, 0]
    living[1].alive = False
    assert replays.graphs.captured(captures[3]) == 0, "in the place of one that explains nothing any more"
    assert replays.graphs.captured(captures[4]) == 1
    seen = [replays.window([("a", grid)], graph=grid) for grid in range(5)]
    assert seen == [["unknown"], ["unknown"], ["of 2"], ["of 3"], ["of 4"]]


def test_a_graph_that_is_known_does_not_hold_its_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    class Launches(list[Launch]):
        """A list that one can have a weak reference to."""

    monkeypatch.setattr(graphs_module, "MAX_NODES", len(CAPTURED))
    replays = Replays()
    launches = Launches(CAPTURED)
    held = weakref.ref(launches)
    replays.graphs.captured(Capture(launches))
    del launches
    replays.window(NODES)
    replays.graphs.captured(Capture([launch("library", 1, "all")]))  # takes its place
    assert held() is None
    assert replays.window(NODES) == ["small", "unknown", "all", "large", "small"]


def test_a_window_over_one_kernel_in_one_graph_is_analysed() -> None:
    """One label and some records dropped: an index of what is dropped must not be looked up among the labels."""
    graphs = Graphs()
    graphs.captured(Capture([launch("a", 3, "small")]))
    names = Names()
    rows = [
        {"name": names.address("a"), "x": 3, "correlation": n, "graph": 2, "node": 1000, "start": n, "end": n + 1}
        for n in range(1, 6)
    ]
    found = analyse(
        launch_log.logged(launch_log.new(1)), read([raw(rows)], 216), Edges(0, 1, 2, 3), 1000, graphs, text_at, str
    )
    assert sums(found) == [(("m.a", "small"), 4, 4)]
