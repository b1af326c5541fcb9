# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus, configured as README.md says but for addresses and intervals, and what it answers.

Owns the process for the length of the block.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.fakes.monitoring import ROOT, RULES
from tests.fakes.sim_tally import wait_until
from tests.fakes.web_client import free_port

DEADLINE_S = 60.0

Answer = dict[tuple[str, ...], float]


@contextmanager
def prometheus(config: dict[str, object], directory: Path) -> Iterator[int]:
    """Serving on the port that it yields."""
    directory.mkdir()
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            assert wait_until(lambda: ask(port, "vector(1)") != {}, DEADLINE_S), (directory / "log").read_text()
            yield port
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def ask(port: int, query: str, *names: str) -> Answer:
    """The answer's values by these labels; a label that is absent is empty. Every one has its own."""
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as reply:
            rows = json.load(reply)["data"]["result"]
    except OSError:
        return {}
    found = {tuple(row["metric"].get(name, "") for name in names): float(row["value"][1]) for row in rows}
    assert len(found) == len(rows)
    return found


def configurations() -> list[dict[str, object]]:
    """The blocks of README.md's section on many nodes: a cluster's, by role, federation, remote write."""
    section = (ROOT / "README.md").read_text().partition("\n## Many nodes\n")[2].partition("\n## ")[0]
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", section, re.M | re.S)]


def cluster_config(
    cluster: str, nodes: Mapping[str, int], ksm: str, directory: Path, interval: str = "1s"
) -> dict[str, object]:
    """README.md's for a cluster. Scrapes come at this interval, rules are evaluated every second.

    For the rules to count simulated nodes as real ones, the metric that says so is not scraped.
    """
    rules = directory / RULES.name
    assert "interval: 1m" in RULES.read_text()
    rules.write_text(RULES.read_text().replace("interval: 1m", "interval: 1s"))
    match configurations()[0]:
        case {"global": dict(common), "scrape_configs": [dict(kubenpud), dict(state)], **others}:
            targets = [{"targets": [f"localhost:{port}"], "labels": {"instance": n}} for n, port in nodes.items()]
            drop = {"source_labels": ["__name__"], "regex": "kubenpu_simulated", "action": "drop"}
            kubenpud |= {"static_configs": targets, "metric_relabel_configs": [drop]}
            state |= {"static_configs": [{"targets": [urllib.parse.urlsplit(ksm).netloc]}]}
            common |= {
                "external_labels": {"cluster": cluster},
                "scrape_interval": interval,
                "evaluation_interval": "1s",
            }
            return {**others, "global": common, "rule_files": [str(rules)], "scrape_configs": [kubenpud, state]}
    raise AssertionError("README.md's configuration has another form")
