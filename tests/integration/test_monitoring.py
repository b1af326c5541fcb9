# SPDX-License-Identifier: Apache-2.0
"""The Prometheus rules under promtool, and that its tests notice when a rule is wrong; every expression parses."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.fakes.monitoring import ROOT, RULES, Rule, documented_queries, filled_in, panels, rules

TESTS = ROOT / "tests/fixtures/rules"
OF_GROUP = {"kubenpu-use": "use.yml", "kubenpu-alerts": "alerts.yml"}
TEXT = RULES.read_text()
RIGHT = yaml.safe_load(TEXT)
SIMULATED = "unless on (job, instance) last_over_time(kubenpu_simulated[1h]) == 1"
# What a rule must not lose or get: a part of the file, and what somebody might think is as good.
MISTAKES = [
    # who used what in the last hour
    ("last_over_time(kubenpu_ioctl_total[15m] offset 1h)", "kubenpu_ioctl_total offset 1h"),
    ("last_over_time(kubenpu_ioctl_wait_seconds_total[15m] offset 1h)", "kubenpu_ioctl_wait_seconds_total offset 1h"),
    ("kubenpu_ioctl_total[15m] offset 1h) >= 0", "kubenpu_ioctl_total[15m] offset 1h)"),
    ("kubenpu_ioctl_wait_seconds_total[15m] offset 1h) >= 0", "kubenpu_ioctl_wait_seconds_total[15m] offset 1h)"),
    ("or last_over_time(kubenpu_ioctl_total[1h]) and on (job, instance) job_instance:kubenpu_counts:whole1h", ""),
    (
        "or last_over_time(kubenpu_ioctl_wait_seconds_total[1h])\n"
        "                and on (job, instance) job_instance:kubenpu_counts:whole1h",
        "",
    ),
    ("kubenpu_ioctl_total[1h]) and on (job, instance) job_instance:kubenpu_counts:whole1h", "kubenpu_ioctl_total[1h])"),
    ("unless resets(kubenpu_ioctl_total[1h]) > 0", ""),
    ("unless resets(kubenpu_ioctl_wait_seconds_total[1h]) > 0", ""),
    ("or increase(kubenpu_ioctl_total[1h])", ""),
    ("or increase(kubenpu_ioctl_wait_seconds_total[1h])", ""),
    ("last_over_time(kubenpu_build_info[15m] offset 1h)\n            or", ""),
    ("or last_over_time(kubenpu_counting_since_seconds[1h]) > time() - 3600", ""),
    ("last_over_time(kubenpu_counting_since_seconds[1h]) > time() - 3600", "kubenpu_counting_since_seconds"),
    # teams
    ('or on (namespace, pod) last_over_time(kube_pod_labels{label_team!=""}[1h])', ""),
    ('kube_pod_labels{label_team!=""} or on (namespace, pod) ', ""),
    ("group by (namespace, pod, team) (", "("),
    ('and on (namespace, pod) last_over_time(kubenpu_ioctl_total{kind="other"}[1h])', ""),
    ("or on (namespace, pod) group by (namespace, pod)", "or group by (namespace, pod)"),
    ('or on (namespace, pod) group by (namespace, pod) (last_over_time(kubenpu_ioctl_total{kind="other"}[1h]))', ""),
    # a dead pod is no division by zero, units outside pods use devices too
    ("(sum by (namespace, pod, team) (instance_namespace_pod_device_kind:kubenpu_ioctl:rate5m) > 0)", "?"),
    ("(sum by (namespace) (instance_namespace_pod_device_kind:kubenpu_ioctl:rate5m) > 0)", "?"),
    ("(sum by (team) (instance_namespace_pod_device_kind:kubenpu_ioctl:rate5m) > 0)", "?"),
    ('(sum by (instance, device, vendor) (rate({__name__=~"kubenpu_(host_)?ioctl_total"}[5m])) > 0)', "?"),
    ("kubenpu_(host_)?ioctl_errors_total", "kubenpu_ioctl_errors_total"),
    ("kubenpu_(host_)?ioctl_wait_seconds_total", "kubenpu_ioctl_wait_seconds_total"),
    ("kubenpu_(host_)?ioctl_total", "kubenpu_ioctl_total"),
    ("rate(kubenpu_device_ioctl_total[5m])", "rate(kubenpu_departed_ioctl_total[5m])"),
    # alerts
    ("kubenpu_attribution_imbalance != 0", "kubenpu_attribution_imbalance > 0"),
    ("increase(kubenpu_events_dropped_total[15m]) > 0", "kubenpu_events_dropped_total > 0"),
    ("increase(kubenpu_early_retirements_total[15m]) > 0", "kubenpu_early_retirements_total > 0"),
    ("sum by (job, instance, device) (delta(kubenpu_unattributed_ioctls[10m])) > 0", "kubenpu_unattributed_ioctls > 0"),
    ("kubenpu_slots_max > 0.9", "kubenpu_slots_max > 0.75"),
    ('up{job="kubenpu"} == 0', "up == 0 or absent(up)"),
]


def noticed(text: str, directory: Path) -> bool:
    """Whether the tests fail with these rules. Only groups that are changed are tried: that is quicker."""
    assert valid(text, directory)
    groups = [group for group in yaml.safe_load(text)["groups"] if group not in RIGHT["groups"]]
    assert groups
    (directory / RULES.name).write_text(yaml.safe_dump({"groups": groups}))
    return not all(passes(TESTS / OF_GROUP[group["name"]], directory) for group in groups)


def passes(test: Path, directory: Path) -> bool:
    """Whether a test passes with the rules in `directory`."""
    command = ["promtool", "test", "rules", test.name]
    (directory / test.name).write_text(test.read_text())
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=60)
    assert ("SUCCESS" in done.stdout) == (done.returncode == 0)
    print(done.stdout, done.stderr)
    return done.returncode == 0


def valid(text: str, directory: Path) -> bool:
    """Whether promtool can read these rules."""
    (directory / "valid.yml").write_text(text)
    command = ["promtool", "check", "rules", "valid.yml"]
    return subprocess.run(command, cwd=directory, capture_output=True, check=False, timeout=60).returncode == 0


def test_rules_are_right(tmp_path: Path) -> None:
    assert valid(TEXT, tmp_path)
    (tmp_path / RULES.name).write_text(TEXT)
    assert [group["name"] for group in RIGHT["groups"]] == list(OF_GROUP)
    for name in OF_GROUP.values():
        assert passes(TESTS / name, tmp_path)


def mistakes() -> Iterator[tuple[str, str]]:
    for right, wrong in MISTAKES:
        yield right, right.replace(" > 0)", ")") if wrong == "?" else wrong


@pytest.mark.parametrize(("right", "wrong"), list(mistakes()))
def test_a_mistake_is_noticed(right: str, wrong: str, tmp_path: Path) -> None:
    assert right in TEXT
    assert noticed(TEXT.replace(right, wrong), tmp_path)


def changed(rule: Rule, key: str, value: str) -> str:
    """The rules with one key of one of them changed."""
    document = yaml.safe_load(TEXT)
    (found,) = (r for g in document["groups"] for r in g["rules"] if rule.name in (r.get("record"), r.get("alert")))
    found[key] = value
    return yaml.safe_dump(document)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_every_rule_is_tested(rule: Rule, tmp_path: Path) -> None:
    """An alert that never fires and a series of half the size are noticed."""
    wrong = f"({rule.expr}) and on () vector(1) == 0" if rule.is_alert else f"({rule.expr}) / 2"
    assert noticed(changed(rule, "expr", wrong), tmp_path)


@pytest.mark.parametrize("rule", [rule for rule in rules() if SIMULATED in rule.expr], ids=lambda rule: rule.name)
def test_a_simulated_node_is_noticed_in_every_rule(rule: Rule, tmp_path: Path) -> None:
    assert noticed(changed(rule, "expr", rule.expr.replace(SIMULATED, "")), tmp_path)


WAITING = [rule for rule in rules() if rule.patience]


@pytest.mark.parametrize("rule", WAITING, ids=lambda rule: rule.name)
def test_every_patience_is_tested(rule: Rule, tmp_path: Path) -> None:
    for patience in ("0s", "29m"):
        assert noticed(changed(rule, "for", patience), tmp_path)


def test_what_need_not_wait_and_what_has_no_simulated_node() -> None:
    """Rules that the two tests above leave out."""
    alerts = {rule.name for rule in rules() if rule.is_alert}
    assert alerts - {rule.name for rule in WAITING} == {"KubenpuLosses", "KubenpuEarlyRetirements"}
    read_scrapes = {rule.name for rule in rules() if re.search(r"(?<![:\w])kubenpu_|\bup\b", rule.expr)}
    helpers = {"job_instance:kubenpu_counts:whole1h", "namespace_pod:kubenpu_team:last1h"}
    assert read_scrapes - {rule.name for rule in rules() if SIMULATED in rule.expr} == {*helpers, "KubenpuAbsent"}


# ---- what people ask ----


def test_every_query_of_dashboard_and_readme_parses(tmp_path: Path) -> None:
    exprs = [filled_in(expr) for panel in panels() for expr in panel.exprs] + list(documented_queries().values())
    named = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    assert len(named) > 25
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "queries", "rules": named}]}))
    command = ["promtool", "check", "rules", "queries.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def answers(directory: Path, expected: dict[str, float], more: dict[str, str] | None = None) -> bool:
    """Whether these expressions have these values, without labels, at the end of the two hours of use.yml.

    `more`: further series of it, with their values.
    """
    document = yaml.safe_load((TESTS / "use.yml").read_text())
    nodes = document["tests"][0]
    nodes["input_series"] += [{"series": series, "values": values} for series, values in (more or {}).items()]
    nodes["promql_expr_test"] = [
        {"expr": expr, "eval_time": "2h", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in expected.items()
    ]
    (directory / RULES.name).write_text(TEXT)
    test = directory / "written.yml"
    test.write_text(yaml.safe_dump({**document, "tests": [nodes]}))
    return passes(test, directory)


def test_the_dashboard_shows_what_the_rules_record(tmp_path: Path) -> None:
    """Its table of pods, over one hour, is equal to the recorded series: the same pods, the same numbers."""
    (table,) = (panel for panel in panels() if panel.title == "Pods in the chosen time")
    submissions, calls, failed, waited = (filled_in(expr, node="[abcdr]") for expr in table.exprs)
    by = "(instance, namespace, pod, device)"
    ioctls = "instance_namespace_pod_device_kind:kubenpu_ioctl:increase1h"
    waits = "instance_namespace_pod_device:kubenpu_ioctl_wait_seconds:increase1h"
    recorded = {submissions: f'{ioctls}{{kind="submit"}}', calls: ioctls, waited: waits}
    equal = {f"count(({shown}) == on {by} sum by {by} ({kept}))": shown for shown, kept in recorded.items()}
    there_are = {submissions: 3, calls: 7, waited: 7}
    assert answers(tmp_path, {expr: there_are[shown] for expr, shown in equal.items()})
    assert answers(tmp_path, {f"count({shown})": number for shown, number in there_are.items()})
    assert answers(tmp_path, {f"sum({failed})": 240 * 3})


def test_pods_that_lived_between_two_scrapes(tmp_path: Path) -> None:
    """R07: 500 calls in five seconds, twenty times; the first scrape that sees one sees all of them."""
    labels = 'job="kubenpu", instance="a", namespace="r07", container="main", device="0", vendor="i915"'
    series = {
        f'kubenpu_ioctl_total{{{labels}, pod="p{n}", kind="{kind}"}}': f"_x{300 + n} {calls}x40 stale"
        for n in range(20)
        for kind, calls in (("submit", 500), ("other", 0))
    }
    query = documented_queries()["per pod"].replace('kind="submit"', 'kind="submit", namespace="r07"')
    assert answers(tmp_path, {f"count({query} == 500)": 20, f"sum({query})": 10_000}, series)


def test_hours_add_up_to_a_day(tmp_path: Path) -> None:
    """Two hours of web-0 in two containers, web-1 with its first hour and what is known of the second; job-1."""
    query = documented_queries()["per namespace, in the last 24 full hours"]
    shop, batch = 2 * 240 * 15 + 240 * 10 + 1434, 700
    assert answers(tmp_path, {f"sum({query})": shop + batch, f"max({query})": shop})
