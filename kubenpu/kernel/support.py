# SPDX-License-Identifier: Apache-2.0
"""Facts about this kernel, read from procfs and sysfs, and what follows from them.

Only features are asked for, never the version. Each fact that stands in the way comes with its remedy.
Reads files only; loads and attaches nothing.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from kubenpu.model.mounts import find_mount

CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
UNPREEMPTED = ("none", "voluntary")  # models in which a program runs to its end
AUTO, CORE, BCC = "auto", "core", "bcc"  # loaders: by the kernel's BTF, or by its headers
LOADERS = (AUTO, CORE, BCC)
_PREEMPT_DEBUG = Path("/sys/kernel/debug/sched/preempt")


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What matters for counting. `lockdown` is none, integrity or confidentiality; `preemption` none, voluntary, lazy,
    full, rt or unknown; `drm` loaded, absent; `cgroup2` the mount point or None; `lsms` the security modules in force;
    `bcc` whether Python has it, `headers` whether those of this kernel are installed.
    """

    release: str
    machine: str
    btf: bool
    drm: bool
    drm_btf: bool
    bpffs: bool
    cgroup2: Path | None
    lsms: tuple[str, ...]
    lockdown: str
    preemption: str
    ftrace: bool
    kprobes: bool
    missing_capabilities: tuple[str, ...]
    bcc: bool
    headers: bool

    def older_than(self, major: int, minor: int) -> bool:
        """For the wording of an error only: what is possible is asked of the kernel, not of its version."""
        found = re.match(r"(\d+)\.(\d+)", self.release)
        return found is not None and (int(found.group(1)), int(found.group(2))) < (major, minor)


def _text(path: Path) -> str:
    """The text of a small file, "" when it cannot be read: an unreadable optional file is no error."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _config(release: str) -> str:
    """The kernel's build configuration, "" when neither the kernel nor its files have it."""
    try:
        return gzip.decompress(Path("/proc/config.gz").read_bytes()).decode(errors="replace")
    except (OSError, EOFError, zlib.error):
        return _text(Path(f"/boot/config-{release}")) or _text(Path(f"/lib/modules/{release}/config"))


def parse_bracketed(text: str) -> str | None:
    """`none [integrity] confidentiality` -> integrity; None without brackets. Parentheses count too."""
    found = re.search(r"[\[(](\w+)[\])]", text)
    return found.group(1) if found else None


def parse_capabilities(status: str) -> tuple[str, ...]:
    """Names of CAPABILITIES that the effective set of a /proc/PID/status text lacks."""
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.M)
    have = int(found.group(1), 16) if found else 0
    return tuple(name for name, bit in CAPABILITIES.items() if not have >> bit & 1)


def parse_preemption(debugfs: str, version: str, cmdline: str, config: str) -> str:
    """The preemption model: the running one where debugfs tells, else boot parameter, else build configuration."""
    if "PREEMPT_RT" in version:
        return "rt"
    running = parse_bracketed(debugfs)
    if running:
        return running
    if "PREEMPT" not in version:
        return "voluntary"
    asked = re.findall(r"(?<!\S)preempt=(none|voluntary|full|lazy)(?!\S)", cmdline)
    if asked:
        return str(asked[-1])
    for name, model in (("_NONE", "none"), ("_VOLUNTARY", "voluntary"), ("_LAZY", "lazy"), ("", "full")):
        if re.search(rf"^CONFIG_PREEMPT{name}=y", config, re.M):
            return model
    return "unknown" if "PREEMPT_DYNAMIC" in version else "full"


def read_facts() -> KernelFacts:
    """Asks this machine."""
    uname = os.uname()
    mounts = _text(Path("/proc/self/mounts"))
    symbols = Path("/sys/module/drm").is_dir()
    return KernelFacts(
        release=uname.release,
        machine=uname.machine,
        btf=Path("/sys/kernel/btf/vmlinux").exists(),
        drm=symbols,
        drm_btf=Path("/sys/kernel/btf/drm").exists() or (symbols and not _is_module("drm")),
        bpffs=find_mount(mounts, "bpf", "/sys/fs/bpf") == Path("/sys/fs/bpf"),
        cgroup2=find_mount(mounts, "cgroup2"),
        lsms=tuple(filter(None, _text(Path("/sys/kernel/security/lsm")).strip().split(","))),
        lockdown=parse_bracketed(_text(Path("/sys/kernel/security/lockdown"))) or "none",
        preemption=parse_preemption(
            _text(_PREEMPT_DEBUG),
            uname.version,
            _text(Path("/proc/cmdline")),
            _config(uname.release),
        ),
        ftrace=_text(Path("/proc/sys/kernel/ftrace_enabled")).strip() != "0",
        kprobes=Path("/sys/bus/event_source/devices/kprobe").is_dir(),
        missing_capabilities=parse_capabilities(_text(Path("/proc/self/status"))),
        bcc=importlib.util.find_spec("bcc") is not None,
        headers=bool(_text(Path(f"/lib/modules/{uname.release}/build/include/generated/autoconf.h"))),
    )


def _is_module(name: str) -> bool:
    return any(line.startswith(f"{name} ") for line in _text(Path("/proc/modules")).splitlines())


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A fact that makes counting impossible or worse: what is wrong and what to do."""

    cause: str
    remedy: str


def choose_loader(facts: KernelFacts, asked: str = AUTO) -> str:
    """core where the kernel has BTF, else bcc, unless one was asked for. Pure."""
    if asked != AUTO:
        return asked
    return CORE if facts.btf else BCC


def without_btf(facts: KernelFacts) -> tuple[Obstacle, ...]:
    """What loader bcc lacks here. Pure."""
    found = []
    if not facts.bcc:
        found.append(Obstacle("bcc is not installed", "Install python3-bpfcc (python3-bcc on Fedora)"))
    if not facts.headers:
        missing = f"no headers of this kernel (/lib/modules/{facts.release}/build)"
        package = f"Install linux-headers-{facts.release} (kernel-devel-{facts.release} on Fedora)"
        found.append(Obstacle(missing, package))
    return tuple(found)


def obstacles(facts: KernelFacts, asked: str = AUTO) -> tuple[Obstacle, ...]:
    """What prevents loading any program at all with this loader. Empty: go on. Pure."""
    found: list[Obstacle] = []
    if facts.missing_capabilities:
        names = ", ".join(facts.missing_capabilities)
        found.append(Obstacle(f"this process lacks {names}", "Run kubenpu-probe as root or from its unit"))
    lacking = without_btf(facts) if choose_loader(facts, asked) == BCC else ()
    if not facts.btf and (asked == CORE or lacking):
        found.append(
            Obstacle(
                f"kernel {facts.release} has no BTF (/sys/kernel/btf/vmlinux)",
                "Use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as every current distribution's is"
                + (", or loader bcc" if lacking else ""),
            )
        )
    found += lacking
    if not facts.bpffs:
        found.append(Obstacle("no bpffs is mounted on /sys/fs/bpf", "Run: mount -t bpf bpf /sys/fs/bpf"))
    if facts.cgroup2 is None:
        found.append(
            Obstacle(
                "no cgroup version 2 hierarchy is mounted",
                "Boot with systemd.unified_cgroup_hierarchy=1; on version 1 pods cannot be told apart",
            )
        )
    return tuple(found)


def mechanism_refusal(facts: KernelFacts, mechanism: str, in_drm: bool, loader: str = CORE) -> str | None:
    """Why a mechanism is not worth trying on this kernel, None when it is. `in_drm`: for a function of drm. Pure."""
    if loader == BCC and mechanism in ("lsm", "fentry"):
        return "it needs the kernel's BTF" + ("" if facts.btf else ", and there is none")
    if mechanism == "lsm" and "bpf" not in facts.lsms:
        return "the BPF security module is off (lsm= on the kernel's command line)"
    if mechanism == "fentry":
        if in_drm and not facts.drm_btf:
            return "drm has no BTF (/sys/kernel/btf/drm)"
        if not facts.ftrace:
            return "kernel.ftrace_enabled is 0"
        if facts.preemption not in UNPREEMPTED:
            return f"with preemption model {facts.preemption} the kernel skips fentry programs now and then"
    if mechanism.startswith("kprobe"):
        if not facts.kprobes:
            return "the kernel has no kprobes"
        if facts.lockdown == "confidentiality":
            return "lockdown=confidentiality forbids reading kernel memory from a kprobe"
    return None
