# SPDX-License-Identifier: Apache-2.0
"""What a running daemon does with settings that were read again: which apply now, which wait for a restart. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kubenpu.config.settings import SETTINGS, Settings


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """`settings` are the ones to go on with; `applied` and `waiting` the keys that have another value now."""

    settings: Settings
    applied: tuple[str, ...]
    waiting: tuple[str, ...]

    def describe(self) -> str:
        """For the log."""
        applied = f"applied {', '.join(self.applied)}" if self.applied else "no setting that can be applied changed"
        return applied + (f"; needs a restart: {', '.join(self.waiting)}" if self.waiting else "")


def plan_reload(running: Settings, read: Settings) -> ReloadPlan:
    """Goes by the table's needs_restart."""
    changed = [s for s in SETTINGS if getattr(running, s.field) != getattr(read, s.field)]
    now = [setting for setting in changed if not setting.needs_restart]
    settings = replace(running, **{setting.field: getattr(read, setting.field) for setting in now})
    waiting = tuple(setting.key for setting in changed if setting.needs_restart)
    return ReloadPlan(settings, tuple(setting.key for setting in now), waiting)
