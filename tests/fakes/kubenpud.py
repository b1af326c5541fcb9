# SPDX-License-Identifier: Apache-2.0
"""kubenpud as a process of its own over made-up devices, without counters: for what it serves, not what it counts.

Owns the process from the start of the block to its end; what the daemon tells its service manager and what it logs can
be waited for. Needs no privilege.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bcrypt

from tests.fakes.certificates import Authority
from tests.fakes.sim_plan import DEVICES
from tests.fakes.sim_sysfs import write_sysfs
from tests.fakes.sim_tally import wait_until
from tests.fakes.web_client import free_port

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
# Gives the program passed sockets as systemd does: from number 3 on, for this process only.
ACTIVATE = """
import os, sys
numbers = [int(number) for number in sys.argv[1].split(",")]
for place, number in enumerate(numbers, start=3):
    os.dup2(number, place)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(numbers)))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Kubenpud:
    """A running or ended kubenpud."""

    def __init__(self, process: subprocess.Popen[bytes], said: Sequence[str], log: Path) -> None:
        self.process = process
        self._said = said
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def said(self) -> str:
        """What it told its service manager so far."""
        return "\n".join(self._said) + "\n"

    def wait_said(self, words: str, times: int = 1) -> None:
        """Until it told its service manager so, so often."""

        def ended_or_said() -> bool:
            return self.said.count(words) >= times or self.process.poll() is not None

        wait_until(ended_or_said, DEADLINE_S)
        assert self.said.count(words) >= times, f"never said {words}: {self.said}{self.log}"

    def wait_logged(self, words: str) -> None:
        assert wait_until(lambda: words in self.log, DEADLINE_S), self.log

    def rss_kb(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])


def write_settings(directory: Path, text: str) -> Path:
    """A settings file with everything below the directory, and `text`."""
    if not (directory / "sys").exists():
        write_sysfs(directory / "sys", DEVICES)
        (directory / "run").mkdir()
    places = (
        ("run_directory", "run"),
        ("kernel.pin_directory", "pins"),
        ("devices.sysfs", "sys"),
        ("history.file", "usage.db"),
    )
    own = "".join(f'{key} = "{directory / name}"\n' for key, name in places)
    if "varlink.address" not in text:
        own += f'varlink.address = "unix:{directory / "varlink"}"\n'
    file = directory / "kubenpu.toml"
    file.write_text(own + text)
    return file


@contextmanager
def listening_manager(path: Path) -> Iterator[list[str]]:
    """A service manager that always listens, as a real one does: a full queue would block the daemon."""
    said: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path.unlink(missing_ok=True)
        notify.bind(str(path))
        listener = threading.Thread(target=lambda: said.extend(map(bytes.decode, iter(lambda: notify.recv(4096), b""))))
        listener.start()
        try:
            yield said
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(b"", str(path))
            listener.join()


@contextmanager
def kubenpud(file: Path, passed: Sequence[socket.socket] = (), names: str | None = None) -> Iterator[Kubenpud]:
    """Started, not necessarily ready; ended with the block."""
    path = file.parent / "notify"
    with listening_manager(path) as said, (file.parent / "log").open("wb") as log:
        command = [sys.executable, "-m", "kubenpu.service.daemon", "--config.file", str(file)]
        environment = {**os.environ, "NOTIFY_SOCKET": str(path), "PYTHONPATH": str(ROOT)}
        if passed:
            numbers = ",".join(str(each.fileno()) for each in passed)
            command = [sys.executable, "-c", ACTIVATE, numbers, *command]
        if names is not None:
            environment["LISTEN_FDNAMES"] = names
        fds = [each.fileno() for each in passed]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, pass_fds=fds, cwd=ROOT)
        try:
            yield Kubenpud(process, said, file.parent / "log")
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def protected(directory: Path, authority: Authority) -> tuple[Path, Path, int]:
    """Settings file, web configuration and port of a kubenpud with TLS, client certificates and one user."""
    made = authority.issue("server")
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
    web = directory / "web.yml"
    web.write_text(
        f"tls_server_config:\n  cert_file: {made.cert}\n  key_file: {made.key}\n"
        f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority.cert}\n"
        f"basic_auth_users:\n  prometheus: {hashed}\n"
    )
    number = free_port()
    settings = f'web.listen_address = ["localhost:{number}"]\nweb.config.file = "{web}"\n'
    return write_settings(directory, settings), web, number
