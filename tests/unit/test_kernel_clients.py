# SPDX-License-Identifier: Apache-2.0
"""The list of holders as it is read from the pin, whatever the size of the pieces in which it comes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kubenpu.kernel import clients, layout
from kubenpu.kernel.pins import Pins
from kubenpu.model.errors import SourceError
from kubenpu.model.fdinfo import Holder

RECORD = bytes(layout.Holder(file=1 << 63, cgroup_id=2, start_ns=3, ino=4, rdev=226 << 20 | 128, tgid=5, pid=6, fd=7))
HOLDER = Holder(1 << 63, 2, 3, 4, 226, 128, 5, 6, 7)


@pytest.mark.parametrize("chunk_bytes", [1, 47, 48, 49, 4096])
def test_records_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    pins = Pins(tmp_path)
    pins.make()
    pins.iterator(clients.STEM).write_bytes(RECORD * 3)
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, _size: read(fd, chunk_bytes))
    assert list(clients.read_holders(pins)) == [HOLDER] * 3


def test_a_million_other_descriptors_are_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the kernel says EAGAIN, as often as it takes; what takes too long is said."""
    pins = Pins(tmp_path)
    pins.make()
    pins.iterator(clients.STEM).write_bytes(RECORD)
    read, times = os.read, iter(range(6))

    def reluctant(fd: int, size: int) -> bytes:
        if next(times, 6) % 3:
            raise BlockingIOError(errno.EAGAIN, "again")
        return read(fd, size)

    monkeypatch.setattr(os, "read", reluctant)
    assert list(clients.read_holders(pins)) == [HOLDER]
    monkeypatch.setattr(clients, "LONGEST_S", -1.0)
    with pytest.raises(SourceError, match="more descriptors are open"):
        list(clients.read_holders(pins))


def test_nobody_holds_anything(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    pins.make()
    pins.iterator(clients.STEM).touch()
    assert list(clients.read_holders(pins)) == []


def test_no_pin_says_what_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is not there\. See what kubenpu-probe says"):
        list(clients.read_holders(Pins(tmp_path)))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    pins.iterator(clients.STEM).mkdir(parents=True)
    with pytest.raises(SourceError, match=r"cannot read .*clients_iter: Is a directory"):
        list(clients.read_holders(pins))
