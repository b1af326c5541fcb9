# SPDX-License-Identifier: Apache-2.0
"""The iterator over open device files on this kernel: who holds /dev/null, told without a privilege."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.identity.index import cgroup_mount
from kubenpu.kernel import attach, clients
from kubenpu.kernel.libbpf import Messages
from kubenpu.kernel.pins import Pins
from kubenpu.kernel.support import KernelFacts
from kubenpu.model.fdinfo import Holder

MEMORY_DEVICES = (1, 0)  # no accelerator is needed: /dev/null and /dev/zero are as good
NULL = (1, 3)
WITHOUT_CAPABILITY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@pytest.fixture
def pins(facts: KernelFacts) -> Iterator[Pins]:
    made = Pins(Path(f"/sys/fs/bpf/knpu-clients-{os.getpid()}"))
    made.make()
    load(made)
    yield made
    made.remove()


def load(pins: Pins, majors: tuple[int, int] = MEMORY_DEVICES) -> None:
    clients.pin_iterator(pins, attach.object_path(clients.STEM), Messages(), majors)


def mine(pins: Pins, *pids: int) -> dict[int, Holder]:
    """By descriptor, of these processes (this one when none is named) on /dev/null."""
    found = clients.read_holders(pins)
    return {h.fd: h for h in found if (h.major, h.minor) == NULL and h.tgid in (pids or (os.getpid(),))}


def test_each_descriptor_with_where_it_is(pins: Pins) -> None:
    mount = cgroup_mount("")
    own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    with Path("/dev/null").open("rb") as one, Path("/dev/null").open("rb") as other:
        fd, again = one.fileno(), os.dup(one.fileno())
        found = mine(pins)
        os.close(again)
        holder = found[fd]
        assert holder.cgroup_id == (mount / own.lstrip("/")).stat().st_ino
        assert (holder.ino, holder.pid) == (os.fstat(fd).st_ino, os.getpid())
        assert 0 < holder.start_ns < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert found[again].file == holder.file != found[other.fileno()].file
    assert fd not in mine(pins)


def test_a_file_that_two_processes_share_is_one(pins: Pins) -> None:
    """Handed over through a socket."""
    with Path("/dev/null").open("rb") as shared:
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            _, taken, _, _ = socket.recv_fds(theirs, 1, 1)
            os.write(theirs.fileno(), bytes(taken))
            theirs.recv(1)
            os._exit(0)
        try:
            socket.send_fds(ours, [b"x"], [shared.fileno()])
            received = ours.recv(1)[0]
            assert mine(pins, child)[received].file == mine(pins)[shared.fileno()].file
        finally:
            ours.send(b"x")
            os.waitpid(child, 0)
            ours.close()
            theirs.close()


def test_threads_are_not_listed_apart(pins: Pins) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with Path("/dev/null").open("rb") as file:
            found = [h for h in clients.read_holders(pins) if (h.tgid, h.fd) == (os.getpid(), file.fileno())]
        assert [h.pid for h in found] == [os.getpid()]
    finally:
        stop.set()
        thread.join()


def test_only_the_majors_that_were_asked_for(pins: Pins) -> None:
    with Path("/dev/null").open("rb"):
        assert {h.major for h in clients.read_holders(pins)} == {1}
        load(pins, (226, 261))
        assert not mine(pins)
    assert [path.name for path in pins.root.iterdir()] == ["clients_iter"]


def test_more_descriptors_than_one_page_of_the_answer(pins: Pins) -> None:
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(500)]
    try:
        assert set(opened) <= set(mine(pins))
    finally:
        for fd in opened:
            os.close(fd)


def test_reading_needs_no_capability_but_to_be_root(pins: Pins) -> None:
    command = [*WITHOUT_CAPABILITY, "cat", str(pins.iterator(clients.STEM))]
    with Path("/dev/null").open("rb") as file:
        done = subprocess.run(command, capture_output=True, check=True)
        assert os.fstat(file.fileno()).st_ino.to_bytes(8, "little") in done.stdout
    refused = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", *command[len(WITHOUT_CAPABILITY) :]], check=False
    )
    assert refused.returncode != 0
