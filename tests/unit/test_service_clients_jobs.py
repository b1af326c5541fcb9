# SPDX-License-Identifier: Apache-2.0
"""Looks at clients of a driver that tells no time, whose jobs the kernel's GPU scheduler times."""

from __future__ import annotations

import shutil
from collections.abc import Collection

import pytest

from kubenpu.kernel.job_times import Times
from kubenpu.kernel.pins import Pins
from kubenpu.ledger.clients import LOOKS_REMEMBERED
from kubenpu.model.fdinfo import Holder
from kubenpu.service import timed
from tests.fakes.clients_machine import ACCEL, DEVICES, INO, Machine
from tests.fakes.sim_plan import SimDevice, SimNode
from tests.fakes.sim_sysfs import write_sysfs

LIMA, LIMA_NODE = "ff400000.gpu", (226, 130)
JOBS: Times = {77: {"gp": 300, "pp": 4000}}


@pytest.fixture
def job_times(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, int]]:
    """What the kernel adds up for a driver whose jobs are timed; clients that are forgotten are taken out."""
    found = {client: dict(rings) for client, rings in JOBS.items()}

    def forget(_pins: Pins, gone: Collection[int]) -> None:
        for client in gone:
            del found[client]

    monkeypatch.setattr(timed, "read_times", lambda _pins: {client: dict(rings) for client, rings in found.items()})
    monkeypatch.setattr(timed, "jobs_lost", lambda _pins: {})
    monkeypatch.setattr(timed, "forget_times", forget)
    shutil.rmtree(machine.place / "sys")
    lima = SimDevice(LIMA, "lima", "", 0, (SimNode("renderD130", *LIMA_NODE),))
    write_sysfs(machine.place / "sys", (*DEVICES, lima))
    return found


def hold_lima(machine: Machine, pid: int, path: str, file: int, client_id: int) -> Holder:
    """Its fdinfo has no line of DRM."""
    holder = machine.hold(pid, path, file, LIMA_NODE)._replace(client_id=client_id)
    machine.holders[-1] = holder
    machine.fdinfo(holder).write_text(f"pos:\t0\nino:\t{INO}\n")
    return holder


def test_time_of_jobs_goes_to_who_holds_the_client(machine: Machine, job_times: dict[int, dict[str, int]]) -> None:
    hold_lima(machine, 10, "/pod/a", 1, 77)
    hold_lima(machine, 11, "/pod/b", 2, 78)
    running = machine.start()
    running.step()
    found = {use.path: use for use in machine.sample().uses}
    assert (found["/pod/a"].device, found["/pod/a"].engine_ns) == (LIMA, JOBS[77])
    assert (found["/pod/b"].engine_ns, found["/pod/b"].memory) == ({}, {})
    job_times[77]["pp"] += 50
    machine.start().step()
    assert {use.path: use.engine_ns.get("pp") for use in machine.sample().uses} == {"/pod/a": 4050, "/pod/b": None}


def test_time_of_jobs_of_another_driver_is_not_its_device_time(
    machine: Machine, job_times: dict[int, dict[str, int]]
) -> None:
    """One whose table does not say so: it may have a scheduler too."""
    holder = machine.hold(10, "/pod/a", 1, ACCEL)._replace(client_id=77)
    machine.holders[-1] = holder
    machine.fdinfo(holder).write_text(f"pos:\t0\nino:\t{INO}\n")
    machine.start().step()
    assert machine.sample().uses == ()


def test_times_of_clients_that_are_gone_make_room(machine: Machine, job_times: dict[int, dict[str, int]]) -> None:
    """Not before they have ended: one may be on its way through a socket, and what it had then would be lost."""
    job_times[5] = {"gp": 1}
    hold_lima(machine, 10, "/pod/a", 1, 77)
    running = machine.start()
    running.step()
    assert set(job_times) == {77}, "nobody has held the other one"
    machine.holders.clear()
    for _ in range(LOOKS_REMEMBERED):
        running.step()
    assert set(job_times) == {77}
    running.step()
    assert set(job_times) == set()
    assert [(use.engine_ns, use.ended) for use in machine.sample().uses] == [(JOBS[77], 1)]


def test_a_device_that_sleeps_has_worked_all_the_same(machine: Machine, job_times: dict[int, dict[str, int]]) -> None:
    """It is not asked, and the times are the kernel's own."""
    holder = hold_lima(machine, 10, "/pod/a", 1, 77)
    machine.fdinfo(holder).write_text(
        f"ino:\t{INO}\ndrm-driver:\tetnaviv\ndrm-client-id:\t77\ndrm-total-memory:\t4 KiB\n"
    )
    running = machine.start()
    running.step()
    machine.set_power(LIMA, "suspended")
    machine.fdinfo(holder).write_text("")
    job_times[77]["gp"] = 900
    running.step()
    (use,) = machine.sample().uses
    assert (use.engine_ns["gp"], use.memory) == (900, {"memory": 4096})
