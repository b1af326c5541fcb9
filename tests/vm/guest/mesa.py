# SPDX-License-Identifier: Apache-2.0
"""Real clients of a GPU: a program that draws through Mesa, in a container that sees this system's libraries, or here.

Owns the program, which is compiled here and looks itself whether the picture is right. Programs draw when the gate, a
FIFO, opens: all at once. Then they stay, with the device open, until their pod or unit ends.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.vm.guest import service, wait
from tests.vm.guest.pods import Pod

SOURCE = Path(__file__).with_name("draw_frames.c")
PROGRAM = "/usr/local/bin/draw_frames"
SYSTEM = ("/usr", "/lib", "/lib64")
SHARE = "/share"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A program that draws so many frames, and the series that are its own: family and labels."""

    frames: int
    family: str
    labels: Mapping[str, str]
    output: Callable[[], Sequence[str]]
    pid: Callable[[], int]

    def counted(self) -> dict[str, int]:
        """What kubenpud says of it, by kind, once it has a name."""
        return wait.until(f"series of {self.labels}", lambda: service.counted(self.family, **self.labels))

    def wait_for(self, *lines: str) -> None:
        """Until it has said so much; this, or what went wrong."""
        wait.until(f"{lines} of {self.labels}", lambda: len(self.output()) >= len(lines))
        assert tuple(self.output()) == lines


def compile_program() -> None:
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", PROGRAM, str(SOURCE)]
    subprocess.run([*command, "-lEGL", "-lGLESv2", "-lgbm"], check=True)


def in_pod(pod: Pod, node: str, frames: int, gate: Path, under: Sequence[str] = ()) -> Drawing:
    """In a container of this pod, which has the gate's directory as SHARE. `under`: a command that runs the program."""
    command = [*under, PROGRAM, node, str(frames), f"{SHARE}/{gate.name}"]
    container = pod.run("draw", (), command=command, devices=[node], mounts=[(gate.parent, SHARE)], shared=SYSTEM)
    labels = {"namespace": pod.namespace, "pod": pod.name, "container": "draw"}
    return Drawing(frames, "kubenpu_ioctl_total", labels, container.output, lambda: container.pids()[0])


@contextmanager
def in_unit(unit: str, node: str, frames: int, gate: Path) -> Iterator[Drawing]:
    """In a unit of its own, for the block."""
    output = gate.with_name(unit)
    command = ["systemd-run", "-q", f"--unit={unit}", f"--property=StandardOutput=file:{output}"]
    subprocess.run([*command, PROGRAM, node, str(frames), gate], check=True)
    try:
        yield Drawing(
            frames,
            "kubenpu_host_ioctl_total",
            {"unit": unit},
            lambda: output.read_text().splitlines(),
            lambda: int(service.show(unit, "MainPID")),
        )
    finally:
        service.systemctl("stop", unit)


def let_draw(drawings: Sequence[Drawing], gate: Path) -> None:
    """Open the gate when all stand before it, and wait until all have drawn."""
    for one in drawings:
        one.wait_for("ready")
    with gate.open("w"):
        for one in drawings:
            one.wait_for("ready", "done")
