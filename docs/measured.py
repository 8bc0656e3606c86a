"""Writes what watching costs into README.md, from the measurements in docs/measurements: no figure is typed by hand.

python docs/measured.py            writes the part of README.md between the two marks
python docs/measured.py --check    exit code 1 if that part is stale

Each file is what a `tritonprobe bench` left; one that is not there is not spoken of, and without any the part is empty.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tritonprobe.cli.bench_report import duration
from tritonprobe.proving.intervals import CONFIDENCE

PAGE = Path(__file__).parent.with_name("README.md")
FOLDER = Path(__file__).with_name("measurements")
BEGIN, END = "<!-- overhead -->\n", "<!-- /overhead -->\n"
HEAD = f"""<!-- Written by docs/measured.py from docs/measurements; do not edit. -->

## What watching costs

Medians, in brackets the interval that holds the true one with {CONFIDENCE:.0%} confidence:

"""

WIDTH = 126
Document = Mapping[str, Any]


def overhead(made: Document) -> str:
    """A hot launch, watched against unwatched (`bench overhead`)."""
    where = _where(made)
    if made["inconclusive"]:
        return f"A hot launch ({where}): nothing can be said, for two equal rounds differed by more than the limit."
    costs = [
        f"`{found['kernel']}` ({found['arguments']} arguments) took {found['base_us']:.2f} us alone, and watched "
        f"{_interval(found['difference_us'])} us"
        for found in made["results"]
        if found["mode"] == "ours"
    ]
    return f"A hot launch ({where}): {'; '.join(costs)}."


def cold(made: Document) -> str:
    """What the phases of cold calls leave without a name (`bench cold`)."""
    rows = sorted(made["rows"], key=lambda row: row["wall_ms"]["median"])
    shortest, longest = (f"{_ms(row['wall_ms']['median'])} ({row['title']})" for row in (rows[0], rows[-1]))
    unnamed = max(row["unnamed_ms"]["worst"] for row in rows)
    return (
        f"A cold call ({_where(made)}): {len(rows)} kinds, from {shortest} to {longest}; of none did the phases leave "
        f"more than {_ms(unnamed)} without a name."
    )


def engine(made: Document) -> str:
    """Tokens a second of vLLM with everything on, of those it has switched off (`tests.gpu.vllm_cost`)."""
    kept = made["kept_ratio"]["on"]
    mode = "eager" if made["mode"] == "eager" else "in its default mode"
    windows = made["windows_share_by_their_own_account"]
    share = f", less the {windows:.1%} that GPU windows take" if windows else ""
    return (
        f"vLLM {mode} ({_where(made)}, a small model) kept {kept['median']:.3f} [{kept['low']:.3f}, "
        f"{kept['high']:.3f}] of its tokens a second{share}."
    )


def served(made: Document) -> str:
    """What clients saw of a server that was watched (`bench serve --json`)."""
    summary, ttft = made["summary"], made["summary"]["ttft"]
    model = f" of model {made['load']['model']}" if made["load"]["model"] else ""
    seen = ", ".join(f"{name.upper()} {duration(ttft[name])}" for name in ("p50", "p95", "p99"))
    return (
        f"A watched server{model} on a GPU, {summary['completed']:,} of {summary['requests']:,} requests of "
        f"{made['trace']['source']} completed at {made['load']['speed']:g}x: TTFT {seen}."
    )


def scrape(made: Document) -> str:
    """Reading the numbers (`bench scrape`)."""
    low, high = (duration(seconds) for seconds in made["interval_seconds"])
    return (
        f"A scrape of {made['lines']:,} samples from `tritonprobe serve`: {duration(made['median_seconds'])} "
        f"[{low}, {high}]."
    )


SENTENCES: Mapping[str, Callable[[Document], str]] = {
    "overhead.json": overhead,
    "vllm_cost_eager.json": engine,
    "vllm_cost_graph.json": engine,
    "cold_calls.json": cold,
    "serve_gpu.json": served,
    "scrape.json": scrape,
}


def part() -> str:
    """The part of the README. Raises ValueError naming a file that cannot be read."""
    said = []
    for name, sentence in SENTENCES.items():
        file = FOLDER / name
        if not file.exists():
            continue
        try:
            text = f"- {sentence(json.loads(file.read_text()))} [{name}](docs/measurements/{name})"
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{file}: not what `tritonprobe bench` writes: {error!r}") from None
        said.append(textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    return HEAD + "\n".join(said) + "\n" if said else ""


def page(text: str) -> str:
    """`text` with the part as it has to be. Raises ValueError if the marks are not there."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(
            f"{PAGE}: the part stands between {BEGIN.strip()} and {END.strip()}, each on a line of its own"
        )
    return before + begin + part() + end + after


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/measured.py [--check]\n")
        return 2
    try:
        found = PAGE.read_text()
        text = page(found)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not arguments:
        PAGE.write_text(text)
        return 0
    if found == text:
        return 0
    sys.stderr.write(f"{PAGE.name} is stale; run: python docs/measured.py\n")
    return 1


def _where(made: Document) -> str:
    return f"{made['device']}, triton {made['versions']['triton']}"


def _interval(found: Mapping[str, float]) -> str:
    return f"{found['median']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]"


def _ms(milliseconds: float) -> str:
    return duration(milliseconds / 1e3)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
