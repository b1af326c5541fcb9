# SPDX-License-Identifier: Apache-2.0
"""No one is charged twice over a reboot: counters begin anew, the history goes on."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.vm.guest import handmade, service, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.service import VIRTIO_KINDS

pytestmark = pytest.mark.guests("trixie")

UNIT = "rebooted.service"
KEPT = Path("/var/tmp/kubenpu-before-reboot.json")
DATABASE = "/var/lib/kubenpu/usage.db"
ALWAYS = ("--since", "@0", "--until", "@99999999999")


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def work(device: DrmDevice, calls: int) -> dict[str, int]:
    """So many calls of the unit, which kubenpud has named and stored; what the workload says it did, by kind."""
    path = f"/system.slice/{UNIT}"
    with handmade.cgroup(path):
        done = handmade.run(path, "--node", device.render, "--do", f"getparam:{calls},resource_create:{calls // 10}")
        wait.until("its name", partial(service.counted, "kubenpu_host_ioctl_total", unit=UNIT), 30)
    made = service.by_kind(done.calls, VIRTIO_KINDS)
    assert service.counted("kubenpu_host_ioctl_total", unit=UNIT) == made
    service.systemctl("restart", service.DAEMON)  # it stores what happened until then
    return made


def report(*words: str) -> dict[str, Any]:
    """With the quarter of an hour that is not over."""
    command = ["kubenpuctl", "report", "--database", DATABASE, "--by", "unit", "--json", *ALWAYS, *words]
    document: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    *lines, total = document["lines"]
    for kind, calls in (total["calls"] or {}).items():  # none, when the first part of it is of this quarter
        counted = [(line["calls"] or {}).get(kind) for line in lines]
        assert sum(n for n in counted if n is not None) == (calls or 0), kind
    assert sum(line["share_seconds"] for line in lines) == pytest.approx(total["share_seconds"])
    return document


def charged(*documents: dict[str, Any]) -> dict[str, int]:
    """By kind, what is not 0."""
    total = Counter[str]()
    for line in (line for document in documents for line in document["lines"] if line["names"]["unit"] == UNIT):
        total.update({kind: calls for kind, calls in line["calls"].items() if calls})
    return dict(total)


@pytest.mark.usefixtures("counting")
def test_before_the_reboot(virtio: DrmDevice) -> None:
    made = work(virtio, 200)
    assert charged(report()) == made
    KEPT.write_text(json.dumps({"boot": boot_id(), "calls": made, "until": time.time()}))


@pytest.mark.after_reboot
def test_after_the_reboot(virtio: DrmDevice) -> None:
    """Nobody starts it: what is installed counts after a boot."""
    wait.until("kubenpud", service.rows_or_none, 60)
    kept = json.loads(KEPT.read_text())
    assert boot_id() != kept["boot"]
    before = kept["calls"]
    assert charged(report()) == before
    after = work(virtio, 70)
    assert charged(report()) == {kind: before.get(kind, 0) + after.get(kind, 0) for kind in {*before, *after}}
    cut = f"@{int(kept['until'])}"
    assert charged(report("--until", cut), report("--since", cut)) == charged(report())
