# SPDX-License-Identifier: Apache-2.0
"""The workload's own account of what it did: the truth that counters are compared with."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

WORKLOAD = Path("/opt/kubenpu/bin/workload")
WORKLOAD32 = Path("/opt/kubenpu/bin/workload32")  # where the other cannot make the calls of a 32-bit program


@dataclass(frozen=True, slots=True)
class Tally:
    """Calls by ioctl number: returned well, returned an error, still inside the kernel when it was killed."""

    ok: dict[int, int]
    error: dict[int, int]
    inside: dict[int, int]

    @property
    def calls(self) -> dict[int, int]:
        """Finished calls by number."""
        return {nr: self.ok[nr] + self.error[nr] for nr in self.ok}

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    @property
    def total_errors(self) -> int:
        return sum(self.error.values())

    def __add__(self, other: Tally) -> Tally:
        return Tally(_added(self.ok, other.ok), _added(self.error, other.error), _added(self.inside, other.inside))


NOTHING = Tally({}, {}, {})


def parse(line: str) -> Tally:
    """Decode one line that the workload printed."""
    counts = {int(nr, 16): numbers for nr, numbers in json.loads(line)["calls"].items()}
    return Tally(
        ok={nr: numbers[0] for nr, numbers in counts.items()},
        error={nr: numbers[1] for nr, numbers in counts.items()},
        inside={nr: numbers[2] - numbers[0] - numbers[1] for nr, numbers in counts.items()},
    )


def read_file(path: Path) -> Tally:
    """What a workload left in its --tally file, killed or not."""
    return parse(subprocess.run([WORKLOAD, "--read", path], check=True, capture_output=True, text=True).stdout)


def program(args: Sequence[str]) -> Path:
    """The workload that can do this."""
    return WORKLOAD32 if "--compat" in args and WORKLOAD32.exists() else WORKLOAD


def run(*args: str) -> Tally:
    """Run the workload here, in the cgroup of the caller, to its end."""
    return parse(subprocess.run([program(args), *args], check=True, capture_output=True, text=True).stdout)


def total(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, NOTHING)


def _added(left: dict[int, int], right: dict[int, int]) -> dict[int, int]:
    return {nr: left.get(nr, 0) + right.get(nr, 0) for nr in sorted({*left, *right})}
