# SPDX-License-Identifier: Apache-2.0
"""Boots one guest, runs one job in it, and says how that went.

Owns the QEMU process for the time of a `Machine` and the run's directory, which the guest sees as a 9p share at /mnt:
`job` goes in; `started`, `rc`, `journal.txt`, `serial.log` and whatever the job writes come out and stay there.
Two guests at a time on this machine (locks; waiting for one is not part of the deadline). Software emulation only: a
time measured in a guest is not a speed. Needs root. Refuses to judge what the job did: that is the caller's business.

    python3 -m tests.vm.rig trixie -- 'uname -r; ls /dev/dri'
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from tests.vm import display, image, stage


@dataclass(frozen=True, slots=True)
class Hardware:
    """What differs between machines."""

    board: str
    cpu: str
    console: str
    install: str


TREE = Path(__file__).resolve().parents[2]
RUNS = TREE / "build/vm"
DEADLINE_SECONDS = 2400.0
GUESTS_AT_ONCE = 2
PATIENCE_SECONDS = 1.0
SPARE_PCI_SLOTS = (8, 9)  # devices that the test module pretends to drive
KERNEL_ARGS = ("root=/dev/vda", "rw", "quiet", "panic=-1", "mitigations=off", "random.trust_cpu=on")
# By machine: QEMU's board and processor (pointer authentication as in hardware is six times slower), the console, and
# what installs the product: dpkg knows of no package that was only unpacked.
HARDWARE = {
    "x86_64": Hardware("pc", "max", "ttyS0", "dpkg -i"),
    "aarch64": Hardware("virt", "max,pauth-impdef=on", "ttyAMA0", "dpkg -i --force-depends"),
}

JOB = """\
rc=0
if [ ! -e /opt/prepared ]; then
    cat /proc/uptime >/mnt/started
    tar -C / --keep-directory-symlink -xf /dev/vdb
    {install} {directory}/packages/this/kubenpu_*.deb || rc=$?
    : >/opt/prepared
fi
cd {directory}
[ $rc != 0 ] || ( . /mnt/command ) || rc=$?
journalctl -b -o short-monotonic --no-pager >/mnt/journal.txt
echo $rc >/mnt/rc
"""


@dataclass(frozen=True, slots=True)
class Job:
    """What a guest is to do: shell text, the tar file unpacked before it, and what this boot needs.

    `reboots`: it may boot again and goes on then, with its disk as it was; the text is run from its begin once more.
    """

    command: str
    payload: Path
    kernel_args: tuple[str, ...] = ()
    reboots: bool = False
    deadline_seconds: float = DEADLINE_SECONDS


class GuestError(Exception):
    """The guest did not come back with a result: it hung or crashed."""


class NeverStartedError(GuestError):
    """It went off before the job began: nothing of ours was in it yet."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back. `boot_seconds`: power-on until the job began; `job_seconds`: from there to power-off."""

    rc: int
    boot_seconds: float
    job_seconds: float


@contextmanager
def machine_lock() -> Iterator[None]:
    """Held while a guest runs. Two fill a small machine; more would time each other out."""
    with ExitStack() as stack:
        places = [
            stack.enter_context(Path(tempfile.gettempdir(), f"kubenpu-vm.{place}.lock").open("w"))
            for place in range(GUESTS_AT_ONCE)
        ]
        while not any(map(_take, places)):
            time.sleep(PATIENCE_SECONDS)
        yield


def _take(place: IO[str]) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


class Machine:
    """A guest under power with its job. Leaving the block cuts the power, if the guest has not done so itself."""

    def __init__(self, guest: image.Image, job: Job, share: Path, output: IO[bytes] | None = None) -> None:
        """Power on. `share` is an empty directory; the job's output goes to `output`, else to ours."""
        (share / "command").write_text(f"{job.command}\n")
        install = HARDWARE[guest.machine].install
        (share / "job").write_text(JOB.format(directory=stage.GUEST_TREE, install=install))
        self.share = share
        self._name = guest.name
        self._deadline_seconds = job.deadline_seconds
        self._began = time.time()
        # QEMU's input stays open to the end: the guest's writes would block if it saw the other side close.
        words = _qemu(guest, share, job)
        self._display = display.XServer() if guest.name in display.GUESTS else None
        environment = os.environ | (self._display.environment if self._display else {})
        self._qemu = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, bufsize=0, env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._qemu.kill()
        self._qemu.wait()
        self.stdin.close()
        if self._display:
            self._display.close()

    @property
    def stdin(self) -> IO[bytes]:
        assert self._qemu.stdin is not None
        return self._qemu.stdin

    def running(self) -> bool:
        """Whether the guest is still on. GuestError when it has been so for longer than its job may take."""
        if time.time() - self._began > self._deadline_seconds:
            raise GuestError(f"{self._name}: not done in {self._deadline_seconds:.0f} s\n{tail(self.share)}")
        return self._qemu.poll() is None

    def wait(self) -> Outcome:
        """Wait for the guest to switch itself off."""
        with suppress(subprocess.TimeoutExpired):
            self._qemu.wait(max(0.0, self._began + self._deadline_seconds - time.time()))
        if self.running() or not (self.share / "rc").exists():
            kind = GuestError if (self.share / "started").exists() else NeverStartedError
            raise kind(f"{self._name}: ended without a result\n{tail(self.share)}")
        started = (self.share / "started").stat().st_mtime
        ended = (self.share / "rc").stat().st_mtime
        return Outcome(int((self.share / "rc").read_text()), started - self._began, ended - started)


def tail(share: Path, lines: int = 40) -> str:
    """The end of what the guest said on its console."""
    serial = share / "serial.log"
    text = serial.read_text(errors="replace") if serial.exists() else "(no console output)"
    return f"--- end of {serial}\n" + "\n".join(text.splitlines()[-lines:])


def fresh_share(guest_name: str) -> Path:
    """An empty directory for one run; the previous run of this guest is forgotten."""
    share = RUNS / guest_name
    shutil.rmtree(share, ignore_errors=True)
    share.mkdir(parents=True)
    return share


def _forward_stdin(sink: IO[bytes]) -> None:
    with suppress(BrokenPipeError, ValueError):  # the guest is gone, and so is the reader
        while data := os.read(sys.stdin.fileno(), 4096):
            sink.write(data)


def _qemu(guest: image.Image, share: Path, job: Job) -> list[str]:
    hardware = HARDWARE[guest.machine]
    draws = guest.name in display.GUESTS
    options = {
        "machine": hardware.board,
        "accel": "tcg,thread=multi",
        "cpu": hardware.cpu,
        "smp": "2",
        "m": "3072",
        "display": "sdl,gl=on" if draws else "none",
        "vga": "none",
        "monitor": "none",
        "serial": f"file:{share}/serial.log",
        "kernel": str(guest.kernel),
        "initrd": str(guest.initrd),
        "append": " ".join((f"console={hardware.console}", *KERNEL_ARGS, *job.kernel_args)),
        "fsdev": f"local,id=share,path={share},security_model=none",
    }
    repeated = [
        ("drive", f"file={guest.root},format=raw,if=virtio,snapshot=on"),
        ("drive", f"file={job.payload},format=raw,if=virtio,readonly=on"),
        ("device", f"virtio-gpu{'-gl' if draws else ''}-pci,addr=2"),
        *(("device", f"pci-testdev,addr={slot}") for slot in SPARE_PCI_SLOTS),
        ("device", "virtio-9p-pci,fsdev=share,mount_tag=share"),
        ("device", "virtio-rng-pci"),
        ("device", "virtio-serial-pci"),
        ("chardev", "stdio,id=job,signal=off"),
        ("device", "virtserialport,chardev=job,name=job"),
    ]
    words = [f"qemu-system-{guest.machine}", "-nodefaults", "-no-user-config"]
    words += [] if job.reboots else ["-no-reboot"]
    for option, value in (*options.items(), *repeated):
        words += [f"-{option}", value]
    return words


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.vm.rig", description="Run a command in a fresh guest.")
    parser.add_argument("guest", choices=sorted(image.read_recipes()))
    parser.add_argument("--kernel-arg", action="append", default=[], help="added to the kernel's command line")
    parser.add_argument("--deadline", type=float, default=DEADLINE_SECONDS, metavar="SECONDS")
    parser.add_argument("command", nargs="+", help="shell text, run in the staged tree; stdin and output are connected")
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        parser.error("needs root: images are made of files that belong to root")
    guest = image.ensure(options.guest)
    with machine_lock(), tempfile.TemporaryDirectory() as scratch:
        payload = stage.make_payload(Path(scratch), guest.machine)
        share = fresh_share(guest.name)
        job = Job(" ".join(options.command), payload, tuple(options.kernel_arg), deadline_seconds=options.deadline)
        with Machine(guest, job, share) as machine:
            threading.Thread(target=_forward_stdin, args=(machine.stdin,), daemon=True).start()
            outcome = machine.wait()
    times = f"boot {outcome.boot_seconds:.0f} s, job {outcome.job_seconds:.0f} s"
    print(f"{guest.name} {guest.kernel_release}: exit status {outcome.rc}, {times}; see {share}", file=sys.stderr)
    return outcome.rc


if __name__ == "__main__":
    sys.exit(main())
