# SPDX-License-Identifier: Apache-2.0
"""kubenpu-clients: looks every few seconds at who holds a DRM or accel device and what its driver says of that file.

The only part that may read other users' fdinfo (CAP_SYS_PTRACE), and it does nothing else: no socket, totals to a file
of which kubenpud takes them. It walks neither /proc nor descriptors: the kernel lists the holders. A device that sleeps
is not asked, since some drivers wake it for an answer; opens no device node, starts no process.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubenpu import __version__
from kubenpu.config.log import set_up_logging
from kubenpu.config.settings import Settings, add_config_flag, read_settings
from kubenpu.devices.discovery import discover
from kubenpu.devices.sysfs import read_text
from kubenpu.identity.index import alive, cgroup_mount
from kubenpu.kernel.clients import read_holders
from kubenpu.kernel.pins import Pins
from kubenpu.ledger.clients import Accounts, FileKey, Seen
from kubenpu.ledger.clients_file import NAME
from kubenpu.ledger.clients_state import dump_rest, read_clients_and_rest, restore, write_clients
from kubenpu.ledger.names import NAMES_NAME, read_names
from kubenpu.model.clients import ClientSample
from kubenpu.model.device import Device
from kubenpu.model.errors import ConfigError, KubeNpuError, SourceError
from kubenpu.model.fdinfo import Fdinfo, Holder
from kubenpu.model.text import clean_label
from kubenpu.service.fdinfo_readers import Found, Readers, boot_ns, task_path
from kubenpu.service.timed import Jobs, Timed

log = logging.getLogger(__name__)
PROC = Path("/proc")
MAX_CLIENTS = 8192
MAX_CLIENTS_OF_CGROUP = 512
HOLDERS_ASKED, MAX_HOLDERS = 4, 64
"""Of those that share one file: so many, as the first may be gone by then, and so many if each is of another cgroup."""
NAMED = 3
"""Cgroups whose clients are too many, in the status line."""
ALIVE_SECONDS = 20
"""How often systemd is told that all is well, at least."""
_ASLEEP = ("suspended", "suspending")


@dataclass(frozen=True, slots=True)
class Sleep:
    """A device's power, as sysfs tells it without waking it."""

    asleep: bool
    slept_ms: int


def read_sleep(device: Device) -> Sleep:
    power = Path(device.sysfs_path, "power")
    slept = read_text(power / "runtime_suspended_time").strip()
    return Sleep(read_text(power / "runtime_status").strip() in _ASLEEP, int(slept) if slept.isdecimal() else 0)


class Clients:
    """Everything between two looks. `trouble`: what the last one could not see, "" if nothing; `note`: who has too many
    clients, which nobody else suffers from."""

    def __init__(self, settings: Settings, mount: Path, proc: Path = PROC) -> None:
        self._settings, self._mount, self._proc = settings, mount, proc
        self._pins = Pins(settings.pin_directory)
        self._readers = Readers(proc)
        self._file = settings.run_directory / NAME
        self._boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
        self._generation = time.time_ns()
        self.accounts = Accounts()
        self.devices = 0
        self.trouble = self.note = ""
        self._jobs = Jobs(self._pins, settings.drivers_directory)
        self._restore()

    def _restore(self) -> None:
        """Goes on where the process before this one was."""
        try:
            found = read_clients_and_rest(self._file, self._boot_id)
            if found is not None:
                self.accounts = restore(found[0].uses, found[1])
                self._generation = found[0].generation
        except SourceError as e:
            log.warning("totals begin anew: %s", e.cause)
        except (TypeError, ValueError, KeyError) as e:
            log.warning("totals begin anew: %s: %s", self._file, e)

    def step(self) -> None:
        """One look, then the file."""
        trouble = ""
        try:
            trouble = self._look()
        except KubeNpuError as e:
            trouble = str(e)
            self.accounts.forget_memory()
        try:
            self._write(trouble)
        except SourceError as e:
            trouble = str(e)
        if trouble != self.trouble:
            log.log(logging.WARNING if trouble else logging.INFO, "%s", trouble or "all clients are seen again")
        self.trouble = trouble

    def _write(self, trouble: str) -> None:
        now = boot_ns()
        due = now + self._settings.clients_interval_seconds * 1_000_000_000
        sample = ClientSample(now, due, self._generation, tuple(self.accounts.shown()), trouble)
        write_clients(self._file, self._boot_id, sample, dump_rest(self.accounts))

    def _look(self) -> str:
        """What could not be seen of it."""
        times = self._jobs.read_times()
        found = discover(self._settings.sysfs, self._jobs.tables).devices
        nodes = {(node.major, node.minor): device for device in found for node in device.nodes if node.in_drm}
        self.devices = len({device.address for device in nodes.values()})
        look = Look(self._readers, nodes, self.accounts, self._jobs.of(found, times))
        now_ns = boot_ns()
        if nodes:
            look.take(read_holders(self._pins))
        paths = self._paths(look.holders())
        self.accounts.look(look.read(paths.keys()), paths, now_ns, look.crowded)
        self._tell_crowded()
        self._fold(now_ns / 1e9)
        known = {client_id for _, client_id in self.accounts.clients}
        self._jobs.forget(times.keys() - known - {holder.client_id for holder in look.holders()})
        ahead = self.accounts.running_ahead()
        said = f"{ahead} clients say that they used more than can be, which is not counted" if ahead else ""
        return "; ".join(filter(None, (look.trouble(), said, self._jobs.trouble)))

    def _paths(self, holders: Iterable[Holder]) -> dict[int, str]:
        """Of cgroups by id. Those that are new are asked for in procfs, of a task that is in them."""
        paths = {cgroup_id: use.path for (cgroup_id, _), use in self.accounts.uses.items() if cgroup_id}
        for holder in holders:
            if holder.cgroup_id not in paths:
                path = self._path_of(holder)
                if path is not None and alive(self._mount, path, holder.cgroup_id):
                    paths[holder.cgroup_id] = path
        return paths

    def _path_of(self, holder: Holder) -> str | None:
        try:
            lines = os.fsdecode(task_path(self._proc, holder, "cgroup").read_bytes()).split("\n")
        except OSError:
            return None
        return next((line[3:] for line in lines if line.startswith("0::/")), None)

    def _fold(self, now: float) -> None:
        """Marks cgroups that are gone, and gives up what the ledger would."""
        gone = False
        for (cgroup_id, _), use in self.accounts.uses.items():
            if cgroup_id and use.dead_since is None and not alive(self._mount, use.path, cgroup_id):
                use.dead_since = now
            gone = gone or use.dead_since is not None
        if gone:
            names = read_names(self._settings.run_directory / NAMES_NAME, self._boot_id)
            self.accounts.fold(names, now, self._settings.retention_seconds)

    def _tell_crowded(self) -> None:
        found = sorted({use.path for key, use in self.accounts.uses.items() if key in self.accounts.crowded})
        more = f" and of {len(found) - NAMED} more cgroups" if len(found) > NAMED else ""
        names = ", ".join(map(clean_label, found[:NAMED]))
        note = f"memory is not known of {names}{more}: too many clients to look at" if found else ""
        if note and note != self.note:
            log.warning("%s", note)
        self.note = note

    def summary(self) -> str:
        clients = len(self.accounts.clients)
        return (
            f"{clients} client{'s' if clients != 1 else ''} of {self.devices} device{'s' if self.devices != 1 else ''}"
        )


class Look:
    """One look: holders by open file, then what each file says. Bounded per cgroup, so that who opens a device ten
    thousand times hides nobody else; files that are accounts' clients already are always looked at."""

    def __init__(
        self, readers: Readers, nodes: dict[tuple[int, int], Device], accounts: Accounts, timed: Timed
    ) -> None:
        self._readers, self._nodes, self._timed = readers, nodes, timed
        self._clients = accounts.clients
        self._known = {file: accounts.clients[key].cgroup_id for file, key in accounts.by_file().items()}
        self._files: dict[FileKey, list[Holder]] = {}
        self._sleep = {device.address: read_sleep(device) for device in nodes.values()}
        self._refused = self._absurd = 0
        self._full = False
        self.crowded: set[tuple[int, str]] = set()

    def take(self, holders: Iterable[Holder]) -> None:
        fresh, of = dict[FileKey, list[Holder]](), Counter[int]()
        for holder in holders:
            device = self._nodes.get((holder.major, holder.minor))
            if device is None:
                continue  # it came after sysfs was read
            key = (device.address, holder.file)
            if key not in self._known and key not in fresh and not self._has_place(holder, key[0], len(fresh), of):
                continue
            sharing = (self._files if key in self._known else fresh).setdefault(key, [])
            if len(sharing) < HOLDERS_ASKED or _is_of_another(holder, sharing):
                sharing.append(holder)
        self._admit(fresh)

    def _admit(self, fresh: dict[FileKey, list[Holder]]) -> None:
        """As many as there is room for beside the clients that were known and are listed again."""
        of = Counter(self._known[key] for key in self._files)
        for key, sharing in fresh.items():
            if self._has_place(sharing[0], key[0], len(self._files), of):
                self._files[key] = sharing

    def _has_place(self, holder: Holder, device: str, taken: int, of: Counter[int]) -> bool:
        """Whether there is one among all and for this cgroup, which takes it."""
        full = taken >= MAX_CLIENTS
        if full or of[holder.cgroup_id] >= MAX_CLIENTS_OF_CGROUP:
            self._full = self._full or full
            self.crowded.add((holder.cgroup_id, device))
            return False
        of[holder.cgroup_id] += 1
        return True

    def holders(self) -> Iterator[Holder]:
        return (holder for sharing in self._files.values() for holder in sharing)

    def read(self, cgroups: Collection[int]) -> Iterator[Seen]:
        """`cgroups`: those whose path is known; others' holders are left for the next look."""
        for sharing in self._files.values():
            sharing.sort(key=lambda holder: holder.start_ns)
        found = self._readers.read(
            {key: sharing for key, sharing in self._files.items() if not self._sleep[key[0]].asleep}
        )
        for key, sharing in self._files.items():
            owners = tuple(dict.fromkeys(h.cgroup_id for h in sharing if h.cgroup_id in cgroups))
            start_ns, kernel_id, slept_ms = sharing[0].start_ns, sharing[0].client_id, self._sleep[key[0]].slept_ms
            read = found.get(key)
            fdinfo = self._told(key[0], kernel_id, read)
            if read is None:
                yield Seen(*key, owners, fdinfo, end_ns=boot_ns(), start_ns=start_ns, kernel_id=kernel_id)
            else:
                self._refused += read.refused
                self._absurd += fdinfo.absurd if fdinfo else 0
                times = (read.begin_ns, read.end_ns, start_ns, slept_ms, read.suspended_ns)
                yield Seen(*key, owners, fdinfo, *times, kernel_id)

    def _told(self, device: str, client_id: int, read: Found | None) -> Fdinfo | None:
        """By the driver, else by the kernel's scheduler, which is not asleep when the device is."""
        fdinfo = read.fdinfo if read is not None else None
        if device not in self._timed.devices:
            return fdinfo
        before = self._clients.get((device, client_id))
        memory = before.memory if before is not None and read is None else {}
        return self._timed.join(fdinfo, client_id, memory)

    def trouble(self) -> str:
        said = [
            f"the driver of {device} does not answer, or slowly: {count} clients are not read"
            for device, count in self._readers.late.items()
        ]
        if self._refused:
            said.append(f"permission denied for the fdinfo of {self._refused} clients, which needs CAP_SYS_PTRACE")
        if self._absurd:
            said.append(f"{self._absurd} numbers of drivers are left out, as nothing can have so much")
        if self._full:
            said.append(f"there are more than {MAX_CLIENTS} clients: not all are looked at")
        return "; ".join(said)


def _is_of_another(holder: Holder, sharing: Sequence[Holder]) -> bool:
    return len(sharing) < MAX_HOLDERS and all(holder.cgroup_id != each.cgroup_id for each in sharing)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubenpu-clients", description="Add up device time and memory of whoever holds an accelerator."
    )
    parser.add_argument("--version", action="version", version=f"kubenpu-clients {__version__}")
    add_config_flag(parser)
    return parser


def run(clients: Clients, interval_s: float, stop: threading.Event) -> None:
    """Until it is told to stop. What was used by then is in the file."""
    import sdnotify  # noqa: PLC0415 - completion is made from the parser where no package is installed

    systemd = sdnotify.SystemdNotifier()
    status = ""
    while True:
        clients.step()
        said = "; ".join(filter(None, (clients.summary(), clients.trouble, clients.note)))
        if not status:
            systemd.notify("READY=1")
        systemd.notify("WATCHDOG=1")
        if said != status:
            systemd.notify(f"STATUS={said}")
            status = said
        end = time.monotonic() + interval_s
        while (left := end - time.monotonic()) > 0:
            if stop.wait(min(left, ALIVE_SECONDS)):
                systemd.notify("STOPPING=1")
                clients.step()
                return
            systemd.notify("WATCHDOG=1")


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = read_settings(options)
        set_up_logging(settings.log_level, settings.log_format)
        run(Clients(settings, cgroup_mount(settings.cgroup_root)), settings.clients_interval_seconds, stop)
    except KubeNpuError as e:
        log.error("%s", e)
        return os.EX_CONFIG if isinstance(e, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
