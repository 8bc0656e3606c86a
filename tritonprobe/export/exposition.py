"""Prometheus's two text formats, written straight from families: what `/metrics` sends. Knows the formats only.

The same bytes as `prometheus_client`'s writers give for `prometheus.Collector` (a test holds the two together), in a
third of the time: a scrape of 10,000 series has a budget of 50 ms, and takes the interpreter lock from the program it
is about.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import utils

from tritonprobe.ledger.schema import DISTRIBUTIONS, PREFIX, Metric
from tritonprobe.ledger.store import Family, HistogramSample, Labels, Traced

go_string: Callable[[float], str] = utils.floatToGoString  # untyped there
_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
MAX_KNOWN = 20_000  # series of one metric whose words are remembered
_known: dict[str, dict[Labels, str]] = {}
_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


def text(families: Iterable[Family]) -> bytes:
    """The text format 0.0.4, which has no exemplars."""
    return "".join(part for family in families for part in _family(family, _text_head, exemplars=False)).encode()


def openmetrics(families: Iterable[Family]) -> bytes:
    """OpenMetrics 1.0."""
    parts = (part for family in families for part in _family(family, _openmetrics_head, exemplars=True))
    return ("".join(parts) + "# EOF\n").encode()


def _family(family: Family, head: Callable[[Metric, str], str], *, exemplars: bool) -> Iterator[str]:
    metric = family.metric
    name = PREFIX + metric.name
    yield head(metric, name)
    if metric.kind in DISTRIBUTIONS:
        edges = [go_string(float(bound)) for bound in metric.bounds] + ["+Inf"]
        for sample in family.samples:
            if isinstance(sample, HistogramSample):
                yield from _histogram(metric, name, sample, edges, sample.traced if exemplars else None)
        return
    # A series is written with the same words in every scrape; they are remembered.
    known = _known.setdefault(name, {})
    if len(known) > MAX_KNOWN:
        known.clear()
    labelled = _labels_of(metric)
    for sample in family.samples:
        if not isinstance(sample, HistogramSample):
            words = known.get(sample.labels)
            if words is None:
                labels = labelled(sample.labels)
                words = known[sample.labels] = f"{name}{f'{{{labels}}}' if labels else ''} "
            yield f"{words}{_number(sample.value)}\n"


def _text_head(metric: Metric, name: str) -> str:
    kind = "gauge" if metric.kind == "info" else metric.kind
    return f"# HELP {name} {metric.help.translate(_HELP)}\n# TYPE {name} {kind}\n"


def _openmetrics_head(metric: Metric, name: str) -> str:
    base = name.removesuffix("_total") if metric.kind == "counter" else name
    base = base.removesuffix("_info") if metric.kind == "info" else base
    unit = f"# UNIT {base} {metric.unit}\n" if metric.unit else ""
    return f"# HELP {base} {metric.help.translate(_LABEL)}\n# TYPE {base} {metric.kind}\n{unit}"


def _labels_of(metric: Metric, extra: str = "") -> Callable[[Labels], str]:
    """Writes a series' labels, sorted by name as the client does, with a ``%s`` for the value of label `extra`."""
    named = sorted([*enumerate(metric.labels), *([(-1, extra)] if extra else [])], key=lambda item: item[1])

    def labels(values: Labels) -> str:
        return ",".join(f'{label}="{_escaped(values[i])}"' if i >= 0 else f'{label}="%s"' for i, label in named)

    return labels


def _histogram(
    metric: Metric, name: str, sample: HistogramSample, edges: list[str], traced: Traced | None
) -> Iterator[str]:
    counts = list(accumulate(sample.counts))
    if metric.kind != "summary":
        yield from _buckets(metric, name, sample, edges, counts, traced)
    labels = _labels_of(metric)(sample.labels)
    shown = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{shown} {_number(counts[-1])}\n"
    yield f"{name}_sum{shown} {_number(sample.sum)}\n"


def _buckets(
    metric: Metric, name: str, sample: HistogramSample, edges: list[str], counts: list[float], traced: Traced | None
) -> Iterator[str]:
    # A `%` of a label's own must come through the edges' formatting.
    bucket = _labels_of(metric, "le")(tuple(value.replace("%", "%%") for value in sample.labels))
    line = f"{name}_bucket{{{bucket}}} "
    buckets = [f"{line % edge}{_number(count)}" for edge, count in zip(edges, counts, strict=True)]
    if traced is not None:
        buckets[bisect_left(metric.bounds, traced.value)] += _exemplar(traced)
    yield "\n".join(buckets) + "\n"


def _exemplar(traced: Traced) -> str:
    ids = traced.exemplar
    labels = f'span_id="{ids.span_id}",trace_id="{ids.trace_id}"'
    return f" # {{{labels}}} {go_string(traced.value)} {traced.unix_ns / 1e9}"


def _escaped(value: str) -> str:
    return value.translate(_LABEL) if '"' in value or "\\" in value or "\n" in value else value


def _number(value: float) -> str:
    whole = int(value) if -1e6 < value < 1e6 else None
    return f"{whole}.0" if whole is not None and whole == value and whole else go_string(value)
