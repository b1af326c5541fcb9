# SPDX-License-Identifier: Apache-2.0
"""pytest plugin inside a guest: tells the host the result of each case as soon as it is known.

Writes one JSON line per case to results.jsonl in the share, so that a guest that hangs or crashes keeps the results it
had. Ends a case that takes longer than its deadline and goes on with the next.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

RESULTS = Path("/mnt/results.jsonl")
DEADLINE_SECONDS = 180.0

_reports: dict[str, list[pytest.TestReport]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    reports = _reports.setdefault(report.nodeid, [])
    reports.append(report)
    if report.when != "teardown":
        return
    failed = [one for one in reports if one.failed]
    skipped = [one for one in reports if one.skipped]
    told = (failed or skipped or reports)[0]
    sections = [f"--- {name}\n{text}" for one in reports for name, text in one.sections]
    line = {
        "case": report.nodeid,
        "outcome": told.outcome,
        "seconds": sum(one.duration for one in reports),
        "text": "\n".join([*(one.longreprtext for one in failed or skipped), *dict.fromkeys(sections)]),
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("deadline")
    seconds = float(marker.args[0]) if marker else DEADLINE_SECONDS

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        pytest.fail(f"not done in {seconds:.0f} s")

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
