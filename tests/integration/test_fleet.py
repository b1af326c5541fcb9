# SPDX-License-Identifier: Apache-2.0
"""Two clusters with a Prometheus each, and one above them: what README.md says to ask is what the pods did.

East has two nodes, west one that is called like one of east's and has the same devices, namespaces and pods.

The teams of pods become known after their first calls, as with every new pod. The nodes are simulated ones with real
counting. Needs root.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from kubenpu.model.kinds import KINDS, Kind
from tests.fakes.monitoring import documented_queries, filled_in, panels
from tests.fakes.own_service import OwnService
from tests.fakes.prometheus import DEADLINE_S, Answer, ask, cluster_config, configurations, prometheus
from tests.fakes.sim_cgroups import CgroupTree, cgroup2_mount
from tests.fakes.sim_metrics import serve_text
from tests.fakes.sim_plan import DETECTOR, NIGHTLY, NOTEBOOK, SERVER
from tests.fakes.sim_tally import Tally, pause_all, wait_until
from tests.fakes.simulated_node import PROGRAM, Running, simulated_node
from tests.fakes.web_client import free_port

ENOUGH_CALLS = 200
NODES = {"east": ("node-1", "node-2"), "west": ("node-1",)}
TEAMS = {DETECTOR: "perception", SERVER: "chat", NIGHTLY: "perception"}  # the notebook's pod has no such label
SUBMIT = KINDS.index(Kind.SUBMIT)
PODS_OF_NO_TEAM = (
    'sum by (cluster) (instance_namespace_pod_device_kind:kubenpu_ioctl:increase1h{team="",kind="submit"}) > 0'
)


@dataclass(frozen=True, slots=True)
class Use:
    """What one workload did, by its own tally."""

    cluster: str
    instance: str
    running: Running
    tally: Tally

    def labels(self, *names: str) -> tuple[str, ...]:
        pod = self.running.plan.pod
        assert pod is not None
        known = {"instance": self.instance, "device": self.running.plan.device.address, "team": TEAMS.get(pod, "")}
        known |= {"namespace": pod.namespace, "pod": pod.name, "cluster": self.cluster}
        return tuple(known[name] for name in names)


def pod_labels() -> str:
    """kube-state-metrics: a series for each pod, with the team where it has one."""
    lines = ["# TYPE kube_pod_labels gauge"]
    for pod in (DETECTOR, SERVER, NOTEBOOK, NIGHTLY):
        team = f',label_team="{TEAMS[pod]}"' if pod in TEAMS else ""
        lines.append(f'kube_pod_labels{{namespace="{pod.namespace}",pod="{pod.name}"{team}}} 1')
    return "\n".join(lines) + "\n"


@contextmanager
def node(name: str, directory: Path) -> Iterator[tuple[int, list[Running]]]:
    """A simulated node of its own: its port and its workloads."""
    program = directory / name
    shutil.copy(PROGRAM, program)
    service = OwnService(name, free_port(), CgroupTree(cgroup2_mount(), name))
    with simulated_node(service, program) as running:
        yield service.port, running
        for each in running:
            each.tally.ask_stop()
            assert each.process.wait(DEADLINE_S) == 0


def federation_config(clusters: Iterable[int]) -> dict[str, object]:
    match configurations()[2]:
        case {"scrape_configs": [dict(job)]}:
            job |= {"static_configs": [{"targets": [f"localhost:{port}" for port in clusters]}]}
            return {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    raise AssertionError("README.md's configuration has another form")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Ports of all Prometheus, and what was done by then: nothing is called any more."""

    clusters: Mapping[str, int]
    above: int
    uses: Sequence[Use]

    def seen_by(self) -> Iterator[tuple[int, list[Use]]]:
        """Each Prometheus and the uses that it has to know of. A cluster's own does not show its name."""
        for cluster, port in self.clusters.items():
            yield port, [replace(use, cluster="") for use in self.uses if use.cluster == cluster]
        yield self.above, [*self.uses]


def submissions(uses: Iterable[Use], *names: str) -> Answer:
    """By these labels; a driver that shows none has no series, and no answer either."""
    found: Answer = {}
    for use in uses:
        if use.running.plan.device.driver != "unlisted":
            key = use.labels(*names)
            found[key] = found.get(key, 0) + use.tally.calls[SUBMIT]
    return found


def answers(port: int, query: str, expected: Answer, *names: str) -> bool:
    return wait_until(lambda: ask(port, query, *names) == expected, DEADLINE_S)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    clusters, everybody = {}, []
    with ExitStack() as stack:
        labels = [""]
        ksm = stack.enter_context(serve_text(lambda: labels[0]))
        for cluster, names in NODES.items():
            directory = tmp_path_factory.mktemp(cluster)
            nodes = {name: stack.enter_context(node(f"kubenpu-sim-{cluster}-{name}", directory)) for name in names}
            config = cluster_config(cluster, {name: port for name, (port, _) in nodes.items()}, ksm, directory)
            clusters[cluster] = stack.enter_context(prometheus(config, directory / "prometheus"))
            everybody += [(cluster, name, each) for name, (_, running) in nodes.items() for each in running]
        directory = tmp_path_factory.mktemp("above")
        above = stack.enter_context(prometheus(federation_config(clusters.values()), directory / "prometheus"))
        assert wait_until(lambda: {*ask(above, PODS_OF_NO_TEAM, "cluster")} == {("east",), ("west",)}, DEADLINE_S)
        labels[0] = pod_labels()
        assert wait_until(lambda: all(sum(r.tally.read().calls) > ENOUGH_CALLS for *_, r in everybody), DEADLINE_S)
        assert pause_all(each.tally for *_, each in everybody)
        uses = [Use(cluster, name, e, e.tally.read()) for cluster, name, e in everybody if e.plan.pod]
        yield Fleet(clusters, above, uses)


LEVELS = {
    "per pod": ("cluster", "instance", "device", "namespace", "pod"),
    "per namespace": ("cluster", "instance", "device", "namespace"),
    "per team": ("cluster", "instance", "device", "team"),
}


@pytest.mark.parametrize("level", LEVELS)
def test_who_used_which_accelerator_in_the_last_hour(fleet: Fleet, level: str) -> None:
    query, names = documented_queries()[level], LEVELS[level]
    for port, uses in fleet.seen_by():
        expected = submissions(uses, *names)
        assert min(expected.values()) > 0
        assert answers(port, query, expected, *names), (ask(port, query, *names), expected)


def test_two_clusters_are_not_one(fleet: Fleet) -> None:
    """What this file is about: without `cluster` there would be fewer answers."""
    names = LEVELS["per pod"]
    assert len(submissions(fleet.uses, *names[1:])) < len(submissions(fleet.uses, *names))


def test_pods_without_a_team_are_not_lost(fleet: Fleet) -> None:
    assert {team for (team,) in submissions(fleet.uses, "team")} == {"chat", "perception", ""}


def test_seconds_waited_lie_between_the_tallies(fleet: Fleet) -> None:
    query, names = documented_queries()["seconds waited for it, per pod"], LEVELS["per pod"]

    def right(port: int, uses: list[Use]) -> bool:
        limits: dict[tuple[str, ...], tuple[float, float]] = {}
        for use in uses:
            low, high = limits.get(use.labels(*names), (0, 0))
            limits[use.labels(*names)] = (low + use.tally.wait_within_ns / 1e9, high + use.tally.wait_around_ns / 1e9)
        answer = ask(port, query, *names)
        return answer.keys() == limits.keys() and all(low <= answer[key] <= high for key, (low, high) in limits.items())

    assert wait_until(lambda: all(right(port, uses) for port, uses in fleet.seen_by()), DEADLINE_S)


def test_the_dashboard_says_the_same(fleet: Fleet) -> None:
    (table,) = (panel for panel in panels() if panel.title == "Pods in the chosen time")
    (port, uses), *_ = fleet.seen_by()
    names = LEVELS["per pod"]
    assert answers(port, filled_in(table.exprs[0]), submissions(uses, *names), *names)


def test_where_a_series_comes_from_stays_known_above(fleet: Fleet) -> None:
    """The cluster of external_labels, and nothing but what was recorded; no query of README.md leaves it out."""
    for query in documented_queries().values():
        for metric in set(re.findall(r"\w+:kubenpu_\w+:\w+", query)):
            assert ask(fleet.above, f"count by (cluster) ({metric})", "cluster").keys() == {("east",), ("west",)}
        assert query.startswith("sum by (cluster, ")
    assert ask(fleet.above, '{__name__=~"kubenpu_.*"}', "__name__") == {}


def test_start_times_are_no_series(fleet: Fleet) -> None:
    east = fleet.clusters["east"]
    assert wait_until(lambda: len(ask(east, "count by (instance) (kubenpu_ioctl_total)", "instance")) == 2, DEADLINE_S)
    assert ask(east, 'count({__name__=~".*_created"})') == {}


@pytest.mark.parametrize("number", range(len(configurations())))
def test_documented_configurations_are_valid(number: int, tmp_path: Path) -> None:
    """But for the discovery in Kubernetes, which Debian's Prometheus is built without."""
    config = {**configurations()[number], "rule_files": []}
    match config:
        case {"scrape_configs": [{"kubernetes_sd_configs": _, **rest}]}:
            config["scrape_configs"] = [rest]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
