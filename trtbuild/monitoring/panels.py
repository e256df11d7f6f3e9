"""Panels of a Grafana dashboard, as its JSON has them (schema version 39, Grafana 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
"""Of the grid."""
_PALETTE = {"mode": "palette-classic"}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and how its series are called; a `constant` one is drawn as a broken line, for limits."""

    expression: str
    legend: str
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel before it has its place."""

    kind: str
    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 8
    height: int = 8
    stacked: bool = False
    most: float | None = None
    """The end of the axis."""
    steps: tuple[tuple[float | None, str], ...] = ((None, "green"),)
    """From which values on which colours."""


def lines(title: str, description: str, *queries: Query, **more: Any) -> Panel:
    """Values over time."""
    return Panel("timeseries", title, description, queries, **more)


def value(title: str, description: str, query: Query, **more: Any) -> Panel:
    """The latest value, large."""
    return Panel("stat", title, description, (query,), **{"width": 4, "height": 4, **more})


def heatmap(title: str, description: str, expression: str) -> Panel:
    """A histogram's buckets over time; `expression` has the label le."""
    return Panel("heatmap", title, description, (Query(expression, "{{le}}"),), unit="s", width=12)


def placed(rows: Sequence[tuple[str, Sequence[Panel]]]) -> list[dict[str, Any]]:
    """Panels under the titles of their rows, from left to right and top to bottom."""
    found: list[dict[str, Any]] = []
    top = 0
    for title, panels in rows:
        found.append(_row(title, len(found) + 1, top))
        top += 1
        left = lowest = 0
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + lowest
                lowest = 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            found.append(_panel(panel, len(found) + 1, place))
            left, lowest = left + panel.width, max(lowest, panel.height)
        top += lowest
    return found


def _row(title: str, number: int, top: int) -> dict[str, Any]:
    place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
    return {"type": "row", "id": number, "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [_target(panel, query, index) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": [_limit(q) for q in panel.queries if q.constant]},
        "options": _OPTIONS[panel.kind],
    }


def _target(panel: Panel, query: Query, index: int) -> dict[str, Any]:
    instant = panel.kind == "stat"
    return {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "expr": query.expression,
        "legendFormat": query.legend,
        "editorMode": "code",
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "instant": instant,
        "range": not instant,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": start, "color": colour} for start, colour in panel.steps],
        },
    }
    if panel.kind == "timeseries":
        defaults |= {"color": _PALETTE, "min": 0, "custom": _LINES | {"stacking": _stacking(panel.stacked)}}
        if panel.stacked:
            defaults["custom"] = defaults["custom"] | {"fillOpacity": 30}
    if panel.kind == "stat":
        defaults["color"] = {"mode": "thresholds"}
    if panel.most is not None:
        defaults["max"] = panel.most
    return defaults


def _stacking(stacked: bool) -> dict[str, str]:
    return {"mode": "normal" if stacked else "none", "group": "A"}


def _limit(query: Query) -> dict[str, Any]:
    properties = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}},
        {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
    ]
    return {"matcher": {"id": "byName", "options": query.legend}, "properties": properties}


_LINES: dict[str, Any] = {
    "drawStyle": "line",
    "lineWidth": 1,
    "fillOpacity": 5,
    "showPoints": "never",
    "spanNulls": False,
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "auto",
        "orientation": "auto",
    },
    "heatmap": {
        "calculate": False,
        "color": {
            "mode": "scheme",
            "scheme": "Turbo",
            "steps": 64,
            "fill": "dark-orange",
            "exponent": 0.5,
            "reverse": False,
        },
        "cellGap": 1,
        "filterValues": {"le": 1e-9},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": True},
        "legend": {"show": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "yAxis": {"axisPlacement": "left", "unit": "s", "reverse": False},
    },
}
