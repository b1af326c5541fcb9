# SPDX-License-Identifier: Apache-2.0
"""Time of jobs joined with clients: which word counts, what is said of a loss, and whose times are thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubenpu.kernel.job_times import Times
from kubenpu.kernel.pins import Pins
from kubenpu.model.device import Device
from kubenpu.model.errors import KernelError
from kubenpu.model.fdinfo import Fdinfo, Ticks
from kubenpu.service import timed
from kubenpu.service.timed import Jobs, Timed

TIMES = {7: {"rocket.0": 1000}}
LOOK = Timed(frozenset({"rknn"}), TIMES)
TELLS_MEMORY = Fdinfo(7, {}, {}, {"memory": 5})


@pytest.mark.parametrize(
    ("fdinfo", "client_id", "joined"),
    [
        (None, 7, Fdinfo(7, TIMES[7], {}, {"memory": 9})),
        (None, 8, Fdinfo(8, {}, {}, {"memory": 9})),
        (None, 0, None),
        (TELLS_MEMORY, 7, TELLS_MEMORY._replace(engine_ns=TIMES[7])),
        (TELLS_MEMORY, 0, TELLS_MEMORY),
        (TELLS_MEMORY._replace(engine_ns={"npu": 1}), 7, TELLS_MEMORY._replace(engine_ns={"npu": 1})),
        (TELLS_MEMORY._replace(ticks={"npu": Ticks(1, 2)}), 7, TELLS_MEMORY._replace(ticks={"npu": Ticks(1, 2)})),
    ],
)
def test_the_drivers_own_word_counts_first(fdinfo: Fdinfo | None, client_id: int, joined: Fdinfo | None) -> None:
    assert LOOK.join(fdinfo, client_id, {"memory": 9}) == joined


class Kernel:
    """What the pins hold."""

    def __init__(self) -> None:
        self.times: Times | None = TIMES
        self.lost = {"jobs_full": 0, "program_skipped": 2}
        self.refuses = False
        self.forgotten: list[set[int]] = []

    def read_times(self, _pins: Pins) -> Times | None:
        if self.refuses:
            raise KernelError("cannot open it: Operation not permitted")
        return self.times

    def forget_times(self, _pins: Pins, clients: set[int]) -> None:
        if self.refuses:
            raise KernelError("cannot delete it")
        self.forgotten.append(clients)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(timed, "read_times", made.read_times)
    monkeypatch.setattr(timed, "forget_times", made.forget_times)
    monkeypatch.setattr(timed, "jobs_lost", lambda _pins: made.lost)
    return made


@pytest.fixture
def jobs(kernel: Kernel, tmp_path: Path) -> Jobs:
    return Jobs(Pins(tmp_path), tmp_path)


def device(address: str, vendor: str | None) -> Device:
    return Device(address, "accel", None, vendor, None, None, (), "")


def test_tables_are_read_where_jobs_are_timed(kernel: Kernel, jobs: Jobs) -> None:
    devices = [device("rknn", "rocket"), device("0000:00:0b.0", "intel_vpu"), device("x", None)]
    kernel.times = None
    assert (jobs.read_times(), jobs.tables) == ({}, ())
    assert jobs.of(devices, {}).devices == frozenset()
    kernel.times = TIMES
    assert jobs.read_times() == TIMES
    assert jobs.of(devices, TIMES) == LOOK


def test_jobs_without_a_time_are_said_once(kernel: Kernel, jobs: Jobs) -> None:
    jobs.read_times()
    assert jobs.trouble == "jobs that have no time since the last look: program_skipped 2"
    jobs.read_times()
    assert jobs.trouble == ""
    kernel.lost = {"jobs_full": 1, "program_skipped": 5}
    jobs.read_times()
    assert jobs.trouble == "jobs that have no time since the last look: jobs_full 1, program_skipped 3"
    kernel.lost = {"jobs_full": 0, "program_skipped": 0}  # the program is another one
    jobs.read_times()
    assert jobs.trouble == ""


def test_what_cannot_be_read_is_trouble_and_no_end(kernel: Kernel, jobs: Jobs) -> None:
    kernel.refuses = True
    assert jobs.read_times() == {}
    assert jobs.trouble == "no device time of jobs: cannot open it: Operation not permitted"
    kernel.refuses, kernel.lost = False, {}
    jobs.read_times()
    assert jobs.trouble == ""
    kernel.refuses = True
    jobs.forget({1})
    assert jobs.trouble == "clients that are gone keep their room: cannot delete it"
