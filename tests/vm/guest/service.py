# SPDX-License-Identifier: Apache-2.0
"""KubeNPU itself as it runs in a guest: its units under systemd, its metrics over HTTP, its configuration.

Owns /etc/kubenpu/kubenpu.toml.d/test.toml. Reads metrics with the product's own client, which only parses text.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kubenpu.exporters.scrape import Row, fetch
from kubenpu.model.errors import SourceError
from tests.vm.guest import wait
from tests.vm.guest.tally import Tally

ARM64 = ("bookworm-arm64", "trixie-arm64", "trixie73-arm64")
_GUEST = os.environ.get("KUBENPU_VM_GUEST", "")
# A kernel that preempts programs (7.3: lazy) is counted by kprobes; 6.1 on arm64 has no trampolines, which fentry and
# programs of the security module need.
_NOT_FENTRY = {"trixie73": "kprobe.multi", "bookworm-arm64": "kprobe", "trixie73-arm64": "kprobe.multi"}
BEST_MECHANISM = _NOT_FENTRY.get(_GUEST, "fentry")
BEST_FILE_MECHANISM = "kprobe" if _GUEST == "bookworm-arm64" else "lsm"  # Debian's kernels have the BPF module on
PROBE, DAEMON, CLIENTS = "kubenpu-probe.service", "kubenpud.service", "kubenpu-clients.service"
DROP_IN = Path("/etc/kubenpu/kubenpu.toml.d/test.toml")
STATE = Path("/run/kubenpu/probe.json")
# What the workload's ioctls are for, written down here so that the product's tables are not compared with themselves.
VIRTIO_KINDS = {
    0x00: "other",
    0x09: "free",
    0x0C: "other",
    0x41: "map",
    0x42: "submit",
    0x43: "other",
    0x44: "alloc",
    0x48: "wait",
    0x49: "other",
}
VGEM_KINDS = {0x09: "free", 0x0C: "other", 0x41: "other", 0x42: "other", 0xB2: "alloc", 0xB3: "map", 0xB4: "free"}


def systemctl(*words: str) -> None:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"systemctl {' '.join(words)}: {done.stderr}\n{journal()}"


def journal() -> str:
    command = ["journalctl", "-q", "-b", "-n", "60", "--no-pager", "-u", PROBE, "-u", DAEMON, "-u", CLIENTS]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def compile_modules() -> None:
    """As a package does when it is installed: kubenpud may not write there, and would compile at every start."""
    package = "/usr/lib/python3/dist-packages/kubenpu"
    subprocess.run(["python3", "-m", "compileall", "-q", package], check=True)


def start() -> None:
    systemctl("start", PROBE, DAEMON)


def stop() -> None:
    systemctl("stop", DAEMON, PROBE)


def probe(*arguments: str) -> str:
    """kubenpu-probe by hand; returns what it said."""
    done = subprocess.run(["kubenpu-probe", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def probe_is_at_rest() -> bool:
    """No load is running, none is queued."""
    return show(PROBE, "ActiveState") == "active" and not probe_has_a_job()


def probe_has_a_job() -> bool:
    return show(PROBE, "Job") not in {"", "0"}


def mechanism(hook: str = "drm_ioctl") -> str:
    return next(str(h["mechanism"]) for h in json.loads(STATE.read_text())["hooks"] if h["hook"] == hook)


def take_file_hook_off() -> None:
    """What the next load does when the last such device is gone."""
    systemctl("reload", PROBE)
    assert mechanism("file_ioctl") == "off"
    assert not list(Path("/sys/fs/bpf/kubenpu/1").glob("file_ioctl_*_link"))


def reason() -> str:
    return str(json.loads(STATE.read_text())["hooks"][0]["reason"])


def show(unit: str, name: str) -> str:
    """One property of a unit."""
    command = ["systemctl", "show", "--value", "-p", name, unit]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main_pid() -> int:
    return int(show(DAEMON, "MainPID"))


def kill_daemon() -> None:
    """SIGKILL; systemd starts it again, and this returns when it answers."""
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    wait.until("another kubenpud", lambda: main_pid() not in (0, before))
    wait.until("its answer", rows_or_none)


def wakeups() -> int:
    """How often the threads of kubenpud have slept so far."""
    statuses = "".join(path.read_text() for path in Path(f"/proc/{main_pid()}/task").glob("*/status"))
    return sum(map(int, re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", statuses, re.M)))


@contextmanager
def configured(text: str) -> Iterator[None]:
    """Another configuration for the block, with a fresh start of everything before and after it."""
    stop()
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(text)
    try:
        start()
        yield
    finally:
        stop()
        DROP_IN.unlink()
        start()


@contextmanager
def drop_in(unit: str, *lines: str) -> Iterator[None]:
    """The unit with these lines for the block. To start it is the caller's, and to have it read again afterwards."""
    path = Path(f"/run/systemd/system/{unit}.d/test.conf")
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(["[Service]", *lines, ""]))
    try:
        for command in ("daemon-reload", "reset-failed"):
            systemctl(command)
        yield
    finally:
        path.unlink()
        path.parent.rmdir()


def rows() -> list[Row]:
    return fetch()


def rows_or_none() -> list[Row] | None:
    try:
        return rows()
    except SourceError:
        return None


def healthy(address: str = "localhost:10074") -> bool:
    """Whether kubenpud says on this address that it is well."""
    command = ["curl", "-sSf", f"http://{address}/-/healthy"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def devices() -> set[str]:
    """Addresses of the devices that kubenpud shows."""
    return {row.labels["device"] for row in rows() if row.name == "kubenpu_device_info"}


def counts(*nodes: str) -> bool:
    """Whether the kernel has rules for these DRM nodes (paths in /dev). A driver makes those of a device one after the
    other, and kubenpud may have seen the first one only when it shows the device."""
    return all(_rule_of(os.minor(Path(node).stat().st_rdev)) for node in nodes)


def _rule_of(minor: int) -> int:
    """Slot of the device that a DRM minor counts for, from 1; 0 for none. It is what a rule begins with."""
    key = [str(byte) for byte in minor.to_bytes(4, "little")]
    command = ["bpftool", "-j", "map", "lookup", "pinned", "/sys/fs/bpf/kubenpu/1/rules", "key", *key]
    rule = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["value"]
    return int.from_bytes(bytes(int(byte, 16) for byte in rule[:4]), "little")


def nodes() -> set[str]:
    """Names of the node that the devices carry."""
    return {row.labels["node"] for row in rows() if row.name == "kubenpu_device_info"}


def select(found: list[Row], name: str, **labels: str) -> dict[str, float]:
    """Values by kind (or by "" where there is no kind) of the series with these labels; two of one kind are a fault."""
    values: dict[str, float] = {}
    for row in found:
        if row.name == name and all(row.labels.get(k) == v for k, v in labels.items()):
            kind = row.labels.get("kind", "")
            assert kind not in values, f"{name}{labels}: two series of kind {kind}"
            values[kind] = row.value
    return values


def value(name: str, **labels: str) -> float:
    """One sample, without a kind."""
    return select(rows(), name, **labels)[""]


def dropped() -> dict[str, float]:
    return {r.labels["reason"]: r.value for r in rows() if r.name == "kubenpu_events_dropped_total"}


def by_kind(counts: Mapping[int, int], kinds: Mapping[int, str]) -> dict[str, int]:
    """A tally's counts by ioctl number as counts by kind."""
    found: dict[str, int] = {}
    for nr, count in counts.items():
        found[kinds[nr]] = found.get(kinds[nr], 0) + count
    return {kind: count for kind, count in found.items() if count}


def counted(name: str, **labels: str) -> dict[str, int]:
    """Calls by kind of one series family, zeros left out."""
    return {kind: int(v) for kind, v in select(rows(), name, **labels).items() if v}


def wait_for_owner(**labels: str) -> None:
    """Until the workload has its name: names come a moment after the calls."""
    wait.until(f"series of {labels}", lambda: counted("kubenpu_ioctl_total", **labels), 60)


def assert_exact(done: Tally, kinds: Mapping[int, str], device: str, **labels: str) -> None:
    """Calls and errors of one container on one device equal its own tally, kind by kind."""
    wait_for_owner(device=device, **labels)
    got = counted("kubenpu_ioctl_total", device=device, **labels)
    assert got == by_kind(done.calls, kinds), (got, dropped())
    failed, told = counted("kubenpu_ioctl_errors_total", device=device, **labels), by_kind(done.error, kinds)
    assert failed == told or 0 < sum(told.values()) - sum(failed.values()) <= _declared_missed(), (failed, told)


def _declared_missed() -> float:
    """Returns that the best mechanism here may miss: before 6.14 a kprobe's return side has few places."""
    return dropped()["exit_missed"] if BEST_MECHANISM == "kprobe" else 0


def assert_conserved() -> None:
    """Nothing is lost and every device's totals are accounted for."""
    found = rows()
    lost = {reason: count for reason, count in dropped().items() if count}
    assert lost in ({}, {"exit_missed": _declared_missed()}), lost
    imbalances = {r.labels["device"]: r.value for r in found if r.name == "kubenpu_attribution_imbalance"}
    assert imbalances
    assert set(imbalances.values()) == {0}
