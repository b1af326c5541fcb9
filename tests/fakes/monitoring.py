# SPDX-License-Identifier: Apache-2.0
"""What packaging/monitoring ships and README.md documents, as tests read it: rules, dashboard, queries. Reads files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "packaging/monitoring/kubenpu.rules.yml"
DASHBOARD = ROOT / "packaging/monitoring/kubenpu-node.json"


@dataclass(frozen=True, slots=True)
class Rule:
    """A recording rule, or an alert with its annotations. `patience`: how long it has to be true before it fires."""

    name: str
    expr: str
    patience: str
    severity: str
    annotations: Mapping[str, str]

    @property
    def is_alert(self) -> bool:
        return bool(self.annotations)


def rules() -> list[Rule]:
    found = []
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            name = rule.get("record") or rule["alert"]
            severity = rule.get("labels", {}).get("severity", "")
            found.append(Rule(name, rule["expr"], rule.get("for", ""), severity, rule.get("annotations", {})))
    return found


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel that shows something; rows are none. `place` is x, y, width and height in the grid."""

    number: int
    kind: str
    title: str
    description: str
    unit: str
    place: tuple[int, int, int, int]
    exprs: tuple[str, ...]


def dashboard() -> dict[str, object]:
    document = json.loads(DASHBOARD.read_text())
    assert isinstance(document, dict)
    return document


def panels() -> list[Panel]:
    return [_panel(panel) for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def _panel(panel: dict[str, object]) -> Panel:
    match panel:
        case {
            "id": int(number),
            "type": str(kind),
            "title": str(title),
            "description": str(description),
            "gridPos": {"x": int(x), "y": int(y), "w": int(w), "h": int(h)},
            "fieldConfig": {"defaults": dict(defaults)},
            "targets": list(targets),
        }:
            exprs = tuple(str(target["expr"]) for target in targets)
            return Panel(number, kind, title, description, str(defaults.get("unit", "")), (x, y, w, h), exprs)
    raise AssertionError(f"not a panel as they are here: {panel}")


def variable_queries() -> dict[str, str]:
    """What the variables of the dashboard ask Prometheus for."""
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    return {each["name"]: each["query"]["query"] for each in variables if each["type"] == "query"}


def filled_in(expr: str, **chosen: str) -> str:
    """An expression of the dashboard as Grafana sends it: everything is chosen, the last hour is looked at."""
    values = {"__range_s": "3600", "__range": "1h", "__rate_interval": "5m", **chosen}
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ".*"), expr)


def documented_queries() -> dict[str, str]:
    """The queries of README.md's section on many nodes, by the comment above each."""
    section = (ROOT / "README.md").read_text().partition("\n## Many nodes\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```promql\n(.*?)^```", section, re.M | re.S)
    return {comment: query.strip() for comment, query in re.findall(r"^# (.*)\n((?:[^#\n].*\n)+)", block, re.M)}


def metric_names(expr: str) -> Iterator[str]:
    """Every name of a metric of ours, of recorded series too, that an expression uses."""
    return (name for name in re.findall(r"[\w:]+", _without_strings(expr)) if re.match(r"kubenpu_|\w+:kubenpu_", name))


def selectors(expr: str) -> Iterator[tuple[str, set[str]]]:
    """Names of metrics and the labels that they are selected by."""
    for name, inside in re.findall(r"([\w:]+)\{([^}]*)\}", _without_strings(expr)):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))


def grouped_labels(expr: str) -> set[str]:
    """Labels that an expression adds up, joins or matches by."""
    lists = re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)", expr)
    return {label.strip() for each in lists for label in each.split(",") if label.strip()}


def _without_strings(expr: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', expr)
