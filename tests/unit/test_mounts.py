# SPDX-License-Identifier: Apache-2.0
"""Mount points, from texts as /proc/self/mounts has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.model.mounts import find_mount

MOUNTS = """\
proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0
tmpfs /sys/fs/cgroup tmpfs ro,nosuid,nodev,noexec,size=4096k,nr_inodes=1024,mode=755 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,nodev,noexec,relatime,cpu,cpuacct 0 0
none /sys/fs/bpffs bpf rw,relatime,mode=700 0 0
bpf /sys/fs/bpf bpf rw,nosuid,nodev,noexec,relatime,mode=700 0 0
bpf /run/cilium/bpf bpf rw 0 0
none /mnt/a\\040b\\134c odd rw 0 0

broken
cgroup2
"""


@pytest.mark.parametrize(
    ("kind", "below", "mount"),
    [
        ("bpf", "/sys/fs/bpf", "/sys/fs/bpf"),
        ("bpf", "/run/", "/run/cilium/bpf"),
        ("bpf", "/", "/sys/fs/bpffs"),
        ("cgroup2", "/", "/sys/fs/cgroup/unified"),
        ("cgroup", "/sys/fs/bpf", None),
        ("odd", "/", r"/mnt/a b\c"),
        ("ext4", "/", None),
    ],
)
def test_mounts(kind: str, below: str, mount: str | None) -> None:
    assert find_mount(MOUNTS, kind, below) == (Path(mount) if mount else None)


@given(st.text(max_size=60))
def test_any_text_gives_an_answer(text: str) -> None:
    mount = find_mount(text, "bpf", "/sys/fs/bpf")
    assert mount is None or str(mount).startswith("/sys/fs/bpf")
