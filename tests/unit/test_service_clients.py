# SPDX-License-Identifier: Apache-2.0
"""kubenpu-clients around one look: a procfs, a sysfs and a cgroup tree made of files, holders that a test names."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sdnotify

from kubenpu.config.settings import Settings, parse_daemon_arguments, read_settings
from kubenpu.kernel.pins import Pins
from kubenpu.ledger.clients_file import NAME, read_clients
from kubenpu.ledger.names import NAMES_NAME, write_names
from kubenpu.ledger.standing import Standing
from kubenpu.model.clients import ClientSample
from kubenpu.model.errors import SourceError
from kubenpu.model.fdinfo import Holder
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.service import clients, fdinfo_readers
from kubenpu.service.clients import ALIVE_SECONDS, MAX_CLIENTS_OF_CGROUP, MAX_HOLDERS, Clients
from tests.fakes.cri_time import until
from tests.fakes.sim_plan import SimDevice, SimNode
from tests.fakes.sim_sysfs import write_sysfs

GPU, NPU = "0000:03:00.0", "0000:00:0b.0"
DEVICES = (
    SimDevice(GPU, "amdgpu", "1002:7550", 0, (SimNode("card1", 226, 1), SimNode("renderD128", 226, 128))),
    SimDevice(NPU, "intel_vpu", "8086:7D1D", 0, (SimNode("accel0", 261, 0),)),
)
RENDER, ACCEL = (226, 128), (261, 0)
BOOT_ID = "b0b0"
INO = 12


@dataclass
class Machine:
    """`holders` is what the kernel lists."""

    place: Path
    holders: list[Holder] = field(default_factory=list)
    trouble: SourceError | None = None
    asked: int = 0

    def __post_init__(self) -> None:
        self.proc, self.mount, self.run = self.place / "proc", self.place / "cgroup", self.place / "run"
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text(f"{BOOT_ID}\n")
        self.mount.mkdir()
        self.run.mkdir()
        write_sysfs(self.place / "sys", DEVICES)
        self.set_power(GPU, "active")

    def settings(self) -> Settings:
        config = self.place / "kubenpu.toml"
        names = {"run_directory": "run", "kernel.pin_directory": "pins", "devices.sysfs": "sys"}
        config.write_text("".join(f'{key} = "{self.place / name}"\n' for key, name in names.items()))
        return read_settings(parse_daemon_arguments(["--config.file", str(config)]))

    def list_holders(self, pins: Pins) -> Iterator[Holder]:
        assert pins.directory == self.place / "pins"
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        yield from self.holders

    def set_power(self, address: str, status: str) -> None:
        power = self.place / "sys/devices/pci0000:00" / address / "power"
        power.mkdir(exist_ok=True)
        (power / "runtime_status").write_text(f"{status}\n")
        (power / "runtime_suspended_time").write_text("17\n")

    def cgroup(self, path: str) -> int:
        directory = self.mount / path[1:]
        directory.mkdir(parents=True, exist_ok=True)
        return directory.stat().st_ino

    def hold(self, pid: int, path: str, file: int, node: tuple[int, int] = RENDER, fd: int = 3) -> Holder:
        holder = Holder(file, self.cgroup(path), pid, INO, *node, pid, pid, fd)
        task = self.proc / f"{pid}/task/{pid}"
        (task / "fdinfo").mkdir(parents=True, exist_ok=True)
        (task / "cgroup").write_bytes(b"1:name=x:/old\n0::" + os.fsencode(path) + b"\n")
        self.holders.append(holder)
        return holder

    def tell(self, holder: Holder, client_id: int, gfx: int, vram_kib: int = 0) -> None:
        self.fdinfo(holder).write_text(
            f"pos:\t0\nino:\t{INO}\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client_id}\n"
            f"drm-engine-gfx:\t{gfx} ns\ndrm-memory-vram:\t{vram_kib} KiB\n"
        )

    def fdinfo(self, holder: Holder) -> Path:
        return self.proc / f"{holder.tgid}/task/{holder.pid}/fdinfo/{holder.fd}"

    def start(self) -> Clients:
        return Clients(self.settings(), self.mount, self.proc)

    def sample(self) -> ClientSample:
        found = read_clients(self.run / NAME, BOOT_ID)
        assert found is not None
        return found

    def gfx(self) -> dict[str, int | None]:
        return {use.path: use.engine_ns.get("gfx") for use in self.sample().uses}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(clients, "read_holders", made.list_holders)
    return made


def test_a_look_ends_in_the_file(machine: Machine) -> None:
    one, other = machine.hold(10, "/pod/a", 1), machine.hold(11, "/pod/b", 2)
    machine.tell(one, 5, 1000, vram_kib=4)
    machine.tell(other, 6, 30)
    running = machine.start()
    running.step()
    found = {use.path: use for use in machine.sample().uses}
    assert found["/pod/a"].cgroup_id == one.cgroup_id
    assert (found["/pod/a"].device, found["/pod/a"].engine_ns, found["/pod/a"].memory) == (
        GPU,
        {"gfx": 1000},
        {"vram": 4096},
    )
    assert found["/pod/b"].engine_ns == {"gfx": 30}
    assert (running.trouble, running.summary()) == ("", "2 clients of 2 devices")
    assert (machine.run / NAME).stat().st_mode & 0o777 == 0o600


def test_a_file_that_two_share_counts_once(machine: Machine) -> None:
    child, parent = machine.hold(12, "/pod/b", 1), machine.hold(10, "/pod/a", 1)
    machine.tell(child, 5, 1000)
    machine.tell(parent, 5, 1000)
    machine.start().step()
    assert machine.gfx() == {"/pod/a": 1000}, "that of the older process"


def test_another_holder_is_asked_when_the_first_is_gone(machine: Machine) -> None:
    machine.hold(10, "/pod/a", 1)
    machine.tell(machine.hold(11, "/pod/a", 1), 5, 1000)
    machine.start().step()
    assert machine.gfx() == {"/pod/a": 1000}


def test_nothing_is_asked_where_there_is_no_accelerator(machine: Machine) -> None:
    for name in ("drm", "accel"):
        for link in (machine.place / "sys/class" / name).iterdir():
            link.unlink()
    running = machine.start()
    running.step()
    assert (machine.asked, running.summary()) == (0, "0 clients of 0 devices")


@pytest.mark.parametrize("status", ["suspended", "suspending"])
def test_a_sleeping_device_is_not_woken(machine: Machine, status: str) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000, vram_kib=4)
    running = machine.start()
    running.step()
    machine.set_power(GPU, status)
    machine.tell(holder, 5, 5000)
    running.step()
    assert machine.gfx() == {"/pod/a": 1000}
    assert machine.sample().uses[0].memory == {"vram": 4096}
    machine.set_power(GPU, "active")
    running.step()
    assert machine.gfx() == {"/pod/a": 5000}


def test_a_driver_that_tells_nothing_has_no_use(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1, ACCEL)
    machine.fdinfo(holder).write_text(f"pos:\t0\nino:\t{INO}\n")
    running = machine.start()
    running.step()
    assert (machine.sample().uses, running.trouble) == ((), "")


def test_a_cgroup_that_is_not_the_tasks_any_more_is_left_for_the_next_look(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    (machine.proc / "10/task/10/cgroup").write_text("0::/elsewhere\n")
    running = machine.start()
    running.step()
    assert machine.sample().uses == ()
    (machine.proc / "10/task/10/cgroup").write_text("0::/pod/a\n")
    running.step()
    assert machine.gfx() == {"/pod/a": 1000}


def test_what_cannot_be_asked_is_said_and_keeps_the_totals(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    running = machine.start()
    running.step()
    known = [use.memory for use in machine.sample().uses]
    machine.trouble = SourceError("clients_iter is not there", "Start kubenpu-probe")
    with caplog.at_level(logging.INFO):
        running.step()
        running.step()
    assert machine.sample().trouble == "clients_iter is not there. Start kubenpu-probe."
    assert [record.message for record in caplog.records] == [machine.sample().trouble]
    assert machine.gfx() == {"/pod/a": 1000}
    assert [use.memory for use in machine.sample().uses] == [{}]  # what they have now is not known
    machine.trouble = None
    running.step()
    assert machine.sample().trouble == ""
    assert [use.memory for use in machine.sample().uses] == known != [{}]


def test_refused_fdinfo_is_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    open_path = Path.open

    def refusing(self: Path, *words: object, **more: object) -> object:
        if self == machine.fdinfo(holder):
            raise PermissionError(13, "Permission denied", str(self))
        return open_path(self, *words, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refusing)
    running = machine.start()
    running.step()
    assert running.trouble == "permission denied for the fdinfo of 1 clients, which needs CAP_SYS_PTRACE"


def test_a_number_that_cannot_be_is_left_out_and_said(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 99999999999999999999, vram_kib=4)
    running = machine.start()
    running.step()
    assert [(use.engine_ns, use.memory) for use in machine.sample().uses] == [({}, {"vram": 4096})]
    assert running.trouble == "1 numbers of drivers are left out, as nothing can have so much"
    machine.tell(holder, 5, 1000)
    running.step()
    assert (machine.gfx(), running.trouble) == ({"/pod/a": 1000}, "")


def test_who_opens_a_device_often_hides_nobody(machine: Machine) -> None:
    for n in range(MAX_CLIENTS_OF_CGROUP + 5):
        machine.tell(machine.hold(10, "/pod/greedy", 100 + n, fd=n), 1000 + n, 1)
    machine.tell(machine.hold(11, "/pod/modest", 1), 5, 7)
    running = machine.start()
    running.step()
    assert machine.gfx() == {"/pod/greedy": MAX_CLIENTS_OF_CGROUP, "/pod/modest": 7}
    assert running.trouble == "5 clients are not looked at: too many of one cgroup, or of all"
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
    assert running.trouble == "17 clients are not looked at: too many of one cgroup, or of all"


@pytest.mark.usefixtures("five_of_a_cgroup")
def test_after_a_look_that_left_somebody_out_who_is_new_may_be_old(machine: Machine) -> None:
    running = machine.start()
    running.step()
    assert running.accounts.looked_ns > 0
    for n in range(6):
        machine.tell(machine.hold(10, "/pod/greedy", 100 + n, fd=n), 1000 + n, 1)
    running.step()
    assert running.accounts.looked_ns == 0


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
    monkeypatch.setattr(fdinfo_readers, "READ_SECONDS", 0.2)
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
    monkeypatch.setattr(fdinfo_readers, "READ_SECONDS", 0.2)
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


# ---- restarts ----


def test_a_restart_neither_loses_nor_counts_twice(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    machine.start().step()
    generation = machine.sample().generation
    machine.tell(holder, 5, 1700)
    machine.start().step()
    assert (machine.gfx(), machine.sample().generation) == ({"/pod/a": 1700}, generation)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]\n", '{"format": 2}\n', "@\n", None],
)
def test_a_file_that_is_no_use_is_begun_anew(
    machine: Machine, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    machine.start().step()
    before = machine.sample().generation
    file = machine.run / NAME
    if content is None:  # cut off before the last line
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    else:
        file.write_text(content)
    machine.start().step()
    assert "totals begin anew" in caplog.text
    assert machine.gfx() == {"/pod/a": 1000}
    assert machine.sample().generation != before


METER = [1, 1, 1000, 0, 0, 0]
CLIENT = [GPU, 5, 1, 77, [1, 1], {"gfx": METER}, {"rcs": [1, 1, 1]}, {"vram": 1}, 0]
CLOCK = [GPU, "rcs", 1, 1, 0, 0, [[1, 1]], [1, 1]]
REST = {
    "clients": [CLIENT],
    "clocks": [CLOCK],
    "unread": [[GPU, 7, 1, 1]],
    "looked_ns": 1,
    "dead_since": [None],
}


def with_rest(machine: Machine, rest: object) -> None:
    file = machine.run / NAME
    file.write_text("".join([*file.read_text().splitlines(keepends=True)[:-1], json.dumps(rest), "\n"]))


def test_a_rest_that_is_of_use(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    machine.start().step()
    with_rest(machine, {**REST, "dead_since": [5.5]})
    machine.start()
    assert caplog.text == ""


@pytest.mark.parametrize(
    "rest",
    [
        [],
        {},
        {**REST, "clients": [[1]]},
        {**REST, "clients": 5},
        {**REST, "clients": [[*CLIENT[:-1], "z"]]},
        {**REST, "clients": [[*CLIENT[:5], {"gfx": "x"}, *CLIENT[6:]]]},
        {**REST, "clients": [[*CLIENT[:5], {"gfx": [*METER[:-1], "x"]}, *CLIENT[6:]]]},
        {**REST, "clients": [[*CLIENT[:5], {"gfx": [*METER, 1]}, *CLIENT[6:]]]},
        {**REST, "clients": [[*CLIENT[:5], ["gfx"], *CLIENT[6:]]]},
        {**REST, "clients": [[*CLIENT[:4], 7, *CLIENT[5:]]]},
        {**REST, "clients": [[*CLIENT[:6], {"rcs": [1, 1, None]}, *CLIENT[7:]]]},
        {**REST, "clients": [[GPU, 1 << 63, *CLIENT[2:]]]},
        {**REST, "clients": [[*CLIENT[:7], {"vram": -1}, 0]]},
        {**REST, "clocks": [[*CLOCK[:-1], [1, 0]]]},
        {**REST, "clocks": [[*CLOCK[:-1], 1]]},
        {**REST, "clocks": [[*CLOCK[:-2], [[0, 1]], None]]},
        {**REST, "clocks": [CLOCK[:-1]]},
        {**REST, "unread": [[GPU, 7, 1]]},
        {**REST, "unread": [[GPU, "7", 1, 1]]},
        {**REST, "looked_ns": 1.5},
        {**REST, "dead_since": ["soon"]},
        {**REST, "dead_since": [float("nan")]},
        {**REST, "dead_since": [-1]},
        {**REST, "dead_since": []},
    ],
)
def test_a_rest_that_is_no_use(machine: Machine, rest: object, caplog: pytest.LogCaptureFixture) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    machine.start().step()
    with_rest(machine, rest)
    machine.start().step()
    assert "totals begin anew" in caplog.text
    assert machine.gfx() == {"/pod/a": 1000}


def test_totals_of_another_boot_are_not_taken(machine: Machine) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    machine.start().step()
    (machine.proc / "sys/kernel/random/boot_id").write_text("another\n")
    machine.holders.clear()
    machine.start().step()
    found = read_clients(machine.run / NAME, "another")
    assert found is not None
    assert found.uses == ()


def test_a_disk_that_is_full_is_trouble(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    running = machine.start()

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    running.step()
    assert running.trouble == f"cannot write {machine.run / NAME}: No space left on device"


def test_the_end_of_a_series(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names that kubenpud has, after the time that its own series stay."""
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    running = machine.start()
    running.step()
    owner = Owner(OwnerKind.POD, namespace="shop", pod="web", container="main")
    write_names(machine.run / NAMES_NAME, BOOT_ID, {holder.cgroup_id: Standing(owner, True)})
    machine.holders.clear()
    (machine.mount / "pod/a").rmdir()
    running.step()
    assert machine.gfx() == {"/pod/a": 1000}
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _clock: now + 601 * 10**9)
    running.step()
    assert [(use.cgroup_id, use.engine_ns) for use in machine.sample().uses] == [(0, {"gfx": 1000})]


class Told(list[str]):
    """What systemd was told."""

    def notify(self, text: str) -> None:
        self.append(text)


def test_it_looks_once_more_at_its_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    told, stop = Told(), threading.Event()
    monkeypatch.setattr(sdnotify, "SystemdNotifier", lambda: told)
    stop.set()
    clients.run(machine.start(), 600, stop)
    assert machine.asked == 2
    assert told == ["READY=1", "WATCHDOG=1", "STATUS=0 clients of 2 devices", "STOPPING=1"]


def test_a_path_that_is_no_text_survives(machine: Machine) -> None:
    path = os.fsdecode(b"/pod/\xff")
    machine.tell(machine.hold(10, path, 1), 5, 1000)
    machine.start().step()
    assert machine.gfx() == {path: 1000}


def test_a_file_that_everybody_shares(machine: Machine) -> None:
    for pid in range(100, 100 + 2 * MAX_HOLDERS):
        machine.tell(machine.hold(pid, f"/pod/{pid}", 1), 5, 1000)
    machine.start().step()
    assert machine.gfx() == {"/pod/100": 1000}


def test_a_long_interval_is_no_silence(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    told, stop, waited = Told(), threading.Event(), []
    monkeypatch.setattr(sdnotify, "SystemdNotifier", lambda: told)

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == 3

    monkeypatch.setattr(stop, "wait", wait)
    clients.run(machine.start(), 3600, stop)
    assert waited == [ALIVE_SECONDS] * 3
    assert told[-3:] == ["WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_wrong_setting_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tmp_path / "kubenpu.toml"
    config.write_text("clients.interval_seconds = 0\n")
    with restored_signals():
        assert clients.main(["--config.file", str(config)]) == os.EX_CONFIG
    assert "clients.interval_seconds: expected" in caplog.text


@contextmanager
def restored_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
