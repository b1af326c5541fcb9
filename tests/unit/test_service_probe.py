# SPDX-License-Identifier: Apache-2.0
"""kubenpu-probe as a command: what it says when it cannot, and what it hands to the loader when it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.kernel import attach, bcc_loader, clients
from kubenpu.kernel.attach import LoadRequest, Target
from kubenpu.kernel.hooks import DRM_IOCTL, FILE_IOCTL, SHARED_MAPS
from kubenpu.kernel.pins import STATE_NAME, read_state, write_state
from kubenpu.kernel.support import KernelFacts
from kubenpu.model.errors import KernelError
from kubenpu.model.sample import HookStatus
from kubenpu.service import probe
from tests.fakes.probe_machine import KPROBE, Machine, alone
from tests.fakes.sim_plan import DEVICES
from tests.fakes.sim_sysfs import write_sysfs
from tests.unit.test_kernel_support import GOOD


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path)
    write_sysfs(tmp_path / "sys", DEVICES)
    monkeypatch.setattr(probe, "read_facts", lambda: made.facts)
    monkeypatch.setattr(probe, "_drm_module", lambda: made.drm_module)
    monkeypatch.setattr(probe, "Messages", lambda debug: debug)
    monkeypatch.setattr(probe, "CounterStore", made.open_store)
    monkeypatch.setattr(attach, "load", made.load)
    monkeypatch.setattr(attach, "make_maps", made.make_maps)
    monkeypatch.setattr(attach, "detach", made.detach)
    monkeypatch.setattr(clients, "pin_iterator", made.pin_iterator)
    yield made
    assert all(store.closed for store in made.stores)


Errors = Callable[[], str]


@pytest.fixture
def errors(machine: Machine, capsys: pytest.CaptureFixture[str]) -> Errors:
    """What was said on stderr since the last time; nothing may be on stdout."""

    def read() -> str:
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return read


# ---- what it says when it cannot ----


def test_an_obstacle_ends_it_with_cause_and_remedy(machine: Machine, errors: Errors) -> None:
    machine.facts = replace(GOOD, bpffs=False)
    assert machine.probe("load") == 1
    assert errors() == ("kubenpu-probe: no bpffs is mounted on /sys/fs/bpf. Run: mount -t bpf bpf /sys/fs/bpf.\n")
    assert machine.requests == []
    assert not machine.run_directory.exists()


def test_all_obstacles_are_told_at_once(machine: Machine, errors: Errors) -> None:
    machine.facts = replace(GOOD, missing_capabilities=("CAP_BPF",), btf=False, bpffs=False, cgroup2=None)
    assert machine.probe("load") == 1
    said = errors()
    assert said.count("\n") == 1
    for words in ("lacks CAP_BPF", "has no BTF", "no bpffs", "no cgroup version 2", "as root", "CONFIG_DEBUG_INFO_BTF"):
        assert said.count(words) == 1


def test_a_load_that_fails_keeps_the_last_state(machine: Machine, errors: Errors) -> None:
    write_state(machine.run_directory, (KPROBE,), 4711)
    machine.refuse = KernelError("cannot load the BPF programs", "Kernel 5.15 is too old")
    assert machine.probe("load") == 1
    assert errors() == "kubenpu-probe: cannot load the BPF programs. Kernel 5.15 is too old.\n"
    assert read_state(machine.run_directory) == ((KPROBE,), 4711)


@pytest.mark.parametrize("command", ["load", "unload", "status"])
def test_a_run_directory_that_is_none(machine: Machine, errors: Errors, command: str) -> None:
    machine.run_directory.touch()
    assert machine.probe(command) == 1
    said = errors()
    assert said.startswith("kubenpu-probe: cannot ")
    assert str(machine.run_directory) in said
    assert "run_directory" in said.partition(". ")[2]


def test_pins_that_cannot_be_removed(machine: Machine, errors: Errors) -> None:
    machine.pins.make()
    (machine.pins.root / "foreign").mkdir()
    assert machine.probe("unload") == 1
    assert str(machine.pins.root) in errors()


def test_a_damaged_state_file(machine: Machine, errors: Errors) -> None:
    machine.run_directory.mkdir()
    (machine.run_directory / STATE_NAME).write_text("{")
    assert machine.probe("status") == 1
    assert "Run kubenpu-probe load again" in errors()


def test_load_repairs_a_damaged_state_file(machine: Machine, errors: Errors) -> None:
    """The remedy that the error names must work."""
    machine.run_directory.mkdir()
    (machine.run_directory / STATE_NAME).write_text("{")
    assert machine.probe("load") == 0
    ((hook, _), module) = read_state(machine.run_directory)
    assert (hook.mechanism, module) == ("kprobe", 4711)
    assert "is damaged" in errors()


@pytest.mark.parametrize(
    "arguments",
    [
        ("reload",),
        ("load", "--mechanism", "magic"),
        ("load", "--mechanism", "uprobe"),
        ("load", "--loader", "libbpf"),
        ("load", "--uprobe", "foo"),
        ("load", "--uprobe", "/bin/work:"),
        ("status", "--mechanism", "auto"),
    ],
)
def test_misuse(machine: Machine, errors: Errors, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        machine.probe(*arguments)
    assert caught.value.code == 2
    said = errors()
    assert "usage: kubenpu-probe" in said
    assert ("is not BINARY:FUNCTION, such as" in said) is ("--uprobe" in arguments)


def test_settings_that_cannot_be_read(machine: Machine, errors: Errors) -> None:
    missing = machine.place / "none.toml"
    assert alone(["--config.file", str(missing), "load"]) == 1
    assert errors().startswith(f"kubenpu-probe: {missing} does not exist. ")


# ---- what it does when it can ----


def test_load_hands_on_what_was_asked_for(machine: Machine, errors: Errors) -> None:
    assert machine.probe("load") == 0
    (request,) = machine.requests
    assert (request.hook, request.mechanisms, request.target) == (DRM_IOCTL, DRM_IOCTL.ladder, None)
    assert (request.pins, request.slots) == (machine.pins, 8192)
    assert request.object_path == attach.object_path(DRM_IOCTL.name)
    assert machine.iterators == [attach.object_path("clients")]
    assert errors() == "drm_ioctl: kprobe (fentry: drm has no BTF)\nfile_ioctl: off (no such device)\n"


def test_without_the_list_of_clients_calls_are_counted_all_the_same(machine: Machine, errors: Errors) -> None:
    machine.refuse_iterator = KernelError("cannot load the BPF programs", "Do this")
    assert machine.probe("load") == 0
    assert "kubenpu-probe: clients: cannot load the BPF programs. Do this." in errors()
    assert len(machine.requests) == 1


@pytest.mark.parametrize(
    ("arguments", "mechanisms", "target"),
    [
        (("--mechanism", "kprobe.multi"), ("kprobe.multi",), None),
        (("--mechanism", "auto"), DRM_IOCTL.ladder, None),
        (("--mechanism", "lsm"), DRM_IOCTL.ladder, None),  # none of this hook's
        (("--uprobe", "/opt/a:b/work:ioctl"), ("uprobe",), Target("ioctl", Path("/opt/a:b/work"))),
    ],
)
def test_load_of_one_mechanism(
    machine: Machine, arguments: tuple[str, ...], mechanisms: tuple[str, ...], target: Target | None
) -> None:
    assert machine.probe("load", "--objects", "/tmp/other", *arguments) == 0
    (request,) = machine.requests
    assert (request.mechanisms, request.target) == (mechanisms, target)
    assert request.object_path == Path("/tmp/other/drm_ioctl.bpf.o")


def test_another_mechanism_than_the_attached_one_is_not_taken_silently(machine: Machine, errors: Errors) -> None:
    assert machine.probe("load", "--mechanism", "fentry") == 0
    assert "drm_ioctl stays attached by kprobe: another mechanism takes unload, then load\n" in errors()
    assert machine.probe("load") == 0
    assert "stays attached" not in errors()


def test_a_status_that_nobody_reads_to_its_end(machine: Machine) -> None:
    """`kubenpu-probe status | true` is no error."""
    write_state(machine.run_directory, (KPROBE,), 4711)
    file = machine.place / "probe.toml"
    file.write_text(f'run_directory = "{machine.run_directory}"\n')
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kubenpu.service.probe", "--config.file", str(file), "status"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("btf", "arguments", "loader"),
    [(True, (), "core"), (False, (), "bcc"), (True, ("--loader", "bcc"), "bcc"), (True, ("--loader", "core"), "core")],
)
def test_load_by_the_loader_that_is_needed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, btf: bool, arguments: tuple[str, ...], loader: str
) -> None:
    """bcc is asked once, for both hooks."""
    asked = []

    def write_layout(path: Path, run_directory: Path, _messages: object) -> Path:
        asked.append((path.name, run_directory))
        return run_directory / "kernel.btf"

    monkeypatch.setattr(bcc_loader, "write_layout", write_layout)
    machine.facts = replace(GOOD, btf=btf, bcc=True, headers=True)
    assert machine.probe("load", *arguments) == 0
    assert asked == ([("drm_ioctl.bpf.o", machine.run_directory)] if loader == "bcc" else [])
    assert [request.loader for request in machine.requests] == [loader]
    assert {hook.loader for hook in read_state(machine.run_directory)[0]} == {loader}


def test_a_kernel_without_btf_lists_no_clients_and_that_is_told_once(
    machine: Machine, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bcc_loader, "write_layout", lambda *_: machine.place)
    machine.facts = replace(GOOD, btf=False, bcc=True, headers=True)
    machine.refuse_iterator = KernelError("kernel BTF is missing", "Never seen")
    assert machine.probe("load") == 0
    lines = [line for line in errors().splitlines() if "file_ioctl: " not in line and "drm_ioctl: " not in line]
    assert lines == ["no device time and no device memory: they need a kernel with BTF"]


def test_load_tells_the_kernel_the_devices_and_the_daemon_the_hook(machine: Machine) -> None:
    assert machine.probe("load") == 0
    (store,) = machine.stores
    assert sorted(store.addresses.values()) == sorted(device.address for device in DEVICES)
    assert machine.devices_known == [sum(len(device.nodes) for device in DEVICES)]  # before the first call is seen
    hooks, module = read_state(machine.run_directory)
    assert (hooks[0], module) == (replace(KPROBE, since_ns=machine.requests[0].since_ns), 4711)


def test_a_character_device_brings_the_second_hook(machine: Machine, errors: Errors) -> None:
    home = machine.place / "sys/devices/virtual/kfd/kfd"
    home.mkdir(parents=True)
    (home / "uevent").write_text("MAJOR=236\nMINOR=0\nDEVNAME=kfd\n")
    (home / "subsystem").symlink_to("../../../../class/kfd")
    (machine.place / "sys/dev/char").mkdir(parents=True)
    (machine.place / "sys/dev/char/236:0").symlink_to(home)
    assert machine.probe("load") == 0
    assert [request.hook for request in machine.requests] == [DRM_IOCTL, FILE_IOCTL]
    assert [(r.major, r.minor) for r in machine.stores[0].node_rules] == [(236, 0)]
    assert [h.hook for h in read_state(machine.run_directory)[0] if h.needed] == ["drm_ioctl", "file_ioctl"]
    first = machine.requests[1].since_ns
    assert machine.probe("load", "--mechanism", "lsm") == 0
    assert (machine.requests[3].mechanisms, machine.requests[3].since_ns) == (("lsm",), first)
    (machine.place / "sys/dev/char/236:0").unlink()
    errors()
    assert machine.probe("load") == 0
    assert "file_ioctl: off (no such device)" in errors()
    assert machine.detached[1:] == ["file_ioctl"]


def test_the_second_hook_fails_alone(machine: Machine, errors: Errors, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: LoadRequest, facts: KernelFacts, messages: object) -> HookStatus:
        if request.hook is FILE_IOCTL:
            raise KernelError("the verifier said no\nand more", "Report this")
        return machine.load(request, facts, messages)

    monkeypatch.setattr(attach, "load", refuse)
    monkeypatch.setattr(probe, "needs_file_ioctl", lambda _inventory: True)
    assert machine.probe("load") == 0
    assert "file_ioctl: the verifier said no" in errors()
    first, second = read_state(machine.run_directory)[0]
    assert (first.mechanism, second.mechanism, second.reason) == ("kprobe", "off", "the verifier said no")


def test_a_second_hook_that_cannot_be_replaced_goes_on(
    machine: Machine, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "needs_file_ioctl", lambda _inventory: True)
    assert machine.probe("load") == 0
    for side in FILE_IOCTL.required:
        machine.pins.link(FILE_IOCTL.name, side).touch()

    def refuse(request: LoadRequest, facts: KernelFacts, messages: object) -> HookStatus:
        if request.hook is FILE_IOCTL:
            raise KernelError("the verifier said no", "Report this")
        return machine.load(request, facts, messages)

    monkeypatch.setattr(attach, "load", refuse)
    assert machine.probe("load") == 0
    assert "file_ioctl: kprobe (its program was not replaced: the verifier said no)" in errors()


def test_counting_goes_on_since_the_first_load(machine: Machine) -> None:
    machine.probe("load")
    machine.probe("load")
    assert machine.requests[1].since_ns == machine.requests[0].since_ns


def test_counts_are_complete_since_a_hook_was_attached_anew(machine: Machine) -> None:
    """What was called in between is in no count, whatever the totals go on from."""
    machine.probe("load")
    machine.pins.link("drm_ioctl", "enter").unlink()
    machine.probe("load")
    assert machine.requests[1].since_ns > machine.requests[0].since_ns


@pytest.mark.parametrize(("asked", "slots"), [(64, 64), (65, 128), (8192, 8192), (10000, 16384), (65536, 65536)])
def test_cells_are_a_power_of_two(machine: Machine, asked: int, slots: int) -> None:
    machine.settings = f"kernel.max_slots = {asked}\n"
    machine.probe("load")
    assert machine.requests[0].slots == slots


@pytest.mark.parametrize("lost", SHARED_MAPS)
def test_counting_begins_anew_when_somebody_removed_a_pin(machine: Machine, errors: Errors, lost: str) -> None:
    machine.probe("load")
    left = machine.pins.root / "left"
    left.touch()
    machine.pins.map(lost).unlink()
    errors()
    machine.probe("load")
    assert machine.requests[1].since_ns > machine.requests[0].since_ns
    assert not left.exists()
    assert f"pins were missing ({lost}): totals since boot are gone" in errors()


@pytest.mark.parametrize(("module", "detached"), [(4711, []), (4712, ["drm_ioctl"]), (None, ["drm_ioctl"])])
def test_a_hook_on_a_module_that_was_reloaded_is_taken_off_first(
    machine: Machine, module: int | None, detached: list[str]
) -> None:
    write_state(machine.run_directory, (KPROBE,), 4711)
    machine.drm_module = module
    assert machine.probe("load") == 0
    assert machine.detached == [*detached, "file_ioctl"]  # for which there is no device
    assert read_state(machine.run_directory)[1] == module


def test_a_uprobe_does_not_mind_what_drm_does(machine: Machine) -> None:
    write_state(machine.run_directory, (KPROBE,), None)
    assert machine.probe("load", "--uprobe", "/bin/work:f") == 0
    assert (machine.detached, machine.iterators) == (["file_ioctl"], [])


def test_the_store_is_closed_when_rules_cannot_be_written(machine: Machine, errors: Errors) -> None:
    (machine.run_directory / "rules.lock").mkdir(parents=True)
    assert machine.probe("load") == 1
    assert "rules.lock" in errors()
    assert [store.closed for store in machine.stores] == [True]


def test_unload_removes_every_pin_and_forgets_the_hook(machine: Machine, errors: Errors) -> None:
    machine.probe("load")
    errors()
    assert machine.probe("unload") == 0
    assert not machine.pins.directory.exists()
    assert read_state(machine.run_directory) == ((), None)
    pins = (*SHARED_MAPS, *FILE_IOCTL.maps, *DRM_IOCTL.required)
    assert errors() == f"removed {len(pins)} pins below {machine.pins.directory}\n"
    assert machine.probe("unload") == 0


def test_status_is_json_on_stdout(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.probe("status") == 0
    assert json.loads(capsys.readouterr().out) == []
    write_state(machine.run_directory, (KPROBE,), 1)
    assert machine.probe("status") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [HookStatus(**hook) for hook in json.loads(out)] == [KPROBE]
