"""A real Prometheus scrapes a real server: what it stores is what was counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.export.conftest import Probed, Prometheus, labelled
from tritonprobe.export.http import serve
from tritonprobe.ledger import MemoryLedger, Recorder, schema
from tritonprobe.model import ColdCall, Lookup

Start = Callable[[Sequence[str]], Prometheus]


def cold_call(after_ready: bool = True) -> ColdCall:
    ms = 1_000_000
    return ColdCall(
        kernel="softmax",
        bucket="N=1024",
        tier="compile",
        start_ns=0,
        end_ns=1500 * ms,
        unix_ns=time.time_ns(),
        phases=(("frontend", 500 * ms), ("ptx", 1000 * ms)),
        lookups=(Lookup("softmax", "N=1024", "compile"),),
        reasons=("n: %16 -> ==1",),
        after_ready=after_ready,
    )


def test_prometheus_stores_exact_values(probed: Probed, prometheus_server: Start) -> None:
    nasty = 'quote " newline \n backslash \\ é'
    probed.ledger = MemoryLedger(budget=400)
    record = Recorder(probed.ledger, probed.settings, lambda: True)
    with serve(probed) as up:
        prometheus = prometheus_server([up.url])
        probed.ledger.cell(schema.LAUNCHES, ("softmax", "N=1024"))[0] += 41
        probed.ledger.cell(schema.LAUNCHES, ("softmax", "N=1024"))[0] += 1
        probed.ledger.add(schema.LAUNCHES, (nasty, "all"), 7)
        record(cold_call())
        softmax = labelled(kernel="softmax", bucket="N=1024")
        for i in range(500):  # more than the budget takes
            probed.ledger.add(schema.LAUNCHES, (f"kernel_{i}", "all"))
        prometheus.wait_for(
            'tritonprobe_launches_total{kernel!~"other|kernel_.*"}',
            {softmax: 42, labelled(kernel=nasty, bucket="all"): 7},
        )
        prometheus.wait_for(
            "tritonprobe_cache_lookups_total",
            {
                labelled(kernel="softmax", bucket="N=1024", tier="compile"): 1,
                labelled(kernel="softmax", bucket="N=1024", tier="memory"): 41,
            },
        )
        assert prometheus.query("sum without (tier) (tritonprobe_cache_lookups_total)") == {softmax: 42}
        assert prometheus.query("tritonprobe_cold_seconds_total") == {
            labelled(kernel="softmax", phase="frontend", rank="0"): 0.5,
            labelled(kernel="softmax", phase="ptx", rank="0"): 1.0,
        }
        assert prometheus.query('tritonprobe_cold_call_seconds_sum{tier="compile"}') == {labelled(tier="compile"): 1.5}
        assert prometheus.query('tritonprobe_cold_call_seconds_bucket{tier="compile",le=~"1.0|2.0|[+]Inf"}') == {
            labelled(tier="compile", le="1.0"): 0,
            labelled(tier="compile", le="2.0"): 1,
            labelled(tier="compile", le="+Inf"): 1,
        }
        assert prometheus.query("tritonprobe_recompiles_total") == {labelled(kernel="softmax", cause="n"): 1}
        other = prometheus.query('tritonprobe_launches_total{kernel="other"}')
        assert 300 < other[labelled(kernel="other", bucket="other")] < 500
        dropped = 'tritonprobe_series_dropped_total{metric="launches_total"}'
        assert list(prometheus.query(dropped).values()) == list(other.values())
        assert prometheus.query("sum(tritonprobe_launches_total)") == {(): 500 + 42 + 7}
        assert prometheus.query("up") == {(): 1}


def test_increase_sees_the_first_cold_call_after_ready(probed: Probed, prometheus_server: Start) -> None:
    record = Recorder(probed.ledger, probed.settings, lambda: True)
    incidents = 'tritonprobe_cold_calls_after_ready_total{tier="compile"}'
    born_late = "tritonprobe_cold_calls_after_ready_by_kernel_total"
    with serve(probed) as up:
        prometheus = prometheus_server([up.url])
        prometheus.wait_for_scrapes(incidents, 3)
        assert prometheus.query(f"max_over_time({incidents}[1m])") == {labelled(tier="compile"): 0}
        record(cold_call())
        prometheus.wait_for(incidents, {labelled(tier="compile"): 1})
        prometheus.wait_for_scrapes(born_late, 3)
        assert prometheus.query(f"increase({incidents}[1m])")[labelled(tier="compile")] >= 1
        # A counter that is born at 1 shows no increase: that is why the other one exists from the start.
        assert list(prometheus.query(f"increase({born_late}[1m])").values()) == [0]
