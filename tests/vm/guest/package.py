# SPDX-License-Identifier: Apache-2.0
"""The installed Debian package kubenpu: put in, replaced, taken out, by dpkg and without a question.

Owns nothing: what it changes stays, and the caller puts it back. Versions are those that tests/vm/packages.py built:
`this` and `next`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

PACKAGES = Path("/opt/kubenpu/packages")
# The image and its job have these; it leaves out documents, which dpkg then misses.
OF_THE_RIG = {
    "/etc/systemd/journald.conf.d/kubenpu.conf",
    "/etc/systemd/system/kubenpu-job.service",
    "/etc/systemd/system/kubenpu-rig.target",
    "/run/systemd/units/invocation:kubenpu-job.service",
    "/usr/lib/kubenpu-job",
}
LEFT_OUT = ("/usr/share/doc/", "/usr/share/man/")
SEARCHED = ("/boot", "/etc", "/root", "/run", "/sys/fs/bpf", "/tmp", "/usr", "/var")


def install(version: str) -> str:
    """Install, upgrade or downgrade; edited files stay as they are. Returns what dpkg and the scripts said."""
    (package,) = (PACKAGES / version).glob("kubenpu_*.deb")
    return _dpkg("--force-confdef", "--force-confold", "--install", str(package))


def remove() -> None:
    _dpkg("--remove", "kubenpu")


def purge() -> None:
    _dpkg("--purge", "kubenpu")


def status() -> tuple[str, str]:
    """State and version as dpkg has them; nothing of what it has forgotten."""
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "kubenpu"]
    state, _, version = subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition(" ")
    return state, version


def changed_files() -> set[str]:
    """Installed files that differ from the package's, as `dpkg --verify` tells."""
    lines = subprocess.run(["dpkg", "--verify", "kubenpu"], capture_output=True, text=True, check=False).stdout
    names = {line.split()[-1] for line in lines.splitlines()}
    return {name for name in names if not f"{name}/".startswith(LEFT_OUT)}


def remains() -> set[str]:
    """Every path of this system that has our name."""
    command = ["find", *SEARCHED, "-xdev", "-iname", "*kubenpu*"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()) - OF_THE_RIG


def _dpkg(*arguments: str) -> str:
    done = subprocess.run(
        ["dpkg", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    return done.stdout
