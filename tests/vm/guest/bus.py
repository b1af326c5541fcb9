# SPDX-License-Identifier: Apache-2.0
"""The guest's system bus, asked with busctl, as root or as somebody else."""

from __future__ import annotations

import json
import subprocess
from typing import Any

OBJECT = ("io.kubenpu", "/io/kubenpu")
NODE = "io.kubenpu.Node1"
By = tuple[str, ...]
"""What is put before a command to make it another user's."""

ROOT: By = ()


def user(number: int) -> By:
    """In the group of the same number and no other."""
    return ("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups")


NOBODY = user(65534)


def busctl(*words: str, by: By = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*by, "busctl", *words], capture_output=True, text=True, check=False, timeout=60)


def call(member: str, *words: str, by: By = ROOT) -> subprocess.CompletedProcess[str]:
    """A method of io.kubenpu.Node1."""
    return busctl("--json=short", "call", *OBJECT, NODE, member, *words, by=by)


def read(member: str, *words: str, by: By = ROOT) -> list[Any]:
    """What a method of it gives."""
    done = call(member, *words, by=by)
    assert done.returncode == 0, done.stderr
    values: list[Any] = json.loads(done.stdout)["data"]
    return values


def version(by: By = ROOT) -> subprocess.CompletedProcess[str]:
    """The question that needs least."""
    return busctl("get-property", *OBJECT, NODE, "Version", by=by)
