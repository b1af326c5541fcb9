# SPDX-License-Identifier: Apache-2.0
"""What the history costs: CPU time of an interval in which every pod called, bytes of it, and a report over all."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kubenpu.history.report import read_usage
from tests.fakes.history_rig import Rig

PODS = 250
MINUTES = 120


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one interval, but for the report, which is over MINUTES of them."""

    cpu_ms: float
    bytes: float
    report_ms: float


def measure() -> Costs:
    with tempfile.TemporaryDirectory() as directory:
        rig = Rig(Path(directory) / "usage.db")
        pods = [("pod", f"team-{n % 20}", f"worker-{n}", "main", f"uid-{n}", "") for n in range(PODS)]
        took = []
        for _ in range(MINUTES):
            for names in pods:
                rig.call_all(names, 100)
            begin = time.process_time()
            rig.step()
            took.append((time.process_time() - begin) * 1000)
        begin = time.perf_counter()
        read_usage(rig.path, "pod", 0, 1e11, deadline_s=60)
        report_ms = (time.perf_counter() - begin) * 1000
        rig.recorder.close()
        return Costs(statistics.median(took), rig.path.stat().st_size / MINUTES, report_ms)
