# SPDX-License-Identifier: Apache-2.0
"""The units: systemd accepts them, every privilege says what it is for, and what was taken away stays away."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.devices.tables import load_tables
from kubenpu.model.device import DriverTable
from make_pages import PAGES
from tests.rules.tree import ROOT, files, shown
from tests.vm.guest.tightened import SEEN_OTHERWISE, TIGHTENED

SERVICES = [path for path in files(".service", below="systemd") if path.parent.name == "systemd"]
UNITS = [*SERVICES, *files(".socket", below="systemd")]
# systemd's measure times ten; lower is better, 20 is what the daemon must not exceed.
MOST_EXPOSED = {"kubenpud.service": 20, "kubenpu-probe.service": 20, "kubenpu-clients.service": 20}
# Debian's package of each program that a unit or udev calls: essential there, or one that ours depends on.
PACKAGE_OF = {
    "/bin/false": "coreutils",
    "/bin/sh": "dash",
    "/usr/bin/systemctl": "systemd",
    "mount": "mount",
    "mountpoint": "util-linux",
    "nsenter": "util-linux",
}
ESSENTIAL = {"coreutils", "dash", "util-linux"}
BUILTIN = {"kill"}
# `make deps` installs it, so the tests of a whole run have it.
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: make deps")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with our units, what they start and the units of systemd that they are ordered against."""
    units = tmp_path / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for path in UNITS:
        shutil.copy(path, units)
        for command in re.findall(r"^Exec\w+=\+?(\S+)", path.read_text(), re.M):
            program = tmp_path / command.lstrip("/")
            program.parent.mkdir(parents=True, exist_ok=True)
            program.touch(mode=0o755)
    for name in ("basic", "multi-user", "network", "shutdown", "sockets", "sysinit"):
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n")
    return tmp_path


def analyze(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", f"--root={root}", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@needs_systemd
def test_systemd_accepts_the_units(root: Path) -> None:
    done = analyze(root, "verify", "--man=no", *(path.name for path in UNITS))
    assert (done.returncode, done.stdout) == (0, "")


def commands() -> Iterator[str]:
    """What the units and udev's rules call, and what the shell calls for them."""
    for path in files(".service", ".socket", ".rules", below="systemd"):
        text = path.read_text()
        for line in re.findall(r"^Exec\w*=[-+!@:|]*(.+)$", text, re.M) + re.findall(r'RUN[^"]*"([^"]*)"', text):
            program, *words = shlex.split(line)
            yield program
            if words[:1] == ["-c"]:
                yield from re.findall(r"(?:^|[;&|(] *|-m )([\w/.-]+)", words[1])


def test_every_program_that_is_called_is_there() -> None:
    """Of ours, or of a package that no Debian lacks once ours is installed."""
    makefile, control = (ROOT / "Makefile").read_text(), (ROOT / "packaging/debian/control").read_text()
    (depends,) = re.findall(r"^Package: kubenpu\n(?:.*\n)*?Depends:\n((?: .*\n)+)", control, re.M)
    there = ESSENTIAL | set(re.findall(r"^ ([\w.-]+)", depends, re.M))
    called = set(commands()) - BUILTIN
    ours = {program for program in called if Path(program).name in ("kubenpud", "kubenpu-probe", "kubenpu-clients")}
    assert [program for program in ours if f"/{Path(program).name}" not in makefile] == []
    assert called - ours == set(PACKAGE_OF)
    assert set(PACKAGE_OF.values()) <= there


@pytest.mark.parametrize("path", UNITS, ids=shown)
def test_units_name_their_pages(path: Path) -> None:
    (named,) = re.findall(r"^Documentation=(.*)$", path.read_text(), re.M)
    assert {word.removeprefix("man:") for word in named.split()} <= {page.reference for page in PAGES}


@needs_systemd
@pytest.mark.parametrize("path", SERVICES, ids=shown)
def test_units_are_confined(root: Path, path: Path) -> None:
    threshold = f"--threshold={MOST_EXPOSED[path.name]}"
    done = analyze(root, "security", "--offline=yes", threshold, path.name)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SERVICES, ids=shown)
def test_every_capability_says_which_call_needs_it(path: Path) -> None:
    text = path.read_text()
    (granted,) = re.findall(r"^CapabilityBoundingSet=(.*)$", text, re.M)
    explained = set(re.findall(r"^# (CAP_\w+): ", text, re.M))
    assert set(granted.split()) == explained


@pytest.mark.parametrize("path", SERVICES, ids=shown)
def test_a_guest_tries_to_do_without_each_privilege(path: Path) -> None:
    """Capabilities, address families, system calls, devices and what is `# Not` set: all in tests/vm, nothing else."""
    text = path.read_text()
    claims = set(re.findall(r"^# (?:Not )?((?:CAP_|AF_)\w+|\w+=[\w-]+): ", text, re.M))
    for words in re.findall(r"^SystemCallFilter=(\w.*)$", text, re.M):
        claims |= set(words.split())
    tried = {(each.unit, each.what) for each in TIGHTENED} | SEEN_OTHERWISE
    assert claims == {what for unit, what in tried if unit == path.name}


@pytest.mark.parametrize("path", SERVICES, ids=shown)
def test_every_device_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    granted = re.findall(r"^(DeviceAllow=[\w-]+)", text, re.M)
    assert granted == re.findall(r"^# (DeviceAllow=[\w-]+): ", text, re.M)


@pytest.mark.parametrize("path", SERVICES, ids=shown)
def test_every_address_family_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    (granted,) = re.findall(r"^RestrictAddressFamilies=(.*)$", text, re.M)
    assert set(granted.split()) - {"none"} == set(re.findall(r"^# (AF_\w+): ", text, re.M))


def test_daemon_has_no_capability() -> None:
    assert "\nCapabilityBoundingSet=\n" in (ROOT / "systemd/kubenpud.service").read_text()


def test_a_wrong_setting_ends_the_starts() -> None:
    """At once where the exit code says so, else when the limit is reached, for which starts must come fast enough."""
    unit = (ROOT / "systemd/kubenpud.service").read_text()
    assert f"\nRestartPreventExitStatus=2 {os.EX_CONFIG}\n" in unit
    pause, minutes, starts = (
        int(re.findall(rf"^{name}=(\d+)", unit, re.M)[0])
        for name in ("RestartSec", "StartLimitIntervalSec", "StartLimitBurst")
    )
    assert pause * starts < minutes * 60 / 2


def test_every_unit_is_installed() -> None:
    """Units by pattern, the other files by name."""
    makefile = (ROOT / "Makefile").read_text()
    others = [path for path in files("", below="systemd") if path not in UNITS]
    assert [shown(path) for path in others if shown(path) not in makefile] == []
    assert "$(UNITS)" in makefile


def test_udev_knows_every_node_that_may_be_the_first_to_hook() -> None:
    """But for heaps of shared buffers, which are no accelerators, and for what is found by number: those by module."""
    rules = (ROOT / "systemd/99-kubenpu.rules").read_text()
    names = {name for line in re.findall(r'KERNEL=="([^"]*)"', rules) for name in line.split("|")}
    classes = {name for line in re.findall(r'SUBSYSTEM=="([^"]*)"', rules) for name in line.split("|")}
    wanted = {
        match.devname if match.devname.startswith("tenstorrent") else match.devname.split("/")[-1]
        for table in load_tables(Path("/nonexistent")).tables
        for interface in table.interfaces
        for match in interface.nodes
        if match.devname and match.minors is None and not match.devname.startswith(("vfio/", "dma_heap/"))
    }
    modules = {"drm", "nvidia", "nvidia_uvm", "nvidia_modeset"}
    tables = load_tables(Path("/nonexistent")).tables
    others = {table.name for table in tables if table.scheduled or _has_early_calls(table)}
    assert names == wanted | modules | others
    assert classes == {"accel", "drm", "module", "pci", "vfio", "vfio-dev"}


def test_udev_knows_every_device_whose_jobs_are_timed_and_of_early_calls() -> None:
    """By its driver, else by its name."""
    rules = (ROOT / "systemd/99-kubenpu.rules").read_text()
    timed = [table for table in load_tables(Path("/nonexistent")).tables if table.scheduled]
    early = [table for table in load_tables(Path("/nonexistent")).tables if _has_early_calls(table)]
    interfaces = [interface for table in (*timed, *early) for interface in table.interfaces]
    for key, wanted in (
        ("DRIVERS", {name for interface in interfaces for name in interface.uevent_drivers}),
        ("KERNELS", {name for interface in interfaces for name in interface.sysfs_names}),
    ):
        (found,) = re.findall(rf'SUBSYSTEM=="(?:accel|accel\|drm)", {key}=="([^"]*)", ENV', rules)
        assert set(found.split("|")) == wanted
    (modules,) = re.findall(r'ACTION=="remove", SUBSYSTEM=="module", KERNEL=="([^"]*)"', rules)
    assert set(modules.split("|")) == {table.name for table in (*timed, *early)}


def _has_early_calls(table: DriverTable) -> bool:
    return any(rule.early for interface in table.interfaces for rule in interface.ioctls)


def test_udev_never_starts_what_was_stopped() -> None:
    rules = (ROOT / "systemd/99-kubenpu.rules").read_text()
    commands = re.findall(r'RUN\+="([^"]*)"', rules)
    assert set(commands) == {
        "/usr/bin/systemctl --no-block --job-mode=fail try-reload-or-restart kubenpu-probe.service"
    }
