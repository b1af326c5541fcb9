# SPDX-License-Identifier: Apache-2.0
"""Facts about a kernel, from texts as real kernels write them, and what follows from each."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.kernel import support
from kubenpu.kernel.hooks import DRM_IOCTL, FILE_IOCTL, MECHANISM_NAMES
from kubenpu.kernel.support import (
    BCC,
    KernelFacts,
    choose_loader,
    mechanism_refusal,
    obstacles,
    parse_bracketed,
    parse_capabilities,
    parse_preemption,
    read_facts,
)
from kubenpu.model import mounts

GOOD = KernelFacts(
    release="6.12.117+deb13-amd64",
    machine="x86_64",
    btf=True,
    drm=True,
    drm_btf=True,
    bpffs=True,
    cgroup2=Path("/sys/fs/cgroup"),
    lsms=("lockdown", "capability", "bpf"),
    lockdown="none",
    preemption="voluntary",
    ftrace=True,
    kprobes=True,
    missing_capabilities=(),
    bcc=False,
    headers=False,
)
# the lines about preemption of linux-config-6.1, -6.12 and -7.3, flavour amd64
DEBIAN_61 = """\
CONFIG_PREEMPT_BUILD=y
# CONFIG_PREEMPT_NONE is not set
CONFIG_PREEMPT_VOLUNTARY=y
# CONFIG_PREEMPT is not set
CONFIG_PREEMPT_COUNT=y
CONFIG_PREEMPTION=y
CONFIG_PREEMPT_DYNAMIC=y
CONFIG_PREEMPT_RCU=y
CONFIG_HAVE_PREEMPT_DYNAMIC=y
CONFIG_PREEMPT_NOTIFIERS=y
CONFIG_DRM_I915_PREEMPT_TIMEOUT=640
# CONFIG_DEBUG_PREEMPT is not set
"""
DEBIAN_612 = DEBIAN_61.replace("CONFIG_PREEMPT_COUNT", "# CONFIG_PREEMPT_RT is not set\nCONFIG_PREEMPT_COUNT")
DEBIAN_73 = """\
CONFIG_PREEMPT_BUILD=y
CONFIG_ARCH_HAS_PREEMPT_LAZY=y
# CONFIG_PREEMPT is not set
CONFIG_PREEMPT_LAZY=y
# CONFIG_PREEMPT_RT is not set
CONFIG_PREEMPT_COUNT=y
CONFIG_HAS_SEPARATE_PREEMPT_RESCHED_BITS=y
CONFIG_PREEMPTION=y
CONFIG_PREEMPT_DYNAMIC=y
"""
FULL = "CONFIG_PREEMPT=y\nCONFIG_PREEMPT_DYNAMIC=y\n"
DYNAMIC = "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1 (2026-11-14)"
RT = "#1 SMP PREEMPT_RT Debian 6.12.117-1 (2026-11-14)"
SERVER = "#1 SMP Debian 5.10.251-1 (2026-03-01)"
DESKTOP = "#1 SMP PREEMPT Mon Jan 5 10:00:00 UTC 2026"
BOOT = "BOOT_IMAGE=/boot/vmlinuz-6.12 root=UUID=3f ro quiet"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("none [integrity] confidentiality\n", "integrity"),
        ("[none] integrity confidentiality\n", "none"),
        ("none integrity [confidentiality]\n", "confidentiality"),
        ("none voluntary (full) lazy \n", "full"),
        ("(none) voluntary full \n", "none"),
        ("none voluntary full\n", None),
        ("[]\n", None),
        ("", None),
    ],
)
def test_bracketed(text: str, word: str | None) -> None:
    assert parse_bracketed(text) == word


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        ("000001ffffffffff", ()),
        ("000000c000200000", ()),
        ("000000c000000000", ("CAP_SYS_ADMIN",)),
        ("0000004000200000", ("CAP_BPF",)),
        ("0000008000200000", ("CAP_PERFMON",)),
        ("0000000000000000", ("CAP_SYS_ADMIN", "CAP_PERFMON", "CAP_BPF")),
    ],
)
def test_capabilities(value: str, missing: tuple[str, ...]) -> None:
    """Only the effective set counts: what is merely permitted or bounding cannot be used."""
    status = (
        "Name:\tkubenpu-probe\nUmask:\t0022\nCapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\n"
        f"CapEff:\t{value}\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t0\n"
    )
    assert parse_capabilities(status) == missing


@pytest.mark.parametrize("status", ["", "Name:\tx\nCapEff:\n", "Name:\tCapEff: ffffffffffffffff\n"])
def test_capabilities_that_cannot_be_read_are_missing(status: str) -> None:
    assert parse_capabilities(status) == ("CAP_SYS_ADMIN", "CAP_PERFMON", "CAP_BPF")


@pytest.mark.parametrize(
    ("debugfs", "version", "cmdline", "config", "model"),
    [
        ("none voluntary (full) lazy \n", DYNAMIC, BOOT, DEBIAN_612, "full"),
        ("none voluntary full (lazy) \n", DYNAMIC, f"{BOOT} preempt=full", DEBIAN_73, "lazy"),
        ("", DYNAMIC, BOOT, DEBIAN_61, "voluntary"),
        ("", DYNAMIC, BOOT, DEBIAN_612, "voluntary"),
        ("", DYNAMIC, BOOT, DEBIAN_73, "lazy"),
        ("", DYNAMIC, BOOT, FULL, "full"),
        ("", DYNAMIC, BOOT, "CONFIG_PREEMPT_NONE=y\n", "none"),
        ("", DYNAMIC, BOOT, "", "unknown"),
        ("", DYNAMIC, f"{BOOT} preempt=full\n", DEBIAN_612, "full"),
        ("", DYNAMIC, f"preempt=full {BOOT} preempt=none\n", DEBIAN_612, "none"),
        ("", DYNAMIC, f"{BOOT} preempt=fool\n", DEBIAN_612, "voluntary"),
        ("", DYNAMIC, f"{BOOT} some.preempt=full\n", DEBIAN_612, "voluntary"),
        ("", RT, BOOT, "CONFIG_PREEMPT_LAZY=y\nCONFIG_PREEMPT_RT=y\n", "rt"),
        ("none voluntary full (lazy)\n", RT, BOOT, "", "rt"),
        ("", SERVER, f"{BOOT} preempt=full", "", "voluntary"),
        ("", DESKTOP, BOOT, "", "full"),
        ("", DESKTOP, BOOT, FULL, "full"),
        ("", DESKTOP, BOOT, "# CONFIG_PREEMPT is not set\nCONFIG_PREEMPT_LAZY=y\n", "lazy"),  # Debian's 7.3 on arm64
    ],
)
def test_preemption(debugfs: str, version: str, cmdline: str, config: str, model: str) -> None:
    assert parse_preemption(debugfs, version, cmdline, config) == model


@given(*[st.text(max_size=60)] * 4)
def test_any_text_gives_an_answer(first: str, second: str, third: str, fourth: str) -> None:
    assert parse_preemption(first, second, third, fourth)
    parse_capabilities(first)


@pytest.mark.parametrize(
    ("release", "older"),
    [("5.15.0-91-generic", True), ("6.0.12", True), ("6.1.0-50-amd64", False), ("10.0", False), ("odd", False)],
)
def test_older_kernel(release: str, older: bool) -> None:
    assert replace(GOOD, release=release).older_than(6, 1) is older


# ---- what follows ----


def test_a_good_kernel_has_no_obstacle_and_refuses_nothing() -> None:
    assert obstacles(GOOD) == ()
    for hook in (DRM_IOCTL, FILE_IOCTL):
        assert not any(mechanism_refusal(GOOD, each.name, hook is DRM_IOCTL) for each in hook.mechanisms)


@pytest.mark.parametrize(
    ("facts", "cause", "remedy"),
    [
        (replace(GOOD, missing_capabilities=("CAP_BPF", "CAP_PERFMON")), "lacks CAP_BPF, CAP_PERFMON", "as root"),
        (replace(GOOD, btf=False, headers=True), "bcc is not installed", "python3-bpfcc (python3-bcc on Fedora)"),
        (replace(GOOD, btf=False, bcc=True), "/lib/modules/6.12.117+deb13-amd64/build", "linux-headers-6.12.117+deb13"),
        (replace(GOOD, bpffs=False), "no bpffs", "mount -t bpf bpf /sys/fs/bpf"),
        (replace(GOOD, cgroup2=None), "no cgroup version 2", "systemd.unified_cgroup_hierarchy=1"),
    ],
)
def test_each_obstacle_has_its_cause_and_remedy(facts: KernelFacts, cause: str, remedy: str) -> None:
    found = obstacles(facts)[-1]
    assert cause in found.cause
    assert remedy in found.remedy
    assert not found.cause.endswith(".")
    assert not found.remedy.endswith(".")


def test_all_obstacles_at_once() -> None:
    worst = replace(GOOD, missing_capabilities=("CAP_BPF",), btf=False, bpffs=False, cgroup2=None)
    assert len(obstacles(worst)) == 6


HEADERS = replace(GOOD, bcc=True, headers=True)


@pytest.mark.parametrize(
    ("facts", "asked", "loader", "in_the_way"),
    [
        (GOOD, "auto", "core", 0),
        (GOOD, "core", "core", 0),
        (GOOD, "bcc", "bcc", 2),
        (HEADERS, "auto", "core", 0),
        (HEADERS, "bcc", "bcc", 0),
        (replace(HEADERS, btf=False), "auto", "bcc", 0),
        (replace(HEADERS, btf=False), "core", "core", 1),
        (replace(HEADERS, btf=False, bcc=False), "auto", "bcc", 2),
        (replace(GOOD, btf=False), "auto", "bcc", 3),
        (replace(GOOD, btf=False), "bcc", "bcc", 3),
    ],
)
def test_loader(facts: KernelFacts, asked: str, loader: str, in_the_way: int) -> None:
    """The kernel's BTF where there is one; both missing pieces of the other loader are told at once."""
    assert choose_loader(facts, asked) == loader
    found = obstacles(facts, asked)
    assert len(found) == in_the_way
    assert [o.cause for o in found if "no BTF" in o.cause] == ([found[0].cause] if found and not facts.btf else [])


@pytest.mark.parametrize("mechanism", MECHANISM_NAMES)
def test_without_types_of_the_kernel_only_kprobes_are_left(mechanism: str) -> None:
    for facts, words in ((GOOD, "BTF"), (replace(GOOD, btf=False), "there is none")):
        refusal = mechanism_refusal(facts, mechanism, True, BCC)
        assert (refusal is None) == mechanism.startswith("kprobe")
        assert refusal is None or refusal.endswith(words)


def test_what_only_makes_counting_worse_is_no_obstacle() -> None:
    poor = replace(GOOD, drm=False, drm_btf=False, lockdown="confidentiality", preemption="rt", ftrace=False)
    assert obstacles(replace(poor, kprobes=False)) == ()


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        (replace(GOOD, drm_btf=False), {"fentry": "drm has no BTF (/sys/kernel/btf/drm)"}),
        (replace(GOOD, ftrace=False), {"fentry": "kernel.ftrace_enabled is 0"}),
        (replace(GOOD, preemption="full"), {"fentry": "preemption model full"}),
        (replace(GOOD, preemption="rt"), {"fentry": "preemption model rt"}),
        (replace(GOOD, preemption="lazy"), {"fentry": "preemption model lazy"}),
        (replace(GOOD, preemption="unknown"), {"fentry": "preemption model unknown"}),
        (replace(GOOD, lockdown="integrity"), {}),
        (replace(GOOD, lsms=("lockdown", "bpfish")), {"lsm": "BPF security module is off"}),
        (replace(GOOD, lockdown="confidentiality"), {"kprobe": "lockdown", "kprobe.multi": "lockdown"}),
        (replace(GOOD, kprobes=False), {"kprobe": "no kprobes", "kprobe.multi": "no kprobes"}),
    ],
)
def test_refusals(facts: KernelFacts, refused: dict[str, str]) -> None:
    """Exactly these mechanisms are refused, each with its reason; a uprobe never is."""
    found = {name: mechanism_refusal(facts, name, True) for name in (*MECHANISM_NAMES, "uprobe")}
    assert {name for name, reason in found.items() if reason} == set(refused)
    for name, words in refused.items():
        assert words in (found[name] or "")


def test_btf_of_drm_matters_to_functions_of_drm_only() -> None:
    assert mechanism_refusal(replace(GOOD, drm_btf=False), "fentry", in_drm=False) is None


# ---- a whole machine ----

MOUNTS = """\
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0
bpf /sys/fs/bpf bpf rw,nosuid,nodev,noexec,relatime,mode=700 0 0
"""
HOST = {
    "proc/self/mounts": MOUNTS,
    "proc/self/status": "CapPrm:\t000001ffffffffff\nCapEff:\t000000c000200000\n",
    "proc/cmdline": BOOT,
    "proc/modules": "i915 4096 3 - Live 0x0\ndrm 790528 5 i915, Live 0x0\n",
    "proc/sys/kernel/ftrace_enabled": "1\n",
    "boot/config-6.12.117+deb13-amd64": DEBIAN_612,
    "sys/kernel/btf/vmlinux": "",
    "sys/kernel/btf/drm": "",
    "sys/kernel/security/lsm": "lockdown,capability,bpf",
    "sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
    "sys/module/drm/initstate": "live\n",
    "sys/bus/event_source/devices/kprobe/type": "8\n",
}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Debian 13 host below a directory: what is no file there does not exist."""
    for name, text in HOST.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    uname = os.uname_result(("Linux", "node", GOOD.release, DYNAMIC, "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: uname)
    monkeypatch.setattr(support, "_PREEMPT_DEBUG", tmp_path / "sys/kernel/debug/sched/preempt")
    monkeypatch.syspath_prepend(str(tmp_path / "python"))
    for module in (support, mounts):
        monkeypatch.setattr(module, "Path", lambda name: tmp_path / name.removeprefix("/"))
    return tmp_path


def test_facts_of_a_debian_host(host: Path) -> None:
    facts = read_facts()
    assert facts == replace(GOOD, cgroup2=host / "sys/fs/cgroup/unified")


@pytest.mark.parametrize(
    ("gone", "field", "value"),
    [
        ("sys/kernel/btf/vmlinux", "btf", False),
        ("sys/kernel/btf/drm", "drm_btf", False),
        ("sys/bus/event_source/devices/kprobe/type", "kprobes", False),
        ("sys/kernel/security/lockdown", "lockdown", "none"),
        ("boot/config-6.12.117+deb13-amd64", "preemption", "unknown"),
        ("proc/self/status", "missing_capabilities", ("CAP_SYS_ADMIN", "CAP_PERFMON", "CAP_BPF")),
    ],
)
def test_facts_without_a_file(host: Path, gone: str, field: str, value: object) -> None:
    (host / gone).unlink()
    if not any((host / gone).parent.iterdir()):
        (host / gone).parent.rmdir()
    facts = read_facts()
    assert getattr(facts, field) == value
    assert facts == replace(GOOD, cgroup2=host / "sys/fs/cgroup/unified", **{field: value})  # type: ignore[arg-type]  # by name


def test_facts_with_drm_built_in_or_absent(host: Path) -> None:
    (host / "sys/kernel/btf/drm").unlink()
    (host / "proc/modules").write_text("drm_kms_helper 4096 0 - Live 0x0\n")
    assert read_facts().drm_btf  # built in: its types are in vmlinux
    (host / "sys/module/drm/initstate").unlink()
    (host / "sys/module/drm").rmdir()
    facts = read_facts()
    assert (facts.drm, facts.drm_btf) == (False, False)


def test_facts_for_the_second_loader(host: Path) -> None:
    (host / "python/bcc").mkdir(parents=True)
    (host / "python/bcc/__init__.py").write_text("1 / 0\n")  # looked for, not imported
    generated = host / f"lib/modules/{GOOD.release}/build/include/generated"
    generated.mkdir(parents=True)
    facts = read_facts()
    assert (facts.bcc, facts.headers) == (True, False)
    (generated / "autoconf.h").write_text("#define CONFIG_BPF 1\n")
    assert read_facts().headers


def test_facts_with_the_configuration_in_the_kernel(host: Path) -> None:
    (host / "proc/config.gz").write_bytes(gzip.compress(DEBIAN_73.encode()))
    assert read_facts().preemption == "lazy"


@pytest.mark.parametrize("damage", ["no gzip", "cut", "body"])
def test_a_damaged_configuration_is_none(host: Path, damage: str) -> None:
    whole = gzip.compress(FULL.encode(), mtime=0)
    texts = {"no gzip": b"CONFIG_PREEMPT=y\n", "cut": whole[:-4], "body": whole[:10] + b"\xff" * 9}
    (host / "proc/config.gz").write_bytes(texts[damage])
    assert read_facts().preemption == "voluntary"  # as /boot says


def test_facts_with_ftrace_switched_off(host: Path) -> None:
    (host / "proc/sys/kernel/ftrace_enabled").write_text("0\n")
    assert not read_facts().ftrace


def test_facts_of_this_machine() -> None:
    facts = read_facts()
    assert facts.release == os.uname().release
    assert facts.lockdown in ("none", "integrity", "confidentiality")
    assert facts.preemption in ("none", "voluntary", "lazy", "full", "rt", "unknown")
