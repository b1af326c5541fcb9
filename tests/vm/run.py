# SPDX-License-Identifier: Apache-2.0
"""One guest's run of the cases: started, listened to while it goes on, and looked over when it has ended.

Owns the powered guest, the machine's lock and the scratch directory between construction and `finish` or `cut`.
Results are read from results.jsonl in the share, where guest/reporting.py writes them. Raises nothing for what goes
wrong in or with the guest: that is the text of a result or of `problem`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.vm import image, rig, stage

COMMAND = "KUBENPU_VM_GUEST={guest} python3 -B -m pytest --rootdir=. -c /dev/null -p no:cacheprovider -v {cases}"
POLL_SECONDS = 0.1
KERNEL_COMPLAINT = re.compile(r"WARNING: |BUG: |Oops|general protection fault|KASAN|possible recursive locking")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a guest reported of one case."""

    outcome: str
    seconds: float
    text: str


class GuestRun:
    """One guest from power-on to power-off, what it has reported so far, and what went wrong besides cases."""

    def __init__(self, guest: str, cases: Sequence[str]) -> None:
        self.guest = guest
        self.summary = "did not boot"
        self.problem = ""
        self._results: dict[str, CaseResult] = {}
        self._stack = ExitStack()
        self._machine: rig.Machine | None = None
        try:
            self._start(cases)
        except (OSError, subprocess.CalledProcessError, rig.GuestError) as error:
            self._end(f"{error}")

    def _start(self, cases: Sequence[str]) -> None:
        self._image = image.ensure(self.guest)
        self._stack.enter_context(rig.machine_lock())
        scratch = Path(self._stack.enter_context(TemporaryDirectory()))
        self._share = rig.fresh_share(self.guest)
        output = self._stack.enter_context((self._share / "output.log").open("wb"))
        job = rig.Job(COMMAND.format(guest=self.guest, cases=shlex.join(cases)), stage.make_payload(scratch))
        self._machine = self._stack.enter_context(rig.Machine(self._image, job, self._share, output))
        self.summary = f"{self._image.kernel_release}, did not come to its end"

    def result(self, case: str) -> CaseResult:
        """The result of this case, as soon as the guest has it."""
        while case not in self._results and self._machine is not None:
            try:
                on = self._machine.running()
            except rig.GuestError as error:
                self._end(f"{error}")
                break
            self._read_results()
            if case not in self._results and not on:
                self.finish()
            time.sleep(POLL_SECONDS)
        return self._results.get(case) or CaseResult("failed", 0.0, f"The guest said nothing of it.\n{self.problem}")

    def finish(self) -> None:
        """Wait until the guest has switched itself off, and look at what it left."""
        if self._machine is None:
            return
        try:
            outcome = self._machine.wait()
        except rig.GuestError as error:
            self._end(f"{error}")
            return
        built = f", image built in {self._image.build_seconds:.0f} s" if self._image.build_seconds else ""
        times = f"booted in {outcome.boot_seconds:.0f} s, cases took {outcome.job_seconds:.0f} s"
        self.summary = f"{self._image.kernel_release}{built}, {times}"
        failed = any(result.outcome != "passed" for result in self._results.values())
        oddly_ended = outcome.rc != 0 and not failed
        self._end("\n".join([*self._kernel_complaints(), *([self._output()] if oddly_ended else [])]))

    def cut(self) -> None:
        """Power off, whatever the guest is doing."""
        self._end(self.problem)

    def _end(self, problem: str) -> None:
        self.problem = problem
        self._machine = None
        self._stack.close()

    def _read_results(self) -> None:
        lines = self._share / "results.jsonl"
        if lines.exists():
            whole_lines = lines.read_text().rpartition("\n")[0].splitlines()
            for line in whole_lines[len(self._results) :]:
                told = json.loads(line)
                self._results[told["case"]] = CaseResult(told["outcome"], told["seconds"], told["text"])

    def _kernel_complaints(self) -> list[str]:
        journal = (self._share / "journal.txt").read_text(errors="replace").splitlines()
        return [line for line in journal if " kernel: " in line and KERNEL_COMPLAINT.search(line)]

    def _output(self) -> str:
        text = (self._share / "output.log").read_text(errors="replace")
        return "--- end of its output\n" + "\n".join(text.splitlines()[-60:])
