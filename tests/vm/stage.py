# SPDX-License-Identifier: Apache-2.0
"""What is put into a guest: one tar file, unpacked over the guest's root directory before the job begins.

Everything is below GUEST_TREE: the Debian packages of the product, which the job installs, the tests, and what is built
here for them: the static workload and the Python stubs of the test's own CRI client. Made anew for every run, in the
directory of the caller.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.vm import packages

TREE = Path(__file__).resolve().parents[2]
GUEST_TREE = "/opt/kubenpu"
WORKLOAD = "bin/workload"
PACKAGES = "packages"
# By machine and suffix of the workload's name. An arm64 program cannot make the calls of a 32-bit one, so that is
# another, linked for pages of any size.
COMPILERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": {"": ("gcc",)},
    "aarch64": {"": ("aarch64-linux-gnu-gcc",), "32": ("arm-linux-gnueabihf-gcc", "-Wl,-z,max-page-size=65536")},
}


def make_payload(scratch: Path, machine: str) -> Path:
    """Build the tar file inside `scratch`, an empty directory that the caller removes, for a guest of this machine."""
    root, payload = scratch / "stage", scratch / "stage.tar"
    tree = root / GUEST_TREE.lstrip("/")
    tree.mkdir(parents=True)
    shutil.copytree(packages.ensure(), tree / PACKAGES)
    _copy_tests(tree)
    _build_workloads(tree, machine)
    _build_cri_stubs(tree)
    subprocess.run(["tar", "-C", root, "--owner=0", "--group=0", "-cf", payload, "."], check=True)
    return payload


def _copy_tests(tree: Path) -> None:
    shutil.copytree(TREE / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__", ".*"))


def _build_workloads(tree: Path, machine: str) -> None:
    (tree / "bin").mkdir()
    source = TREE / "tests/vm/guest/workload.c"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    for suffix, compiler in COMPILERS[machine].items():
        subprocess.run([*compiler, *flags, "-o", f"{tree / WORKLOAD}{suffix}", source], check=True)


def _build_cri_stubs(tree: Path) -> None:
    guest = tree / "tests/vm/guest"
    subprocess.run(["protoc", f"-I{guest}", f"--python_out={guest}", guest / "cri_client.proto"], check=True)
