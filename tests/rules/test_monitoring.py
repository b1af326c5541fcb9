# SPDX-License-Identifier: Apache-2.0
"""Dashboard, Prometheus rules and documented queries use metrics and labels that there are, and explain themselves."""

from __future__ import annotations

import re

import pytest

from kubenpu.exporters.metrics import METRICS
from kubenpu.kernel.store import LOSS_REASONS
from tests.fakes.monitoring import (
    ROOT,
    Panel,
    Rule,
    dashboard,
    documented_queries,
    filled_in,
    grouped_labels,
    metric_names,
    panels,
    rules,
    selectors,
    variable_queries,
)

TARGET = {"job", "instance"}
OTHERS = {"up": TARGET, "kube_pod_labels": {"namespace", "pod", "label_team", *TARGET}}
LABELS = {metric.name: {*metric.labels, *TARGET} for metric in METRICS}
RECORDED = {rule.name for rule in rules() if not rule.is_alert}
ALERTS = [rule for rule in rules() if rule.is_alert]
EXPRESSIONS = [
    *((rule.name, rule.expr) for rule in rules()),
    *((f"panel {panel.number}", expr) for panel in panels() for expr in panel.exprs),
    *((f"variable {name}", query) for name, query in variable_queries().items()),
    *documented_queries().items(),
]


def labels_of(metric: str) -> set[str]:
    """Of a recorded series: what its expression may leave it."""
    if metric in RECORDED:
        (expr,) = (rule.expr for rule in rules() if rule.name == metric)
        return grouped_labels(expr) | {"team"}
    return OTHERS.get(metric) or LABELS[metric]


@pytest.mark.parametrize(("where", "expr"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_metrics_and_labels_exist(where: str, expr: str) -> None:
    """`cluster` is in what a Prometheus passes on, so the queries over a fleet have it and nothing else has."""
    names = set(metric_names(expr))
    assert names or "up{" in expr
    assert names - LABELS.keys() - RECORDED == set()
    for metric, used in selectors(expr):
        assert used - labels_of(metric) == set(), metric
    known = set[str]().union(*LABELS.values(), {"team", "label_team", "__name__"})
    assert grouped_labels(expr) - known == ({"cluster"} if where in documented_queries() else set())


def test_name_patterns_find_what_is_meant() -> None:
    """Rules that select by a pattern of names would be silent if it fitted none."""
    patterns = {found for rule in rules() for found in re.findall(r'__name__=~"([^"]+)"', rule.expr)}
    assert len(patterns) == 3
    for pattern in patterns:
        assert len([name for name in LABELS if re.fullmatch(pattern, name)]) == 2


# ---- rules ----


def test_recorded_names_follow_the_convention() -> None:
    """level:metric:operation; the level names labels."""
    for name in RECORDED:
        level, metric, operation = name.split(":")
        assert set(level.split("_")) <= {"job", "instance", "namespace", "pod", "device", "kind", "team"}
        assert metric.startswith("kubenpu_")
        assert not metric.endswith("_total")
        assert re.fullmatch(r"(ratio_)?rate5m|increase1h|last1h|whole1h", operation)


@pytest.mark.parametrize("rule", ALERTS, ids=[rule.name for rule in ALERTS])
def test_an_alert_says_what_to_do(rule: Rule) -> None:
    assert rule.severity in {"critical", "warning"}
    assert rule.annotations.keys() == {"summary", "description"}
    assert re.search(r"kubenpuctl|systemctl|README\.md|kubenpu\.toml", rule.annotations["description"])


def test_every_loss_has_its_meaning() -> None:
    (description,) = (rule.annotations["description"] for rule in ALERTS if rule.name == "KubenpuLosses")
    assert sorted(re.findall(r'eq \. "(\w+)"', description)) == sorted(LOSS_REASONS)


# ---- dashboard ----


@pytest.mark.parametrize("panel", panels(), ids=[str(panel.number) for panel in panels()])
def test_a_panel_explains_itself(panel: Panel) -> None:
    assert panel.description.endswith(".")
    assert panel.title or panel.place[1] == 0
    assert panel.unit or panel.kind not in {"timeseries", "gauge"}
    assert panel.exprs


def test_panels_have_their_own_place() -> None:
    document = dashboard()
    assert isinstance(document["panels"], list)
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(set(numbers)) == len(numbers)
    cells = [
        (column, line)
        for x, y, w, h in (tuple(panel["gridPos"][key] for key in "xywh") for panel in document["panels"])
        for column in range(x, x + w)
        for line in range(y, y + h)
    ]
    assert len(set(cells)) == len(cells)
    assert {column for column, _ in cells} == set(range(24))


def test_variables_are_those_that_are_used() -> None:
    assert {"node", "namespace", "pod", "device"} <= variable_queries().keys()
    texts = [*variable_queries().values(), *(expr for panel in panels() for expr in panel.exprs)]
    used = {name for text in texts for name in re.findall(r"\$(\w+)", text)}
    assert used == {*variable_queries(), "__range", "__range_s", "__rate_interval"}
    assert "$" not in "".join(map(filled_in, texts))


def test_the_data_source_can_be_chosen() -> None:
    text = (ROOT / "packaging/monitoring/kubenpu-node.json").read_text()
    assert set(re.findall(r'"uid": "([^"]+)"', text)) == {"${datasource}", "kubenpu-node"}


def test_install_brings_what_the_readme_names() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for directory, name in (("prometheus", "kubenpu.rules.yml"), ("grafana", "kubenpu-node.json")):
        assert f"/usr/share/kubenpu/{directory}/{name}" in readme
        assert f"$(PREFIX)/share/kubenpu/{directory} packaging/monitoring/{name}" in makefile
