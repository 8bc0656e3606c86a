"""Grafana's JSON for the few kinds of panel that the board has. Knows the JSON; knows no metric and no query.

Every panel says what it shows, in which unit, and what stands there when there is nothing to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
Colour = Literal["green", "yellow", "orange", "red", "blue", "purple", "text"]
Legend = Literal["bottom", "right"]

WIDTH = 24
"""Grafana's columns."""
NUMBER_WIDTH = 90
"""Pixels of a table's column of numbers."""
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
PLUGIN_VERSION = "11.6.0"


@dataclass(frozen=True, slots=True)
class Target:
    """A query, and how its series are called; in a table, ``legend`` is the head of its column of values."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel before it has an id and a place. ``steps`` are thresholds: (from which value, colour)."""

    title: str
    description: str
    kind: str
    targets: Sequence[Target]
    unit: str
    empty: str
    size: tuple[int, int]
    decimals: int | None = None
    steps: Sequence[tuple[float, Colour]] = ()
    base: Colour = "green"
    custom: Json = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()
    format: str = "time_series"
    instant: bool = False
    bounds: tuple[float | None, float | None] = (0, None)
    coloured_by: Json = field(default_factory=lambda: {"mode": "thresholds"})

    def json(self, number: int, x: int, y: int) -> Json:
        width, height = self.size
        steps = [{"color": self.base, "value": None}, *({"color": c, "value": v} for v, c in self.steps)]
        low, high = self.bounds
        defaults: Json = {
            "color": self.coloured_by,
            "custom": self.custom,
            "mappings": [],
            "noValue": self.empty,
            "thresholds": {"mode": "absolute", "steps": steps},
            "unit": self.unit,
        }
        defaults |= {name: v for name, v in (("decimals", self.decimals), ("min", low), ("max", high)) if v is not None}
        return {
            "datasource": DATASOURCE,
            "description": self.description,
            "fieldConfig": {"defaults": defaults, "overrides": list(self.overrides)},
            "gridPos": {"h": height, "w": width, "x": x, "y": y},
            "id": number,
            "options": self.options,
            "pluginVersion": PLUGIN_VERSION,
            "targets": [self._target(i, target) for i, target in enumerate(self.targets)],
            "title": self.title,
            "transformations": list(self.transformations),
            "type": self.kind,
        }

    def _target(self, place: int, target: Target) -> Json:
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": target.expr,
            "format": self.format,
            "instant": self.instant,
            "legendFormat": target.legend or "__auto",
            "range": not self.instant,
            "refId": _ref(place),
        }


def stat(title: str, description: str, *targets: Target, unit: str, empty: str, **more: Any) -> Panel:
    """One number for the whole time shown."""
    options = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value_and_name" if len(targets) > 1 else "auto",
        "wideLayout": True,
    }
    return Panel(
        title,
        description,
        "stat",
        targets,
        unit,
        empty,
        **{"size": (3, 4), "options": options, "instant": True, **more},
    )


def lines(
    title: str, description: str, *targets: Target, unit: str, empty: str, legend: Legend = "bottom", **more: Any
) -> Panel:
    """Lines over time; thresholds are drawn as dashed lines."""
    steps = more.get("steps", ())
    custom = {
        "axisSoftMin": 0,
        "drawStyle": "line",
        "fillOpacity": 0,
        "lineInterpolation": "linear",
        "lineWidth": 2,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "none"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
    }
    return _graph(title, description, targets, unit, empty, custom, ["max", "lastNotNull"], legend, more)


def bars(
    title: str, description: str, *targets: Target, unit: str, empty: str, legend: Legend = "bottom", **more: Any
) -> Panel:
    """Stacked bars over time, for what happened in each window."""
    custom = {
        "axisSoftMin": 0,
        "drawStyle": "bars",
        "fillOpacity": 80,
        "lineWidth": 0,
        "showPoints": "never",
        "stacking": {"group": "A", "mode": "normal"},
        "thresholdsStyle": {"mode": "off"},
    }
    return _graph(title, description, targets, unit, empty, custom, ["max"], legend, more)


def ranking(title: str, description: str, target: Target, *, unit: str, empty: str, **more: Any) -> Panel:
    """Horizontal bars, the longest first."""
    options = {
        "displayMode": "basic",
        "namePlacement": "left",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": False,
        "sizing": "auto",
        "valueMode": "color",
    }
    return Panel(
        title,
        description,
        "bargauge",
        (target,),
        unit,
        empty,
        **{"size": (12, 8), "options": options, "instant": True, "base": "blue", **more},
    )


def heatmap(title: str, description: str, target: Target, *, unit: str, empty: str, **more: Any) -> Panel:
    """How many requests fell into each bucket of a histogram, over time."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"decimals": 0, "unit": "short"},
        "color": {"exponent": 0.5, "fill": "dark-orange", "mode": "scheme", "scheme": "Oranges", "steps": 64},
        "filterValues": {"le": 0.1},  # a bucket that took nothing is not drawn
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }
    return Panel(
        title,
        description,
        "heatmap",
        (target,),
        unit,
        empty,
        **{"size": (12, 8), "options": options, "format": "heatmap", "bounds": (None, None), **more},
    )


def table(
    title: str, description: str, *targets: Target, labels: Mapping[str, str], unit: str, empty: str, **more: Any
) -> Panel:
    """One row for each set of `labels` (label -> head of its column), then a column for each target's values.

    A target without a legend only brings labels. Rows are sorted by the first target's values, the largest first.
    """
    # Grafana calls a lone query's column `Value`, those of several `Value #A`, `Value #B` and so on.
    columns = ["Value"] if len(targets) == 1 else [f"Value #{_ref(i)}" for i in range(len(targets))]
    heads = dict(zip(columns, (target.legend for target in targets), strict=True))
    order = [*labels, *columns]
    tidy = {
        "excludeByName": {"Time": True, **{column: True for column, head in heads.items() if not head}},
        "includeByName": {},
        "indexByName": {name: i for i, name in enumerate(order)},
        "renameByName": {**labels, **{column: head for column, head in heads.items() if head}},
    }
    options = {
        "cellHeight": "sm",
        "showHeader": True,
        "sortBy": [{"desc": True, "displayName": targets[0].legend}],
    }
    # Text takes the unit of numbers badly, and a label may look like one. Numbers are narrow, names get what is left.
    plain = [override(head, unit="string") for head in labels.values()]
    narrow = [override(head, custom__width=NUMBER_WIDTH) for head in heads.values() if head]
    return Panel(
        title,
        description,
        "table",
        targets,
        unit,
        empty,
        **{
            "size": (12, 8),
            "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False},
            "options": options,
            "base": "text",
            "bounds": (None, None),
            "format": "table",
            "instant": True,
            "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": tidy}],
            **more,
            "overrides": [*plain, *narrow, *more.get("overrides", ())],
        },
    )


def override(field_name: str, **properties: Any) -> Json:
    """Properties of one field by its shown name; ``custom__x`` means Grafana's ``custom.x``."""
    return {
        "matcher": {"id": "byName", "options": field_name},
        "properties": [{"id": name.replace("__", "."), "value": value} for name, value in properties.items()],
    }


def coloured(colours: Mapping[str, Colour]) -> list[Json]:
    """A fixed colour for each series of that name."""
    return [override(name, color={"fixedColor": colour, "mode": "fixed"}) for name, colour in colours.items()]


def lay_out(rows: Sequence[tuple[str | None, Sequence[Panel]]]) -> list[Json]:
    """Places panels from left to right and top to bottom, under a heading for each row that has a name."""
    placed: list[Json] = []
    y = 0
    for title, panels in rows:
        if title is not None:
            heading = {"h": 1, "w": WIDTH, "x": 0, "y": y}
            number = len(placed) + 1
            placed.append(
                {"collapsed": False, "gridPos": heading, "id": number, "panels": [], "title": title, "type": "row"}
            )
            y += 1
        x = tallest = 0
        for panel in panels:
            width, height = panel.size
            if x + width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            placed.append(panel.json(len(placed) + 1, x, y))
            x, tallest = x + width, max(tallest, height)
        y += tallest
    return placed


def _graph(
    title: str,
    description: str,
    targets: Sequence[Target],
    unit: str,
    empty: str,
    custom: Json,
    calcs: list[str],
    legend: Legend,
    more: Json,
) -> Panel:
    options = {
        "legend": {"calcs": calcs, "displayMode": "table", "placement": legend, "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    given = {"size": (12, 8), "options": options, "coloured_by": {"mode": "palette-classic"}, **more}
    return Panel(title, description, "timeseries", targets, unit, empty, custom=custom, **given)


def _ref(place: int) -> str:
    return chr(ord("A") + place)
