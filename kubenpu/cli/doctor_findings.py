# SPDX-License-Identifier: Apache-2.0
"""What a check of `kubenpuctl doctor` is given and gives: the place to look, read once, and findings.

Data comes from the settings and, when a check asks for it, from the kernel, sysfs and one scrape of the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from kubenpu.cli.packages import explain_missing
from kubenpu.config.settings import Settings
from kubenpu.devices.discovery import Inventory, discover, read_module_version
from kubenpu.devices.tables import LoadedTables, complete, load_tables
from kubenpu.kernel.pins import Pins
from kubenpu.kernel.support import KernelFacts, read_facts
from kubenpu.model.errors import ConfigError, KubeNpuError, SourceError, UnreachableError

if TYPE_CHECKING:
    from kubenpu.exporters.scrape import Row

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer. `remedy` is empty when nothing is to be done."""

    check: str
    found: str
    needed: str
    remedy: str = ""
    status: str = OK


class Scrape(NamedTuple):
    """Rows and from where, or why there are none; `refused`: somebody answers, but not us."""

    url: str = ""
    rows: Sequence[Row] = ()
    error: SourceError | None = None
    refused: bool = False


class Examination:
    """Where to look, and what several checks need, read once and only when asked for.

    `urls` are those of one daemon; the first that lets us read is as good as any other.
    """

    def __init__(self, settings: Settings, urls: Sequence[str], settings_error: ConfigError | None = None) -> None:
        self.settings = settings
        self.settings_error = settings_error
        self.urls = urls
        self.pins = Pins(settings.pin_directory)

    @cached_property
    def facts(self) -> KernelFacts:
        return read_facts()

    @cached_property
    def tables(self) -> LoadedTables:
        return load_tables(self.settings.drivers_directory)

    @cached_property
    def inventory(self) -> Inventory:
        return discover(self.settings.sysfs, self.tables.tables)

    @cached_property
    def tables_in_force(self) -> LoadedTables:
        """Of the drivers of the devices that are there, with the calls of the releases that are loaded."""
        names = {device.vendor for device in self.inventory.devices}
        return complete(self.tables, names, partial(read_module_version, self.settings.sysfs))

    @cached_property
    def scrape(self) -> Scrape:
        try:
            from kubenpu.exporters.scrape import RefusedError, fetch  # noqa: PLC0415 - what it needs may be missing
        except ModuleNotFoundError as error:
            return Scrape(error=SourceError(*explain_missing(error)))
        errors: list[SourceError] = []
        for url in self.urls:
            try:
                return Scrape(url, fetch(url))
            except SourceError as error:
                errors.append(error)
        # Who refuses tells more than who is something else, and that one more than silence.
        told = max(errors, key=lambda e: (isinstance(e, RefusedError), not isinstance(e, UnreachableError)))
        return Scrape(error=told, refused=isinstance(told, RefusedError))

    def values(self, metric: str) -> list[Row]:
        """Samples of one metric. SourceError when the daemon does not answer or lets us read nothing."""
        scrape = self.scrape
        if scrape.error is not None:
            why = "lets this user read nothing" if scrape.refused else "does not answer"
            raise SourceError(f"not known: kubenpud {why}")
        return [row for row in scrape.rows if row.name == metric]


Check = Callable[[Examination], Iterable[Finding]]


def examine(node: Examination, checks: Iterable[tuple[str, Check]]) -> list[Finding]:
    """Every check; one that cannot be done is a finding too."""
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check(node)
        except KubeNpuError as error:
            findings.append(Finding(name, error.cause, "an answer", error.remedy, WARN))
        except ModuleNotFoundError as error:
            findings.append(Finding(name, explain_missing(error)[0], "an answer", explain_missing(error)[1], WARN))
        except OSError as error:
            remedy = "Run as root to see it" if isinstance(error, PermissionError) else ""
            findings.append(Finding(name, f"cannot be read: {error.strerror}", "an answer", remedy, WARN))
    return findings
