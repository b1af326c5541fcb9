# SPDX-License-Identifier: Apache-2.0
"""pytest plugin on the host: every case below cases/ becomes one item per guest; each guest boots once for all of its.

`pytest tests/vm` runs all; `-k`, node ids and -x work as usual; KUBENPU_VM_GUESTS=trixie,bookworm chooses guests, and
those of another machine or with a GPU that draws run only when they are chosen.
A guest gets exactly the selected cases, and two run at a time; an item passes when the guest said so. A guest that has
cases marked after_reboot boots once more for them, when it is through with the others.
A case that is skipped inside a guest, or about which the guest said nothing, has failed; so has the whole run when a
guest ended badly or its kernel complained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.vm import display, image
from tests.vm.run import CaseResult, GuestRun

CASES = Path(__file__).with_name("cases")


class CaseFailedError(Exception):
    """A case failed inside its guest; the text is what pytest said there."""


class GuestCase(pytest.Item):
    """One case in one guest."""

    guest: str
    case: str
    result: CaseResult | None

    def runtest(self) -> None:
        self.result = _run_of(self).result(self.case)
        self.add_report_section("call", "in the guest", self.result.text)
        if self.result.outcome != "passed":
            raise CaseFailedError(f"{self.result.outcome} in {self.guest}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


RUNS = pytest.StashKey[dict[str, GuestRun]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[RUNS] = {}
    names = [name for name in os.environ.get("KUBENPU_VM_GUESTS", "").split(",") if name] or _ordinary()
    cases = [item for item in items if CASES in item.path.parents]
    others = [item for item in items if CASES not in item.path.parents]
    items[:] = others + [_in_guest(case, name) for name in names for case in cases if name in _guests_of(case, names)]


def _ordinary() -> list[str]:
    """Guests of this machine with nothing special to their hardware: they have every case that does not say more."""
    ours = [recipe.name for recipe in image.read_recipes().values() if recipe.machine == image.MACHINE]
    return [name for name in ours if name not in display.GUESTS]


def _guests_of(case: pytest.Item, names: Sequence[str]) -> Sequence[str]:
    marker, recipes = case.get_closest_marker("guests"), image.read_recipes()
    mine = marker.args if marker else _ordinary()
    others = [name for name in names if recipes[name].machine != image.MACHINE]
    return [*mine, *others] if case.get_closest_marker("every_machine") else mine


def _in_guest(case: pytest.Item, guest: str) -> GuestCase:
    stem, bracket, parameters = case.name.partition("[")
    name = f"{stem}[{guest}-{parameters}" if bracket else f"{stem}[{guest}]"
    assert case.parent is not None
    item: GuestCase = GuestCase.from_parent(case.parent, name=name)
    item.guest, item.case, item.result = guest, case.nodeid, None
    item.own_markers.extend(case.iter_markers())
    return item


def _run_of(item: GuestCase) -> GuestRun:
    """The run of the item's guest. With the first item all guests set out, as many at a time as the machine bears."""
    runs = item.config.stash[RUNS]
    if not runs:
        mine: dict[str, tuple[list[str], list[str]]] = {}
        for one in item.session.items:
            if isinstance(one, GuestCase):
                later = one.get_closest_marker("after_reboot") is not None
                mine.setdefault(one.guest, ([], []))[later].append(one.case)
        runs |= {guest: GuestRun(guest, *cases) for guest, cases in mine.items()}
    return runs[item.guest]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    if isinstance(item, GuestCase) and item.result is not None:
        report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's result of a hook wrapper
        if report.when == "call":
            report.duration = item.result.seconds


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    runs = session.config.stash.get(RUNS, {}).values()
    for run in runs:
        if exitstatus == pytest.ExitCode.INTERRUPTED or session.shouldstop or session.shouldfail:
            run.cut()
        else:
            run.finish()
    if any(run.problem for run in runs) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, run in config.stash.get(RUNS, {}).items():
        terminalreporter.write_line(f"guest {name}: {run.summary}")
        if run.problem:
            terminalreporter.section(f"trouble in guest {name}")
            terminalreporter.write_line(run.problem)
