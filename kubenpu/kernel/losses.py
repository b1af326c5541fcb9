# SPDX-License-Identifier: Apache-2.0
"""What each loss means to whoever reads a number: the table LOSSES, for kubenpuctl doctor and the documents.

Owns words only; store.py knows where the kernel counts them, and tests compare the two.
"""

from __future__ import annotations

from typing import NamedTuple


class Loss(NamedTuple):
    """`reason` is the label in the metrics, `cause` what happened, `missing` what the numbers lack for it."""

    reason: str
    cause: str
    missing: str


LOSSES = (
    Loss("slots_full", "all counter cells in use", "the call's owner; the device total has it"),
    Loss("no_storage", "no memory or no room for the cgroup's entry", "the call's owner; the device total has it"),
    Loss("device_unknown", "a node without a rule: too new, or its minor too high", "the call"),
    Loss("wait_untimed", "the begin of a wait was not seen", "its time; the call is counted"),
    Loss("exit_missed", "a return was not seen (kprobe)", "whether it failed, and its work; the call is counted"),
    Loss(
        "identity",
        "no memory or no room for a cgroup's names",
        "the names, unless the cgroup still exists when looked for",
    ),
    Loss("no_body", "the hook fired with nothing behind it", "the call"),
    Loss("argument_unread", "what an argument says is not known", "its kind, GPU or work; the call is counted"),
    Loss("program_skipped", "the kernel skipped the program", "the call"),
)


def explain_loss(reason: str) -> str:
    """In a sentence; a reason of another version is told as it is."""
    found = next((loss for loss in LOSSES if loss.reason == reason), None)
    return f"{reason}: {found.cause}, missing is {found.missing}" if found else reason
