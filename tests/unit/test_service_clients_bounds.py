# SPDX-License-Identifier: Apache-2.0
"""What kubenpu-clients bounds: how many are looked at, and how long a driver may take to answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from kubenpu.model.fdinfo import Holder
from kubenpu.service import clients, fdinfo_readers
from kubenpu.service.clients import MAX_CLIENTS_OF_CGROUP
from tests.fakes.clients_machine import ACCEL, GPU, Machine
from tests.fakes.cri_time import until


def test_who_opens_a_device_often_hides_nobody(machine: Machine) -> None:
    for n in range(MAX_CLIENTS_OF_CGROUP + 5):
        machine.tell(machine.hold(10, "/pod/greedy", 100 + n, fd=n), 1000 + n, 1)
    machine.tell(machine.hold(11, "/pod/modest", 1), 5, 7)
    running = machine.start()
    running.step()
    assert machine.gfx() == {"/pod/greedy": MAX_CLIENTS_OF_CGROUP, "/pod/modest": 7}
    assert running.trouble == "", "it is nobody else's"
    assert running.note == "memory is not known of /pod/greedy: too many clients to look at"
    machine.holders.reverse()
    running.step()
    assert machine.gfx() == {"/pod/greedy": MAX_CLIENTS_OF_CGROUP, "/pod/modest": 7}, "the same ones as before"


@pytest.fixture
def five_of_a_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS_OF_CGROUP", 5)


@pytest.mark.usefixtures("five_of_a_cgroup")
def test_who_has_ended_takes_no_place_of_the_living(machine: Machine) -> None:
    running = machine.start()
    for life in range(3):
        machine.holders.clear()
        for n in range(5):
            machine.tell(machine.hold(10, "/pod/a", 1000 * life + n, fd=n), 1000 * life + n, 1)
        running.step()
        assert running.trouble == ""
    assert machine.gfx() == {"/pod/a": 15}


@pytest.mark.usefixtures("five_of_a_cgroup")
def test_who_opens_more_than_there_is_room_for_hides_nobody(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 7)
    for n in range(20):
        machine.tell(machine.hold(10, "/pod/greedy", 100 + n, fd=n), 1000 + n, 1)
    machine.tell(machine.hold(11, "/pod/modest", 1), 5, 7)
    running = machine.start()
    running.step()
    assert machine.gfx() == {"/pod/greedy": 5, "/pod/modest": 7}
    for n in range(3):
        machine.tell(machine.hold(20 + n, f"/pod/{n}", 2 + n), 50 + n, 1)
    running.step()
    assert machine.gfx() == {"/pod/greedy": 5, "/pod/modest": 7, "/pod/0": 1}
    assert running.trouble == "there are more than 7 clients: not all are looked at"
    assert running.note == "memory is not known of /pod/greedy: too many clients to look at"


@pytest.mark.usefixtures("five_of_a_cgroup")
def test_memory_of_who_is_not_looked_at_as_a_whole_is_not_known(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    holders = [machine.hold(10, "/pod/greedy", 100 + n, fd=n) for n in range(6)]
    for n, holder in enumerate([*holders, machine.hold(11, "/pod/modest", 1)]):
        machine.tell(holder, 5 + n, 1, vram_kib=4)
    running = machine.start()
    for _ in range(3):
        running.step()
        assert memory(machine) == {"/pod/greedy": None, "/pod/modest": {"vram": 4096}}
    assert [record.message for record in caplog.records] == [running.note] != [""]
    machine.holders.remove(holders[0])
    machine.start().step()
    assert memory(machine) == {"/pod/greedy": {"vram": 5 * 4096}, "/pod/modest": {"vram": 4096}}


def memory(machine: Machine) -> dict[str, Mapping[str, int] | None]:
    return {use.path: use.memory for use in machine.sample().uses}


@pytest.mark.usefixtures("five_of_a_cgroup")
def test_only_so_many_are_named(machine: Machine) -> None:
    for cgroup in range(5):
        for n in range(6):
            machine.tell(machine.hold(10 + cgroup, f"/pod/{cgroup}", 10 * cgroup + n, fd=n), 10 * cgroup + n, 1)
    running = machine.start()
    running.step()
    assert running.note.startswith("memory is not known of /pod/0, /pod/1, /pod/2 and of 2 more cgroups: ")


@pytest.mark.usefixtures("five_of_a_cgroup")
def test_who_was_left_out_may_be_old_and_nobody_else(machine: Machine) -> None:
    """Also after a restart: what it used before it was looked at is believed, and in no minute."""
    used = 1000 * 10**9
    greedy = [machine.hold(10, "/pod/greedy", 100 + n, fd=n) for n in range(6)]
    for n, holder in enumerate(greedy):
        machine.tell(holder, 1000 + n, used)
    machine.start().step()
    assert machine.gfx() == {"/pod/greedy": 5 * used}
    machine.holders.remove(greedy[0])
    machine.tell(machine.hold(11, "/pod/modest", 1), 5, used)
    running = machine.start()
    running.step()
    assert machine.gfx() == {"/pod/greedy": 6 * used, "/pod/modest": 0}
    assert [use.earlier_ns for use in machine.sample().uses] == [6 * used, 0]
    assert running.trouble == "1 clients say that they used more than can be, which is not counted", "the new one"


def test_what_was_used_before_the_first_look_is_said(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    running = machine.start()
    running.step()
    machine.tell(holder, 5, 1007)
    machine.start().step()
    assert [(use.engine_ns, use.earlier_ns) for use in machine.sample().uses] == [({"gfx": 1007}, 1000)]


def test_a_number_that_runs_ahead_is_said(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 10**18)
    running = machine.start()
    running.step()
    assert machine.gfx() == {"/pod/a": 0}
    assert running.trouble == "1 clients say that they used more than can be, which is not counted"


# ---- a driver that does not answer ----


@contextmanager
def hanging(machine: Machine, holder: Holder) -> Iterator[None]:
    """Whoever opens its fdinfo waits, until the end of the block."""
    path = machine.fdinfo(holder)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        os.close(os.open(path, os.O_RDWR))  # lets go who waits
        path.unlink()


def test_a_driver_that_hangs_holds_up_no_other(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fdinfo_readers, "READ_SECONDS", 1.0)
    stuck, other = machine.hold(10, "/pod/a", 1), machine.hold(11, "/pod/b", 2, ACCEL)
    machine.tell(stuck, 5, 1000, vram_kib=4)
    machine.tell(other, 6, 30)
    running = machine.start()
    running.step()
    threads = threading.active_count()
    with hanging(machine, stuck):
        for used in (40, 50):
            machine.tell(other, 6, used)
            running.step()
            assert machine.gfx() == {"/pod/a": 1000, "/pod/b": used}
            assert running.trouble == f"the driver of {GPU} does not answer, or slowly: 1 clients are not read"
            assert threading.active_count() == threads + 1
    until(lambda: threading.active_count() == threads)
    machine.tell(stuck, 5, 1200)
    running.step()
    assert (machine.gfx()["/pod/a"], running.trouble) == (1200, "")


def test_who_was_not_read_is_the_first_in_the_next_look(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fdinfo_readers, "READ_SECONDS", 1.0)
    first, second = machine.hold(10, "/pod/a", 1), machine.hold(11, "/pod/b", 2)
    for n, holder in enumerate((first, second)):
        machine.tell(holder, n, 30)
    running = machine.start()
    threads = threading.active_count()
    with hanging(machine, first):
        running.step()
        assert machine.gfx() == {}
        assert running.trouble == f"the driver of {GPU} does not answer, or slowly: 2 clients are not read"
    until(lambda: threading.active_count() == threads)
    assert running._readers._missed == {(GPU, 1), (GPU, 2)}
    machine.tell(first, 0, 30)
    third = machine.hold(9, "/pod/c", 0)
    machine.holders.insert(0, machine.holders.pop())
    with hanging(machine, third):
        running.step()
        assert machine.gfx() == {"/pod/a": 30, "/pod/b": 30}
