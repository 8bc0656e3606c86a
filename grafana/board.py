"""The board as a whole: its variables, its annotations and the order of its rows."""

from __future__ import annotations

from grafana import gpu, kernels, serving
from grafana.panels import DATASOURCE, Json, lay_out
from grafana.queries import series
from tritonprobe.ledger import schema
from tritonprobe.ledger.schema import PREFIX, Metric

UID = "tritonprobe-overview"
SCHEMA_VERSION = 41  # Grafana 11.6; newer ones bring it up to date as they load it


def board() -> Json:
    """The dashboard's JSON model."""
    rows = [
        (None, serving.glance()),
        ("What requests felt", serving.requests()),
        ("Cold calls", serving.cold_calls()),
        ("Launches and tiers", kernels.launches()),
        ("GPU time", gpu.gpu_time()),
        ("Autotune", kernels.autotune()),
        ("Ops and fallbacks", kernels.ops()),
        ("Start, and tritonprobe itself", kernels.itself()),
    ]
    return {
        "annotations": {"list": [_ready()]},
        "description": "Which requests waited for a compile, a tuning or a cold cache, for which kernel and shapes.",
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "id": None,
        "links": [],
        "panels": lay_out(rows),
        "preload": False,
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["tritonprobe", "triton", "latency"],
        "templating": {"list": _variables()},
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": "tritonprobe / Overview",
        "uid": UID,
        "version": 1,
        "weekStart": "",
    }


def _variables() -> list[Json]:
    """Each one offers what those before it leave over."""
    source = {
        "current": {},
        "hide": 0,
        "includeAll": False,
        "label": "Data source",
        "multi": False,
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
        "type": "datasource",
    }
    alive = schema.AFTER_READY  # every process has it from its start
    return [
        source,
        _variable("job", "Job", alive, "", every=".+"),
        _variable("instance", "Instance", alive, 'job=~"$job"', every=".+"),
        _variable("kernel", "Kernel", schema.LAUNCHES, 'job=~"$job", instance=~"$instance"', every=".+"),
        # A request may have no model's name, and then has no such label.
        _variable("model", "Model", schema.TTFT, 'job=~"$job", instance=~"$instance"', every=".*", part="_count"),
    ]


def _variable(name: str, label: str, metric: Metric, matchers: str, every: str, part: str = "") -> Json:
    query = f"label_values({PREFIX}{metric.name}{part}{{{matchers}}}, {name})"
    return {
        "allValue": every,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": DATASOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
        "type": "query",
    }


def _ready() -> Json:
    """A mark where a server became ready; each one stands for a start, too."""
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": f"1000 * {series(schema.READY)}",
        "hide": False,
        "iconColor": "green",
        "name": "Ready",
        "tagKeys": "job",
        "textFormat": "{{instance}} takes traffic",
        "titleFormat": "Ready",
        "useValueForTime": "on",
    }
