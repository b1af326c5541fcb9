# SPDX-License-Identifier: Apache-2.0
"""The README's table of hardware, made from the driver tables. `python -m tests.rules.hardware` puts it there."""

from __future__ import annotations

from collections.abc import Iterable

from kubenpu.devices.schema import CORE_NAME
from kubenpu.devices.tables import load_tables
from kubenpu.model.device import WHATS, DriverTable
from tests.rules.tree import ROOT

BEGIN, END = "<!-- made from kubenpu/devices/drivers -->", "<!-- end -->"
_HEADER = ("driver", "hardware", "nodes", "submissions", "memory", "waits", "device time", "device memory", "note")


def tables() -> list[DriverTable]:
    """Our own tables only, the core's too."""
    loaded = load_tables(ROOT / "no operator's tables")
    assert loaded.errors == ()
    return [loaded.core, *loaded.tables]


def hardware_table(found: Iterable[DriverTable]) -> str:
    """The Markdown, a row per driver by name."""
    rows = [_HEADER, ("---",) * len(_HEADER)]
    rows += [_row(table) for table in sorted(found, key=lambda table: table.name) if table.name != CORE_NAME]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(table: DriverTable) -> tuple[str, ...]:
    subsystems = dict.fromkeys(interface.subsystem for interface in table.interfaces)
    seen = (table.visibility[what].value if what in table.visibility else "" for what in WHATS)
    return f"`{table.name}`", table.hardware, ", ".join(subsystems), *seen, table.visibility_note


def main() -> None:
    path = ROOT / "README.md"
    before, _, rest = path.read_text().partition(f"{BEGIN}\n")
    _, _, after = rest.partition(f"{END}\n")
    path.write_text(f"{before}{BEGIN}\n{hardware_table(tables())}{END}\n{after}")


if __name__ == "__main__":
    main()
