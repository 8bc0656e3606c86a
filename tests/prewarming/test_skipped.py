"""What was skipped is told once a reason: a server with many winners does not get one long sentence for each."""

from __future__ import annotations

from tritonprobe.prewarming import Skipped
from tritonprobe.prewarming.skipped import MAX_NAMED, told


def test_a_reason_is_told_once_with_the_keys_after_it() -> None:
    skipped = [Skipped("m.mul", "gone", winner=True, key=f"({n}, 'torch.float32')") for n in (2, 1, 2)]
    assert list(told([*skipped, Skipped("m.add", "gone")])) == [
        "skipped m.add: gone",
        "skipped m.mul: gone; winners for (2, 'torch.float32'), (1, 'torch.float32')",
    ]


def test_variants_are_counted_and_keys_beyond_some_too() -> None:
    variants = [Skipped("m.add", "gone")] * 3
    winners = [Skipped("m.add", "gone", winner=True, key=f"({n})") for n in range(MAX_NAMED + 2)]
    (line,) = told([*variants, *winners])
    assert line.startswith("skipped m.add (3 times): gone; winners for (0), (1), ")
    assert line.endswith(f"({MAX_NAMED - 1}), and 2 more keys")


def test_a_kernel_whose_trials_crashed_has_no_keys() -> None:
    assert list(told([Skipped("m.add", "a trial ended its process", winner=True)])) == [
        "skipped m.add: a trial ended its process"
    ]
