# SPDX-License-Identifier: Apache-2.0
"""What a reload applies and what waits for a restart: the table of settings decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubenpu.config import settings as module
from kubenpu.config.reload import plan_reload
from kubenpu.config.settings import SETTINGS, Setting, Settings, parse_daemon_arguments, read_settings


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    monkeypatch.setattr(module, "DEFAULT_FILE", tmp_path / "none.toml")
    return read_settings(parse_daemon_arguments([]))


def other_value(setting: Setting) -> Any:
    """A value of the right type that is not the default."""
    match setting.default:
        case bool():
            return not setting.default
        case int():
            return setting.default + 1
        case tuple():
            return ("unix:/else",)
        case Path():
            return Path("/else")
        case _:
            return "else"


def test_nothing_changed(running: Settings) -> None:
    plan = plan_reload(running, running)
    assert plan.settings == running
    assert plan.describe() == "no setting that can be applied changed"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_is_applied_or_waits(running: Settings, setting: Setting) -> None:
    read = replace(running, **{setting.field: other_value(setting)})
    plan = plan_reload(running, read)
    if setting.needs_restart:
        assert (plan.settings, plan.applied, plan.waiting) == (running, (), (setting.key,))
    else:
        assert (plan.settings, plan.applied, plan.waiting) == (read, (setting.key,), ())


def test_both_kinds_are_named(running: Settings) -> None:
    read = replace(running, log_level="debug", max_slots=64, retention_seconds=5)
    plan = plan_reload(running, read)
    assert plan.describe() == "applied log.level, ledger.retention_seconds; needs a restart: kernel.max_slots"
    assert plan.settings == replace(running, log_level="debug", retention_seconds=5)
    again = plan_reload(plan.settings, read)
    assert (again.applied, again.waiting) == ((), ("kernel.max_slots",))  # it goes on waiting
