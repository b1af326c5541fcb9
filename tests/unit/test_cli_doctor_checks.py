# SPDX-License-Identifier: Apache-2.0
"""The checks of `kubenpuctl doctor`: what each must call well, a warning and a failure; and that it fails alone."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from kubenpu.cli import doctor_checks
from kubenpu.cli.doctor_checks import CHECKS
from kubenpu.cli.doctor_findings import FAIL, OK, WARN, Examination, Finding, examine
from kubenpu.config.settings import Settings
from kubenpu.identity import cri
from kubenpu.kernel import bpf
from kubenpu.kernel.pins import Pins, write_state
from kubenpu.model.errors import ConfigError, KernelError, SourceError
from kubenpu.model.sample import HookStatus
from tests.fakes.cri_server import FakeCri
from tests.fakes.grpc_service import silent_socket
from tests.fakes.sim_metrics import free_url, serve_text
from tests.fakes.sim_plan import DEVICES, IGPU, NPU
from tests.fakes.sim_sysfs import write_sysfs
from tests.unit.test_kernel_support import GOOD

WELL = """\
# TYPE kubenpu_build_info gauge
kubenpu_build_info{version="1.2.3"} 1
# TYPE kubenpu_source_up gauge
kubenpu_source_up{source="counters"} 1
kubenpu_source_up{source="devices"} 1
# TYPE kubenpu_events_dropped counter
kubenpu_events_dropped_total{reason="slots_full"} 0
# TYPE kubenpu_attribution_imbalance gauge
kubenpu_attribution_imbalance{device="0000:00:02.0"} 0
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        run_directory=tmp_path / "run",
        listen_addresses=(":10074",),
        telemetry_path="/metrics",
        systemd_socket=False,
        web_config_file="",
        dbus_address="",
        varlink_address="",
        log_level="info",
        log_format="logfmt",
        pin_directory=tmp_path / "pins",
        max_slots=64,
        cri_sockets=(),
        cgroup_root="",
        pod_labels=(),
        kubelet_socket="",
        retention_seconds=600,
        clients_interval_seconds=15,
        history_enabled=False,
        history_file=tmp_path / "usage.db",
        history_retention_days=90,
        history_max_mib=256,
        sysfs=tmp_path / "sys",
        drivers_directory=tmp_path / "drivers.d",
    )


@pytest.fixture
def node(settings: Settings) -> Examination:
    return Examination(settings, ("http://127.0.0.1:1/metrics",))


def findings(node: Examination, check: str) -> list[Finding]:
    return examine(node, [(name, do) for name, do in CHECKS if name == check])


def one(node: Examination, check: str) -> Finding:
    (finding,) = findings(node, check)
    return finding


def with_facts(node: Examination, **changes: object) -> Examination:
    node.__dict__["facts"] = replace(GOOD, **changes)  # type: ignore[arg-type]  # fields of any type
    return node


# Per case: check, facts that differ from GOOD, status, a word of what is found, a word of the remedy.
KERNELS: dict[str, tuple[str, dict[str, object], str, str, str]] = {
    "kernel": ("kernel", {}, OK, "6.12.117+deb13-amd64 x86_64", ""),
    "other machine": ("kernel", {"machine": "riscv64"}, FAIL, "riscv64", ""),
    "btf": ("btf", {}, OK, "vmlinux", ""),
    "no btf": ("btf", {"btf": False}, FAIL, "none; bcc is not installed; no headers", "CONFIG_DEBUG_INFO_BTF"),
    "no headers": ("btf", {"btf": False, "bcc": True}, FAIL, "none; no headers", "linux-headers-6.12.117+deb13"),
    "no bcc": ("btf", {"btf": False, "headers": True}, FAIL, "none; bcc is not", "bcc: Install python3-bpfcc"),
    "bcc": ("btf", {"btf": False, "headers": True, "bcc": True}, WARN, "none; bcc reads", "CONFIG_DEBUG_INFO_BTF"),
    "drm": ("drm", {}, OK, "loaded", ""),
    "no drm": ("drm", {"drm": False, "drm_btf": False}, WARN, "not loaded", "driver of your accelerator"),
    "drm without btf": ("drm", {"drm_btf": False}, WARN, "no BTF", "kprobe"),
    "bpffs": ("bpffs", {}, OK, "/sys/fs/bpf", ""),
    "no bpffs": ("bpffs", {"bpffs": False}, FAIL, "not mounted", "mount -t bpf"),
    "cgroup2": ("cgroup2", {}, OK, "/sys/fs/cgroup", ""),
    "hybrid": ("cgroup2", {"cgroup2": Path("/sys/fs/cgroup/unified")}, WARN, "hybrid, mounted on", "version 1"),
    "cgroup v1": ("cgroup2", {"cgroup2": None}, FAIL, "not mounted", "unified_cgroup_hierarchy"),
    "lockdown": ("lockdown", {"lockdown": "integrity"}, OK, "integrity", ""),
    "confidentiality": ("lockdown", {"lockdown": "confidentiality"}, WARN, "confidentiality", "lockdown=integrity"),
    "preemption": ("preemption", {"preemption": "none"}, OK, "none", ""),
    "lazy preemption": ("preemption", {"preemption": "lazy"}, OK, "lazy", "kprobe"),
    "full preemption": ("preemption", {"preemption": "full"}, OK, "full", "kprobe"),
    "unknown preemption": ("preemption", {"preemption": "unknown"}, OK, "unknown", "kprobe"),
    "mechanisms": ("mechanisms", {}, OK, "fentry, kprobe.multi, kprobe", ""),
    "bcc's": ("mechanisms", {"btf": False, "drm_btf": False}, OK, "kprobe.multi, kprobe (fentry: it needs the", ""),
    "no fentry": ("mechanisms", {"preemption": "rt"}, OK, "kprobe.multi, kprobe (fentry: with preemption", ""),
    "no way": ("mechanisms", {"drm_btf": False, "kprobes": False}, FAIL, "the kernel has no kprobes", ""),
    "not yet": ("mechanisms", {"drm": False}, OK, "not known until drm is loaded", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", KERNELS)
def test_kernel_checks(node: Examination, case: str) -> None:
    check, changes, status, found, remedy = KERNELS[case]
    finding = one(with_facts(node, **changes), check)
    assert finding.status == status
    assert found in finding.found
    assert remedy in finding.remedy
    assert bool(remedy) == bool(finding.remedy)


@pytest.mark.parametrize(
    ("user", "missing", "answer"),
    [
        (0, (), (OK, "all of kubenpu-probe")),
        (0, ("CAP_BPF",), (WARN, "root without CAP_BPF")),
        (1000, ("CAP_BPF", "CAP_PERFMON"), (OK, "not root")),
    ],
)
def test_capabilities(
    node: Examination, monkeypatch: pytest.MonkeyPatch, user: int, missing: tuple[str, ...], answer: tuple[str, str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    finding = one(with_facts(node, missing_capabilities=missing), "capabilities")
    assert (finding.status, finding.found) == answer


def test_no_libbpf(node: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise KernelError("libbpf.so.1 cannot be loaded", "Install libbpf1")

    monkeypatch.setattr(bpf, "library", missing)
    assert one(node, "libbpf").status == FAIL
    assert one(node, "libbpf").remedy == "Install libbpf1"


# ---- the hook ----


def attach(node: Examination, tmp_path: Path, mechanism: str, reason: str = "", module: int | None = None) -> None:
    """A state file as kubenpu-probe leaves it, and files where the pinned links would be."""
    write_state(node.settings.run_directory, (HookStatus("drm_ioctl", mechanism, reason, 1),), module)
    pins = Pins(node.settings.pin_directory)
    pins.make()
    for side in ("enter", "exit"):
        pins.link("drm_ioctl", side).touch()


def test_probe_never_ran(node: Examination) -> None:
    assert one(node, "hook").status == FAIL
    assert "start kubenpu-probe" in one(node, "hook").remedy


def test_hook_attached(node: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "DRM_MODULE", tmp_path)
    attach(node, tmp_path, "kprobe", "fentry: no BTF", tmp_path.stat().st_ino)
    assert one(node, "hook") == Finding("hook drm_ioctl", "kprobe, loader core (fentry: no BTF)", "attached and pinned")


def test_hook_off(node: Examination, tmp_path: Path) -> None:
    attach(node, tmp_path, "off", "drm is not loaded")
    assert (one(node, "hook").status, one(node, "hook").found) == (FAIL, "off (drm is not loaded)")


def test_a_hook_without_a_device_is_no_failure(node: Examination, tmp_path: Path) -> None:
    idle = HookStatus("file_ioctl", "off", "no such device", 1, needed=False)
    write_state(node.settings.run_directory, (idle,), None)
    node.settings.sysfs.mkdir()
    assert (one(node, "hook").status, one(node, "hook").found) == (OK, "off (no such device)")
    write_state(node.settings.run_directory, (replace(idle, mechanism="lsm", reason="", needed=True),), None)
    assert (one(node, "hook").status, one(node, "hook").found) == (FAIL, "its pins were removed")
    node.pins.make()
    node.pins.link("file_ioctl", "enter").touch()
    assert one(node, "hook") == Finding("hook file_ioctl", "lsm, loader core", "attached and pinned")
    assert len(findings(node, "mechanisms")) == 2


def test_hook_without_pins(node: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "DRM_MODULE", tmp_path / "absent")
    attach(node, tmp_path, "fentry")
    node.pins.link("drm_ioctl", "exit").unlink()
    assert (one(node, "hook").status, one(node, "hook").found) == (FAIL, "its pins were removed")


def test_drm_was_loaded_again(node: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "DRM_MODULE", tmp_path)
    attach(node, tmp_path, "fentry", module=tmp_path.stat().st_ino + 1)
    assert (one(node, "hook").status, "restart" in one(node, "hook").remedy) == (FAIL, True)
    attach(node, tmp_path, "uprobe", module=None)
    assert one(node, "hook").status == OK


def test_damaged_state_file(node: Examination) -> None:
    node.settings.run_directory.mkdir()
    (node.settings.run_directory / "probe.json").write_text('{"hooks": [')
    assert one(node, "hook").status == WARN
    assert "is damaged" in one(node, "hook").found


def test_no_counters(node: Examination) -> None:
    finding = one(node, "counters")
    assert (finding.status, finding.found) == (FAIL, "no map cells")


@pytest.mark.parametrize(("user", "status"), [(0, FAIL), (1000, WARN)])
def test_counters_of_others(node: Examination, monkeypatch: pytest.MonkeyPatch, user: int, status: str) -> None:
    def refuse(_path: Path) -> bpf.Map:
        raise KernelError("cannot open the pinned object: Operation not permitted", "Run as a user who may")

    monkeypatch.setattr(bpf.Map, "pinned", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert one(node, "counters").status == status


# ---- settings, devices and runtimes ----


def test_devices(node: Examination) -> None:
    write_sysfs(node.settings.sysfs, (IGPU, NPU))
    assert one(node, "devices") == Finding("devices", "2", "at least one, each with a driver table")


def test_device_without_a_table(node: Examination) -> None:
    write_sysfs(node.settings.sysfs, DEVICES)
    finding = one(node, "devices")
    assert (finding.status, finding.found) == (WARN, "4, without a table: 0000:65:00.0")


def test_no_devices(node: Examination) -> None:
    node.settings.sysfs.mkdir()
    assert (one(node, "devices").status, one(node, "devices").found) == (WARN, "none")


def test_no_sysfs(node: Examination) -> None:
    assert one(node, "devices").status == WARN


def test_unreadable_device_is_named(node: Examination) -> None:
    write_sysfs(node.settings.sysfs, (IGPU,))
    for name in ("uevent", "dev"):
        (node.settings.sysfs / "class" / "drm" / "card0" / name).write_text("")
    first, second = findings(node, "devices")
    assert (first.status, second.status) == (OK, WARN)
    assert "card0" in second.found


def test_driver_tables(node: Examination) -> None:
    assert one(node, "driver tables").status == OK
    node = Examination(node.settings, node.urls)
    node.settings.drivers_directory.mkdir()
    for name in ("a.toml", "b.toml"):
        (node.settings.drivers_directory / name).write_text("name = \x1b")
    wrong = findings(node, "driver tables")
    assert [finding.status for finding in wrong] == [FAIL, FAIL]
    assert all(str(node.settings.drivers_directory) in finding.found for finding in wrong)


def test_settings(node: Examination) -> None:
    assert one(node, "settings").status == OK
    broken = Examination(node.settings, node.urls, ConfigError("kubenpu.toml: line 3", ""))
    assert (one(broken, "settings").status, one(broken, "settings").found) == (FAIL, "kubenpu.toml: line 3")


def at_socket(node: Examination, path: Path) -> Examination:
    return Examination(replace(node.settings, cri_sockets=(path,)), node.urls)


def test_runtime_answers(node: Examination, tmp_path: Path) -> None:
    runtime = FakeCri(tmp_path / "s")
    runtime.start()
    try:
        finding = one(at_socket(node, tmp_path / "s"), "runtime")
    finally:
        runtime.stop()
    assert (finding.status, finding.found) == (OK, f"containerd fake at {tmp_path / 's'}")


def test_runtime_with_an_error(node: Examination, tmp_path: Path) -> None:
    runtime = FakeCri(tmp_path / "s")
    runtime.error = (grpc.StatusCode.INTERNAL, "out of \x1b[31mpaper")
    runtime.start()
    try:
        finding = one(at_socket(node, tmp_path / "s"), "runtime")
    finally:
        runtime.stop()
    assert finding.status == FAIL
    assert "INTERNAL" in finding.found


def test_silent_runtime_costs_its_deadline(node: Examination, tmp_path: Path) -> None:
    begin = time.monotonic()
    with silent_socket(tmp_path / "s"):
        finding = one(at_socket(node, tmp_path / "s"), "runtime")
    assert finding.status == FAIL
    assert time.monotonic() - begin < 5 * doctor_checks.RUNTIME_TIMEOUT_S


def test_no_runtime(node: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cri, "find_sockets", lambda _explicit: [])
    assert one(node, "runtime").status == WARN


# ---- the daemon ----


def scraped(settings: Settings, text: str, *checks: str) -> list[Finding]:
    with serve_text(text) as url:
        node = Examination(settings, (url,))
        return [one(node, check) for check in checks]


def test_daemon_is_well(settings: Settings) -> None:
    found = scraped(settings, WELL, "kubenpud", "sources", "losses", "balance")
    assert [f.status for f in found] == [OK] * 4
    assert [f.found for f in found] == ["version 1.2.3", "2 answer", "none since boot", "even"]


@pytest.mark.parametrize(
    ("check", "line", "status", "found"),
    [
        ("sources", 'kubenpu_source_up{source="cri:/run/x"} 0', FAIL, "no answer from cri:/run/x"),
        ("sources", 'kubenpu_source_up{source="dbus"} 0', WARN, "no answer from dbus"),
        ("losses", 'kubenpu_events_dropped_total{reason="no_storage"} 12', WARN, "no_storage: 12"),
        ("balance", 'kubenpu_attribution_imbalance{device="vgem"} -3', FAIL, "vgem: -3"),
    ],
)
def test_daemon_is_not_well(settings: Settings, check: str, line: str, status: str, found: str) -> None:
    (finding,) = scraped(settings, f"{WELL}{line}\n", check)
    assert (finding.status, finding.found) == (status, found)
    assert finding.remedy


def test_losses_say_what_is_missing(settings: Settings) -> None:
    lost = "".join(f'kubenpu_events_dropped_total{{reason="{reason}"}} 1\n' for reason in ("no_body", "of_next_year"))
    (finding,) = scraped(settings, WELL + lost, "losses")
    assert finding.remedy == "no_body: the hook fired with nothing behind it, missing is the call. of_next_year"


def test_somebody_else_answers(settings: Settings) -> None:
    (finding,) = scraped(settings, "# TYPE up gauge\nup 1\n", "kubenpud")
    assert (finding.status, finding.found) == (FAIL, "something that is not kubenpud")


def test_no_daemon(settings: Settings) -> None:
    node = Examination(settings, (free_url(),))
    assert one(node, "kubenpud").status == FAIL
    for check in ("sources", "losses", "balance"):
        assert (one(node, check).status, one(node, check).found) == (WARN, "not known: kubenpud does not answer")


# ---- the whole ----


def test_a_check_fails_alone(node: Examination) -> None:
    def source(_node: Examination) -> list[Finding]:
        raise SourceError("no moon", "Wait")

    def denied(_node: Examination) -> list[Finding]:
        raise PermissionError(13, "Permission denied")

    def gone(_node: Examination) -> list[Finding]:
        raise OSError(5, "Input/output error")

    def well(_node: Examination) -> list[Finding]:
        return [Finding("well", "a", "b")]

    found = examine(node, [("source", source), ("denied", denied), ("gone", gone), ("well", well)])
    assert [(f.check, f.status, f.remedy) for f in found] == [
        ("source", WARN, "Wait"),
        ("denied", WARN, "Run as root to see it"),
        ("gone", WARN, ""),
        ("well", OK, ""),
    ]
