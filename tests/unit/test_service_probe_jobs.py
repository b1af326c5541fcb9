# SPDX-License-Identifier: Apache-2.0
"""kubenpu-probe and drivers whose time the kernel's GPU scheduler tells: timed while there is one, whatever fails."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubenpu.kernel import attach, scheduler
from kubenpu.kernel.pins import Pins
from kubenpu.model.errors import KernelError
from tests.fakes.probe_machine import Machine
from tests.fakes.sim_plan import SimDevice, SimNode
from tests.fakes.sim_sysfs import write_sysfs
from tests.unit import test_service_probe
from tests.unit.test_service_probe import Errors

machine, errors = test_service_probe.machine, test_service_probe.errors
CORES = (
    SimDevice("gpu-subsystem", "etnaviv", "", 0, (SimNode("renderD128", 226, 128),)),
    SimDevice("ff400000.gpu", "lima", "", 0, (SimNode("renderD129", 226, 129),)),
    SimDevice("0000:00:02.0", "i915", "8086:7D55", 0, (SimNode("renderD130", 226, 130),)),
)


@dataclass
class Timing:
    """`drivers` that are timed, None: it was taken off."""

    drivers: list[set[str] | None] = field(default_factory=list)
    refuse: KernelError | None = None

    def attach(self, pins: Pins, object_path: Path, drivers: Collection[str], _messages: object) -> None:
        assert (pins.root.is_dir(), object_path) == (True, attach.object_path("scheduler"))
        if self.refuse is not None:
            raise self.refuse
        self.drivers.append(set(drivers))

    def detach(self, _pins: Pins) -> None:
        self.drivers.append(None)


@pytest.fixture
def timing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Timing:
    made = Timing()
    monkeypatch.setattr(scheduler, "attach_timing", made.attach)
    monkeypatch.setattr(scheduler, "detach_timing", made.detach)
    shutil.rmtree(machine.place / "sys")
    write_sysfs(machine.place / "sys", CORES)
    return made


def test_jobs_are_timed_while_there_is_such_a_device(machine: Machine, timing: Timing) -> None:
    assert machine.probe("load") == 0
    shutil.rmtree(machine.place / "sys")
    write_sysfs(machine.place / "sys", CORES[2:])
    assert machine.probe("load") == 0
    assert timing.drivers == [{"etnaviv-gpu", "lima"}, None]


def test_without_the_events_calls_are_counted_all_the_same(machine: Machine, timing: Timing, errors: Errors) -> None:
    timing.refuse = KernelError("no device time: the events name no client", "Linux 6.17 has them")
    assert machine.probe("load") == 0
    assert "kubenpu-probe: scheduler: no device time: the events name no client. Linux 6.17 has them." in errors()
    assert [request.hook.name for request in machine.requests] == ["drm_ioctl"]


def test_a_simulated_node_times_nothing(machine: Machine, timing: Timing) -> None:
    assert machine.probe("load", "--uprobe", "/opt/work:ioctl") == 0
    assert timing.drivers == []


def test_what_is_taken_off_leaves_nothing(tmp_path: Path) -> None:
    """Also what a load left that was killed in the middle; and nothing else goes."""
    pins = Pins(tmp_path)
    pins.make()
    links = [pins.link("scheduler", side) for side in ("run", "done")]
    for path in (*links, pins.program("scheduler", "run"), *map(pins.map, scheduler.MAPS)):
        path.touch()
    pins.link("scheduler", "done").with_name("scheduler_done_link_fresh").touch()
    others = {"cells", "drm_ioctl_enter_link", "scheduler_other"}
    for name in others:
        (pins.root / name).touch()
    scheduler.detach_timing(pins)
    assert {path.name for path in pins.root.iterdir()} == others
    scheduler.detach_timing(pins)


def test_pins_that_stay(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    pins.make()
    pins.link("scheduler", "run").mkdir()
    with pytest.raises(KernelError, match=r"cannot remove .*scheduler_run_link: Is a directory"):
        scheduler.detach_timing(pins)


def test_an_older_kernel_is_refused_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(scheduler, "has_symbol", asked.append)
    with pytest.raises(KernelError, match="name no client") as caught:
        scheduler.attach_timing(Pins(tmp_path), tmp_path / "none.o", {"lima"}, None)  # type: ignore[arg-type]
    assert (asked, caught.value.remedy) == (["__tracepoint_drm_sched_job_run"], "Linux 6.17 has them")
