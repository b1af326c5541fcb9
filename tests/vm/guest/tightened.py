# SPDX-License-Identifier: Apache-2.0
"""What each privilege and each gap in the units' sandboxes is there for: restrictions under which a part fails.

Data only. tests/rules/test_units.py compares it with the units, cases/test_sandbox.py tries every entry.
"""

from __future__ import annotations

from dataclasses import dataclass

PROBE, DAEMON, CLIENTS = "kubenpu-probe.service", "kubenpud.service", "kubenpu-clients.service"


@dataclass(frozen=True, slots=True)
class Tightened:
    """`what` as the unit's comment or filter names it, `lines` for a drop-in, `says`: then in the unit's journal."""

    unit: str
    what: str
    lines: tuple[str, ...]
    says: str


def _listening(address: str) -> tuple[str, str]:
    return ("ExecStart=", f"ExecStart=/usr/sbin/kubenpud --web.listen-address={address}")


TIGHTENED = (
    Tightened(PROBE, "CAP_BPF", ("CapabilityBoundingSet=~CAP_BPF",), "lacks CAP_BPF"),
    Tightened(PROBE, "CAP_PERFMON", ("CapabilityBoundingSet=~CAP_PERFMON",), "lacks CAP_PERFMON"),
    Tightened(PROBE, "CAP_SYS_ADMIN", ("CapabilityBoundingSet=~CAP_SYS_ADMIN",), "lacks CAP_SYS_ADMIN"),
    Tightened(PROBE, "bpf", ("SystemCallFilter=~bpf",), "cannot load the BPF programs: Operation not permitted"),
    Tightened(
        PROBE,
        "perf_event_open",
        (
            "ExecStart=",
            "ExecStart=/usr/sbin/kubenpu-probe load --mechanism kprobe",
            "SystemCallFilter=~perf_event_open",
        ),
        "drm_ioctl: off (kprobe: cannot attach kretprobe_hook: Operation not permitted)",
    ),
    Tightened(PROBE, "ProtectKernelTunables=yes", ("ProtectKernelTunables=yes",), "Read-only file system"),
    Tightened(DAEMON, "bpf", ("SystemCallFilter=~bpf",), "rules: Operation not permitted"),
    Tightened(
        DAEMON,
        "AF_UNIX",
        ("RestrictAddressFamilies=~AF_UNIX", "TimeoutStartSec=6"),
        "start operation timed out",
    ),
    Tightened(
        DAEMON,
        "AF_INET",
        ("RestrictAddressFamilies=~AF_INET", *_listening("127.0.0.1:10074")),
        "cannot listen on 127.0.0.1:10074",
    ),
    Tightened(
        DAEMON,
        "AF_INET6",
        ("RestrictAddressFamilies=~AF_INET6", *_listening("[::1]:10074")),
        "cannot listen on [::1]:10074",
    ),
    Tightened(DAEMON, "AF_NETLINK", ("RestrictAddressFamilies=~AF_NETLINK",), "No device events"),
    Tightened(DAEMON, "ProcSubset=pid", ("ProcSubset=pid",), "boot_id"),
    Tightened(CLIENTS, "ProcSubset=pid", ("ProcSubset=pid",), "boot_id"),
    Tightened(
        CLIENTS,
        "AF_UNIX",
        ("RestrictAddressFamilies=~AF_UNIX", "TimeoutStartSec=6"),
        "start operation timed out",
    ),
)
# What takes more than the unit, or does not show in its journal: test_sandbox.py has a case of its own for each,
# test_without_btf.py for the modules, test_clients.py for bpf.
SEEN_OTHERWISE = {
    (DAEMON, "ProtectHostname=yes"),
    (DAEMON, "PrivateNetwork=yes"),
    (DAEMON, "DeviceAllow=char-drm"),
    (PROBE, "DeviceAllow=char-drm"),
    (CLIENTS, "CAP_SYS_PTRACE"),
    (CLIENTS, "bpf"),
    (CLIENTS, "PrivateUsers=yes"),
    (PROBE, "ProtectKernelModules=yes"),
}
