# SPDX-License-Identifier: Apache-2.0
"""Probe, kubenpud and a message bus, with directories of their own: an installed KubeNPU is not touched.

Owns /run/NAME, /sys/fs/bpf/NAME and the cgroup NAME from prepare() to remove(), which also ends what runs in that
cgroup. Needs root.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubenpu.exporters.scrape import fetch
from kubenpu.kernel import attach
from kubenpu.kernel.pins import Pins
from kubenpu.model.errors import ConfigError, KernelError, SourceError
from tests.fakes.bus_config import bus_command
from tests.fakes.sim_cgroups import CgroupTree
from tests.fakes.sim_tally import wait_until

BPFFS = Path("/sys/fs/bpf")
DAEMON_CGROUP, BUS_CGROUP = "system.slice/kubenpud.service", "system.slice/dbus.service"
START_SECONDS, END_SECONDS = 30.0, 5.0

Tables = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class OwnService:
    """`tree` is the cgroup called `name`: kubenpud runs in it, and whatever the caller starts there."""

    name: str
    port: int
    tree: CgroupTree

    @property
    def run_directory(self) -> Path:
        return Path("/run") / self.name

    @property
    def pin_directory(self) -> Path:
        return BPFFS / self.name

    @property
    def config(self) -> Path:
        return self.run_directory / "kubenpu.toml"

    @property
    def bus(self) -> Path:
        """The socket of the bus."""
        return self.run_directory / "bus"

    @property
    def bus_address(self) -> str:
        return f"unix:path={self.bus}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def prepare(self, more: Tables) -> None:
        """Makes the run directory and writes the configuration: where everything is, and `more`."""
        self.run_directory.mkdir()
        tables: dict[str, dict[str, object]] = {
            "kernel": {"pin_directory": str(self.pin_directory)},
            "web": {"listen_address": [f"127.0.0.1:{self.port}"]},
            "dbus": {"address": self.bus_address},
            "varlink": {"address": ""},
            "history": {"file": str(self.run_directory / "usage.db")},
        }
        for table, entries in more.items():
            tables.setdefault(table, {}).update(entries)
        self.config.write_text(_toml({"run_directory": str(self.run_directory)}, tables))

    def load_probe(self, *arguments: str) -> None:
        """kubenpu-probe load. It prints what it attached, or the cause and the remedy."""
        command = self.command("probe", "load", *arguments)
        if subprocess.run(command, check=False).returncode:
            raise KernelError("kubenpu-probe could not start counting")

    def command(self, module: str, *arguments: str) -> list[str]:
        """A command line of kubenpu.service.MODULE with this configuration."""
        return [sys.executable, "-m", f"kubenpu.service.{module}", "--config.file", str(self.config), *arguments]

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[str]]:
        """kubenpud, serving, and the bus it is on; ended with the block. KernelError when it does not get there."""
        if shutil.which("dbus-daemon") is None:
            raise ConfigError("dbus-daemon is not installed", "Install it: make deps")
        bus = self.tree.start(BUS_CGROUP, bus_command(self.run_directory / "bus.conf", self.bus_address), quiet=True)
        try:
            wait_until(lambda: bus.poll() is not None or self.bus.exists(), START_SECONDS)
            with self._daemon() as process:
                yield process
        finally:
            _end(bus)

    @contextmanager
    def _daemon(self) -> Iterator[subprocess.Popen[str]]:
        process = self.tree.start(DAEMON_CGROUP, self.command("daemon"))
        try:
            settled = wait_until(lambda: process.poll() is not None or self._answers(), START_SECONDS)
            if process.poll() is not None:
                raise KernelError(f"kubenpud ended with exit code {process.returncode}")
            if not settled:
                raise KernelError(f"kubenpud does not serve {self.url}")
            yield process
        finally:
            _end(process)

    def _answers(self) -> bool:
        try:
            return bool(fetch(self.url))
        except SourceError:
            return False

    def remove(self) -> None:
        """Detaches, unpins and deletes everything, also what a killed run left."""
        self.tree.remove()
        attach.unload(Pins(self.pin_directory))
        shutil.rmtree(self.run_directory, ignore_errors=True)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    if not wait_until(lambda: process.poll() is not None, END_SECONDS):
        process.kill()
        process.wait()


def require_free_port(port: int) -> None:
    """ConfigError when something listens on it already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as e:
            raise ConfigError(
                f"port {port} cannot be used: {e.strerror}", "Stop what listens there (a kubenpud?) or give --port"
            ) from e


def only_one(name: str) -> socket.socket:
    """A lock that the kernel gives back even when we are killed: an abstract socket. Keep what is returned."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0{name}")
    except OSError as e:
        lock.close()
        raise ConfigError(f"another {name} is running", "Stop that one first") from e
    return lock


def mount_bpffs() -> None:
    """Where systemd has not: a container, a bare init."""
    if not BPFFS.is_dir() or BPFFS.is_mount():
        return
    subprocess.run(["mount", "-t", "bpf", "bpf", str(BPFFS)], check=False)


def _toml(top: Mapping[str, object], tables: Tables) -> str:
    """Strings, numbers and lists of strings are written alike in JSON and TOML."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
    for table, entries in tables.items():
        lines += ["", f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"
