# SPDX-License-Identifier: Apache-2.0
"""What is put into a guest: one tar file, unpacked over the guest's root directory before the job begins.

It holds the product as `make install DESTDIR=` lays it out, the tests below GUEST_TREE, and what is built here for
them: the static workload and the Python stubs of the test's own CRI client. Made anew for every run, in the directory
of the caller. Refuses to go on when the product does not install.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
GUEST_TREE = "/opt/kubenpu"
WORKLOAD = "bin/workload"


def make_payload(scratch: Path) -> Path:
    """Build the tar file inside `scratch`, an empty directory that the caller removes."""
    root, payload = scratch / "stage", scratch / "stage.tar"
    tree = root / GUEST_TREE.lstrip("/")
    tree.mkdir(parents=True)
    _install_product(root)
    _copy_tests(tree)
    _build_workload(tree)
    _build_cri_stubs(tree)
    subprocess.run(["tar", "-C", root, "--owner=0", "--group=0", "-cf", payload, "."], check=True)
    return payload


def _install_product(root: Path) -> None:
    makefile = TREE / "Makefile"
    if makefile.exists() and "\ninstall:" in makefile.read_text():
        subprocess.run(["make", "--silent", "-C", TREE, "install", f"DESTDIR={root}"], check=True)
    else:
        package = root / "usr/lib/python3/dist-packages/kubenpu"
        shutil.copytree(TREE / "kubenpu", package, ignore=shutil.ignore_patterns("__pycache__"))


def _copy_tests(tree: Path) -> None:
    shutil.copytree(TREE / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__", ".*"))


def _build_workload(tree: Path) -> None:
    (tree / "bin").mkdir()
    source = TREE / "tests/vm/guest/workload.c"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    subprocess.run(["gcc", *flags, "-o", tree / WORKLOAD, source], check=True)


def _build_cri_stubs(tree: Path) -> None:
    guest = tree / "tests/vm/guest"
    subprocess.run(["protoc", f"-I{guest}", f"--python_out={guest}", guest / "cri_client.proto"], check=True)
