# SPDX-License-Identifier: Apache-2.0
"""The documents say what is there: targets, drivers, metrics and losses are compared with what they describe."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kubenpu.cli.main import COMMANDS, EXIT_CODES
from kubenpu.config.settings import SETTINGS
from kubenpu.devices.schema import CORE_NAME
from kubenpu.exporters.metrics import METRICS
from kubenpu.kernel.losses import LOSSES
from kubenpu.model.kinds import KINDS
from make_pages import PAGES
from tests.rules.hardware import BEGIN, END, hardware_table, tables
from tests.rules.tree import ROOT, files, shown, table_below

README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
HACKING = (ROOT / "HACKING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def code(text: str) -> str:
    return text.strip("`")


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "HACKING.md", "NEWS.md"])
def test_targets_that_are_named_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.M))
    named = set(re.findall(r"\bmake ([a-z-]+)(?=[`\n])", (ROOT / document).read_text()))
    assert named - targets == set()


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "HACKING.md"])
def test_parts_of_modules_that_are_named_exist(document: str) -> None:
    named = set(re.findall(r"`(?:\w+\.)?(_[a-z]\w*|_[A-Z]\w*)(?:\(\))?`", (ROOT / document).read_text()))
    text = "\n".join(path.read_text() for path in files(".py", below="kubenpu"))
    assert named
    assert {name for name in named if not re.search(rf"^ *(?:(?:async )?def |class )?{name}\b", text, re.M)} == set()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    (command,) = re.findall(r"^exec (make \w+)", (ROOT / ".ci/run").read_text(), re.M)
    assert f"\n{command} " in README


def test_phony_targets_exist() -> None:
    """A target that is announced but has no rule would succeed without doing anything."""
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert [name for name in phony.split() if not re.search(rf"^{name}:", MAKEFILE, re.M)] == []


def test_readme_tells_what_is_seen_of_each_driver() -> None:
    (section,) = re.findall(rf"{re.escape(BEGIN)}\n(.*?){re.escape(END)}\n", README, re.S)
    wanted = hardware_table(tables())
    assert section == wanted, f"Put this between the marks, or run python -m tests.rules.hardware:\n{wanted}"


@pytest.mark.parametrize("path", files(".toml", below="kubenpu/devices/drivers"), ids=shown)
def test_driver_table_is_named_after_its_driver(path: Path) -> None:
    """The core's table is the DRM core's, whose name is drm."""
    assert tomllib.loads(path.read_text())["name"] == (CORE_NAME if path.stem == "core" else path.stem)


def test_readme_lists_the_kinds() -> None:
    assert [code(row[0]) for row in table_below(README, "## What is counted")] == [kind.label for kind in KINDS]


def test_readme_lists_the_metrics() -> None:
    documented = [code(row[0]) for row in table_below(README, "## Metrics")]
    assert documented == [metric.name for metric in METRICS]


def test_readme_names_the_subcommands() -> None:
    names = {command.name for command in COMMANDS}
    assert set(re.findall(r"^kubenpuctl ([a-z]+)", README, re.M)) == names


def test_readme_tells_the_exit_codes() -> None:
    assert f"Exit codes: {', '.join(f'{code} {text}' for code, text in EXIT_CODES.items())}." in README


def test_readme_names_the_man_pages() -> None:
    named = set(re.findall(r"`([\w.-]+\([1-8]\))`", README))
    assert named == {page.reference for page in PAGES}


def test_readme_shows_settings_that_exist() -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", README, re.M | re.S)
    document = tomllib.loads(example)
    keys = {f"{section}.{key}" for section, table in document.items() for key in table}
    assert keys
    assert keys - {setting.key for setting in SETTINGS} == set()


def test_architecture_explains_every_loss() -> None:
    documented = [(code(row[0]), *row[1:]) for row in table_below(ARCHITECTURE, "### Losses")]
    assert documented == [tuple(loss) for loss in LOSSES]
