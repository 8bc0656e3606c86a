"""Objects found by their class, while other threads make objects of their own."""

from __future__ import annotations

import threading
from typing import Any

import torch

from tritonprobe.living import instances


class Kernel:
    pass


class Tuned(Kernel):
    __slots__ = ("inner",)


def test_objects_of_a_class_and_of_its_subclasses_are_found() -> None:
    kept = [Kernel(), Tuned(), Kernel()]
    assert {id(found) for found in instances(Kernel)} == {id(each) for each in kept}
    assert {id(found) for found in instances(Tuned)} == {id(kept[1])}
    del kept
    assert instances(Kernel) == []


def test_objects_of_a_class_that_derives_from_one_in_cpp_are_found() -> None:
    """As torch's CUDA graphs do."""

    class Graph(torch._C.Graph):
        pass

    kept: Any = Graph()
    assert [id(found) for found in instances(Graph)] == [id(kept)]


def test_other_threads_go_on_making_tuples() -> None:
    """With a list of all objects a tuple that is being made has two references, and CPython gives it up."""
    stop, failed, made = threading.Event(), [], [0]

    def work() -> None:
        try:
            while not stop.is_set():
                made[0] += len(tuple(object() for _ in range(50)))
        except SystemError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        instances(Kernel)
    stop.set()
    for thread in threads:
        thread.join()
    assert made[0] > 0
    assert failed == []
