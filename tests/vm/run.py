# SPDX-License-Identifier: Apache-2.0
"""One guest's run of the cases: started, listened to while it goes on, and looked over when it has ended.

Owns the powered guest, its place on this machine and the scratch directory until `finish` or `cut` is done.
Results are read from results.jsonl in the share, where guest/reporting.py writes them. Raises nothing for what goes
wrong in or with the guest: that is the text of a result or of `problem`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.vm import image, rig, stage

COMMAND = "KUBENPU_VM_GUEST={guest} python3 -B -m pytest --rootdir=. -c /dev/null -p no:cacheprovider -v {cases}"
# Run at each boot. --force, as the end of the job's unit would switch the machine off.
REBOOT = """\
if [ ! -e /opt/booted ]; then
    : >/opt/booted
    rc=0
    {first} || rc=$?
    echo $rc >/opt/rc
    journalctl -b -o short-monotonic --no-pager >/mnt/journal-1.txt
    sync
    systemctl reboot --force
    exec sleep infinity
fi
{second} && exit "$(cat /opt/rc)"
"""
POLL_SECONDS = 0.1
PREPARING = threading.Lock()  # images and packages are made by one at a time
KERNEL_COMPLAINT = re.compile(r"WARNING: |BUG: |Oops|general protection fault|KASAN|possible recursive locking")
END_OF_TRACE = "---[ end trace"
TRACE_LINES = 100
# virtio_gpu (6.12, 7.3), taken off its device while the busy host still owes it answers: it forgets a buffer of its own
KERNEL_BUG, ITS_CALLER = "drm_mm_takedown+", " virtio_dev_remove+"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a guest reported of one case."""

    outcome: str
    seconds: float
    text: str


class GuestRun:
    """One guest from power-on to power-off, followed by a thread of its own; other guests may run meanwhile."""

    def __init__(self, guest: str, cases: Sequence[str], after_reboot: Sequence[str] = ()) -> None:
        self.guest = guest
        self.summary = "did not boot"
        self.problem = ""
        self._died = ""
        self._command = self._pytest(cases)
        self._reboots = bool(after_reboot)
        if after_reboot:
            self._command = REBOOT.format(first=self._command if cases else "true", second=self._pytest(after_reboot))
        self._results: dict[str, CaseResult] = {}
        self._news = threading.Condition()
        self._over = False
        self._cut = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=guest, daemon=True)
        self._thread.start()

    def _pytest(self, cases: Sequence[str]) -> str:
        return COMMAND.format(guest=self.guest, cases=shlex.join(cases))

    def result(self, case: str) -> CaseResult:
        """The result of this case, as soon as the guest has it."""
        with self._news:
            self._news.wait_for(lambda: self._over or case in self._results)
            return self._results.get(case) or CaseResult(
                "failed", 0.0, f"The guest said nothing of it.\n{self.problem}"
            )

    def finish(self) -> None:
        """Wait until the guest has switched itself off and was looked over."""
        self._thread.join()

    def cut(self) -> None:
        """Power off, whatever the guest is doing."""
        self._cut.set()
        self._thread.join()

    def _follow(self) -> None:
        try:
            try:
                self._run()
            except rig.NeverStartedError:  # now and then the emulator breaks code that a booting kernel is patching
                self._died = ", died at its first boot"
                self._run()
        except (OSError, subprocess.CalledProcessError, rig.GuestError) as error:
            self.problem = f"{error}"
        finally:
            with self._news:
                self._over = True
                self._news.notify_all()

    def _run(self) -> None:
        with ExitStack() as stack:
            machine = self._power_on(stack)
            while machine.running() and not self._cut.wait(POLL_SECONDS):
                self._read_results()
            if not self._cut.is_set():
                self._look_over(machine.wait())

    def _power_on(self, stack: ExitStack) -> rig.Machine:
        with PREPARING:
            self._image = image.ensure(self.guest)
        stack.enter_context(rig.machine_lock())
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        self._share = rig.fresh_share(self.guest)
        output = stack.enter_context((self._share / "output.log").open("wb"))
        with PREPARING:
            payload = stage.make_payload(scratch, self._image.machine)
        job = rig.Job(self._command, payload, reboots=self._reboots)
        self.summary = f"{self._image.kernel_release}{self._died}, did not come to its end"
        return stack.enter_context(rig.Machine(self._image, job, self._share, output))

    def _look_over(self, outcome: rig.Outcome) -> None:
        self._read_results()
        built = f", image built in {self._image.build_seconds:.0f} s" if self._image.build_seconds else ""
        times = f"booted in {outcome.boot_seconds:.0f} s, cases took {outcome.job_seconds:.0f} s"
        self.summary = f"{self._image.kernel_release}{built}{self._died}, {times}"
        failed = any(result.outcome != "passed" for result in self._results.values())
        oddly_ended = outcome.rc != 0 and not failed
        self.problem = "\n".join([*self._kernel_complaints(), *([self._output()] if oddly_ended else [])])

    def _read_results(self) -> None:
        lines = self._share / "results.jsonl"
        if lines.exists():
            whole_lines = lines.read_text().rpartition("\n")[0].splitlines()
            for line in whole_lines[len(self._results) :]:
                told = json.loads(line)
                with self._news:
                    self._results[told["case"]] = CaseResult(told["outcome"], told["seconds"], told["text"])
                    self._news.notify_all()

    def _kernel_complaints(self) -> list[str]:
        journals = [path.read_text(errors="replace") for path in sorted(self._share.glob("journal*.txt"))]
        return [line for journal in journals for line in _complaints(journal.splitlines())]

    def _output(self) -> str:
        text = (self._share / "output.log").read_text(errors="replace")
        return "--- end of its output\n" + "\n".join(text.splitlines()[-60:])


def _complaints(journal: Sequence[str]) -> Iterator[str]:
    """The lines in which the kernel complains, but for the bug that we know by its trace."""
    for number, line in enumerate(journal):
        if " kernel: " in line and KERNEL_COMPLAINT.search(line):
            below = journal[number : number + TRACE_LINES]
            trace = takewhile(lambda text: END_OF_TRACE not in text, below)
            if KERNEL_BUG not in line or not any(ITS_CALLER in text for text in trace):
                yield line
