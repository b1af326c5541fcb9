# SPDX-License-Identifier: Apache-2.0
"""The checks of `kubenpuctl doctor`: CHECKS is the list; each asks one thing, fails alone and says so.

Data comes from procfs, sysfs, the pins, the probe's state file, the runtimes' sockets and one scrape of the daemon.
Changes nothing, opens no device node: what this user cannot read is reported as such, and is no failure of the node.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from kubenpu.cli.doctor_daemon import DAEMON_CHECKS
from kubenpu.cli.doctor_findings import FAIL, OK, WARN, Check, Examination, Finding
from kubenpu.cli.packages import PACKAGES, is_missing
from kubenpu.identity.kubelet_socket import AUTO, BELOW_ROOT, find_kubelet
from kubenpu.kernel import bpf
from kubenpu.kernel.hooks import DRM_IOCTL, HOOKS, UPROBE, Hook
from kubenpu.kernel.pins import read_state
from kubenpu.kernel.support import UNPREEMPTED, choose_loader, mechanism_refusal, without_btf
from kubenpu.model.errors import KernelError, SourceError
from kubenpu.model.sample import OFF, HookStatus

MACHINES = ("x86_64", "aarch64")
DRM_MODULE = Path("/sys/module/drm")
RUNTIME_TIMEOUT_S = 1.0
_PINNED_MAPS = ("cells", "totals", "losses", "cgroups", "rules", "slots")


# ---- the kernel ----


def _kernel(node: Examination) -> Iterator[Finding]:
    facts = node.facts
    status = OK if facts.machine in MACHINES else FAIL
    yield Finding("kernel", f"{facts.release} {facts.machine}", " or ".join(MACHINES), "", status)


def _btf(node: Examination) -> Iterator[Finding]:
    needed, remedy = "present", "Use a kernel built with CONFIG_DEBUG_INFO_BTF=y"
    lacking = without_btf(node.facts)
    if node.facts.btf:
        yield Finding("btf", "/sys/kernel/btf/vmlinux", needed)
    elif lacking:
        found = "; ".join(("none", *(each.cause for each in lacking)))
        yield Finding(
            "btf", found, needed, f"{remedy}. Or for loader bcc: {'. '.join(each.remedy for each in lacking)}", FAIL
        )
    else:
        yield Finding(
            "btf", "none; bcc reads the kernel's headers instead", needed, f"{remedy}: it counts cheaper", WARN
        )


def _drm(node: Examination) -> Iterator[Finding]:
    facts = node.facts
    needed = "loaded, with BTF"
    if not facts.drm:
        yield Finding("drm", "not loaded", needed, "Load the driver of your accelerator, it brings drm along", WARN)
    elif not facts.drm_btf:
        yield Finding("drm", "loaded, no BTF", needed, "A kprobe is used, which costs more per call", WARN)
    else:
        yield Finding("drm", needed, needed)


def _bpffs(node: Examination) -> Iterator[Finding]:
    needed = "mounted on /sys/fs/bpf"
    if node.facts.bpffs:
        yield Finding("bpffs", needed, needed)
    else:
        yield Finding("bpffs", "not mounted", needed, "Run: mount -t bpf bpf /sys/fs/bpf", FAIL)


def _cgroup2(node: Examination) -> Iterator[Finding]:
    mount, needed = node.facts.cgroup2, "mounted on /sys/fs/cgroup"
    remedy = "Boot with systemd.unified_cgroup_hierarchy=1: pods that are in version 1 only cannot be told apart"
    if mount is None:
        yield Finding("cgroup2", "not mounted", needed, remedy, FAIL)
    elif mount != Path("/sys/fs/cgroup"):
        yield Finding("cgroup2", f"hybrid, mounted on {mount}", needed, remedy, WARN)
    else:
        yield Finding("cgroup2", needed, needed)


def _lockdown(node: Examination) -> Iterator[Finding]:
    found, needed = node.facts.lockdown, "none or integrity"
    if found == "confidentiality":
        remedy = "Boot with lockdown=integrity, else kprobes cannot be used and short-lived containers have no name"
        yield Finding("lockdown", found, needed, remedy, WARN)
    else:
        yield Finding("lockdown", found, needed)


def _preemption(node: Examination) -> Iterator[Finding]:
    found, needed = node.facts.preemption, f"{' or '.join(UNPREEMPTED)} for fentry"
    if found in UNPREEMPTED:
        yield Finding("preemption", found, needed)
    else:
        remedy = "Nothing to do: a kprobe is used, which costs more per call and loses none"
        yield Finding("preemption", found, needed, remedy, OK)


def _capabilities(node: Examination) -> Iterator[Finding]:
    missing, needed = node.facts.missing_capabilities, "those of kubenpu-probe's unit; kubenpuctl needs none"
    if missing and os.geteuid() == 0:
        remedy = "Run kubenpu-probe outside this container or with these capabilities"
        yield Finding("capabilities", f"root without {', '.join(missing)}", needed, remedy, WARN)
    else:
        yield Finding("capabilities", "not root" if missing else "all of kubenpu-probe", needed)


def _libbpf(_node: Examination) -> Iterator[Finding]:
    needed = "libbpf 1.0 or later"
    try:
        library = bpf.library()
    except KernelError as error:
        yield Finding("libbpf", error.cause, needed, error.remedy, FAIL)
        return
    library.libbpf_version_string.restype = ctypes.c_char_p
    yield Finding("libbpf", library.libbpf_version_string().decode(errors="replace"), needed)


def _packages(_node: Examination) -> Iterator[Finding]:
    missing = [package for package in PACKAGES if is_missing(package)]
    for package in missing:
        yield Finding("packages", f"no {package.debian}", f"present, for {package.lost}", package.remedy, FAIL)
    if not missing:
        yield Finding("packages", "all of Python's", "all of Python's")


# ---- the hook ----


def _mechanisms(node: Examination) -> Iterator[Finding]:
    statuses, _ = read_state(node.settings.run_directory)
    needed_hooks = {DRM_IOCTL.name, *(status.hook for status in statuses if status.needed)}
    for hook in (hook for hook in HOOKS if hook.name in needed_hooks):
        name, needed = "mechanisms", f"for {hook.name} at least one of {', '.join(hook.ladder)}"
        if hook.module is not None and not node.facts.drm:
            yield Finding(name, f"not known until {hook.module} is loaded", needed)
            continue
        loader, in_drm = choose_loader(node.facts), hook.module is not None
        refusals = {each: mechanism_refusal(node.facts, each, in_drm, loader) for each in hook.ladder}
        usable = [each for each, refusal in refusals.items() if refusal is None]
        reasons = "; ".join(f"{each}: {refusal}" for each, refusal in refusals.items() if refusal is not None)
        found = ", ".join(usable) + (f" ({reasons})" if reasons else "")
        yield Finding(name, found or "none", needed, "", OK if usable else FAIL)


def _hook(node: Examination) -> Iterator[Finding]:
    hooks, module = read_state(node.settings.run_directory)
    if not hooks:
        remedy = "Run: systemctl start kubenpu-probe"
        yield Finding("hook", "kubenpu-probe has not run since boot", "attached and pinned", remedy, FAIL)
    for status in hooks:
        hook = next((each for each in HOOKS if each.name == status.hook), None)
        if hook is not None:
            yield _one_hook(node, hook, status, module)


def _one_hook(node: Examination, hook: Hook, status: HookStatus, module: int | None) -> Finding:
    name, needed = f"hook {hook.name}", "attached and pinned"
    reason = f" ({status.reason})" if status.reason else ""
    again = "Run: systemctl restart kubenpu-probe"
    if not status.needed:
        nodes = {each for device in node.inventory.devices for each in device.nodes}
        early = any(rule.early for device in node.inventory.devices for rule in node.tables_in_force.calls(device))
        missed = early or not nodes.isdisjoint(node.inventory.char_nodes)
        remedy = "Run: systemctl reload kubenpu-probe; it has not looked since the device or its table came"
        found = "off, and there is such a device" if missed else f"off{reason}"
        return Finding(name, found, "attached while there is one", *((remedy, FAIL) if missed else ()))
    if status.mechanism == OFF:
        wait = hook is DRM_IOCTL and not node.facts.drm
        start = "Load the driver of your accelerator; the hook follows by itself"
        return Finding(name, f"off{reason}", needed, start if wait else "Run: systemctl reload kubenpu-probe", FAIL)
    in_drm = hook is DRM_IOCTL and status.mechanism != UPROBE
    if in_drm and DRM_MODULE.exists() and DRM_MODULE.stat().st_ino != module:
        return Finding(name, "drm was loaded again after it was attached", needed, again, FAIL)
    if not all(node.pins.link(hook.name, side).exists() for side in hook.required):
        return Finding(name, "its pins were removed", needed, again, FAIL)
    return Finding(name, f"{status.mechanism}, loader {status.loader}{reason}", needed)


def _counters(node: Examination) -> Iterator[Finding]:
    needed = f"maps below {node.pins.root} that can be opened"
    try:
        for name in _PINNED_MAPS:
            bpf.Map.pinned(node.pins.map(name)).close()
    except FileNotFoundError as error:
        found = f"no map {Path(error.filename).name}"
        yield Finding("counters", found, needed, "Run: systemctl restart kubenpu-probe", FAIL)
    except KernelError as error:
        status = FAIL if os.geteuid() == 0 else WARN
        yield Finding("counters", error.cause, needed, error.remedy, status)
    else:
        yield Finding("counters", f"{len(_PINNED_MAPS)} maps opened", needed)


# ---- settings, devices and runtimes ----


def _settings(node: Examination) -> Iterator[Finding]:
    error, needed = node.settings_error, "usable, or none"
    if error is not None:
        yield Finding("settings", error.cause, needed, error.remedy or "Correct the file", FAIL)
    else:
        yield Finding("settings", needed, needed)


def _devices(node: Examination) -> Iterator[Finding]:
    devices, needed = node.inventory.devices, "at least one, each with a driver table"
    bare = [device.address for device in devices if device.vendor is None]
    if not devices:
        yield Finding("devices", "none", needed, "Load the kernel driver of your accelerator", WARN)
    elif bare:
        remedy = f"Add a table to {node.settings.drivers_directory}: their own calls count as kind other"
        yield Finding("devices", f"{len(devices)}, without a table: {', '.join(bare)}", needed, remedy, WARN)
    else:
        yield Finding("devices", str(len(devices)), needed)
    for unknown in node.tables_in_force.unknown_releases:
        remedy = (
            f"Take a kubenpu that knows it, or put a table into {node.settings.drivers_directory}: calls count as other"
        )
        yield Finding("devices", unknown, "a known release", remedy, WARN)
    for problem in node.inventory.problems:
        yield Finding("devices", problem, "readable", "", WARN)


def _tables(node: Examination) -> Iterator[Finding]:
    for error in node.tables.errors:
        yield Finding("driver tables", error.cause, "usable files", error.remedy, FAIL)
    if not node.tables.errors:
        yield Finding("driver tables", f"{len(node.tables.tables)} and the DRM core's", "usable files")


def _runtimes(node: Examination) -> Iterator[Finding]:
    from kubenpu.identity.cri import CriClient, find_sockets  # noqa: PLC0415 - what it needs may be missing

    needed = "an answer within a second"
    sockets = find_sockets(tuple(map(Path, node.settings.cri_sockets)))
    if not sockets:
        remedy = "Start the container runtime or name its socket in kubenpu.toml: without it pods have no names"
        yield Finding("runtime", "no socket at the known places", needed, remedy, WARN)
    for socket in sockets:
        client = CriClient(socket, RUNTIME_TIMEOUT_S)
        try:
            version = client.version()
        except SourceError as error:
            status = WARN if not os.access(socket, os.W_OK) else FAIL
            yield Finding("runtime", error.cause, needed, error.remedy, status)
        else:
            yield Finding("runtime", f"{version.name} {version.version} at {socket}", needed)
        finally:
            client.close()


def _kubelet(node: Examination) -> Iterator[Finding]:
    """Nodes of no cluster have none."""
    setting, needed = node.settings.kubelet_socket, "its socket, for who was given which device"
    socket = find_kubelet(setting)
    seen = "" if os.geteuid() == 0 else " that this user can see"
    if socket is not None:
        yield Finding("kubelet", str(socket), needed)
    elif setting == AUTO:
        remedy = f"On a node of a cluster name its ROOT/{BELOW_ROOT} in identity.kubelet_socket"
        yield Finding("kubelet", f"no socket at the known places{seen}", needed, remedy)
    elif setting:
        remedy = f"Correct identity.kubelet_socket, or leave it at {AUTO}"
        yield Finding("kubelet", f"no {setting}{seen}", needed, remedy, WARN)
    else:
        yield Finding("kubelet", "not asked: identity.kubelet_socket is empty", needed)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("kernel", _kernel),
    ("btf", _btf),
    ("drm", _drm),
    ("bpffs", _bpffs),
    ("cgroup2", _cgroup2),
    ("lockdown", _lockdown),
    ("preemption", _preemption),
    ("capabilities", _capabilities),
    ("libbpf", _libbpf),
    ("packages", _packages),
    ("mechanisms", _mechanisms),
    ("hook", _hook),
    ("counters", _counters),
    ("settings", _settings),
    ("devices", _devices),
    ("driver tables", _tables),
    ("runtime", _runtimes),
    ("kubelet", _kubelet),
    *DAEMON_CHECKS,
)
