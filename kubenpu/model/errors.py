# SPDX-License-Identifier: Apache-2.0
"""The error tree. Raised where the cause is known, logged once where the program decides to go on or to stop."""

from __future__ import annotations


class KubeNpuError(Exception):
    """Something is wrong that an operator can act on.

    `cause` says what is wrong and where, `remedy` what to do about it; both are whole sentences or phrases
    without a trailing full stop. str() is "cause. remedy."
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause}. {self.remedy}." if self.remedy else self.cause


class ConfigError(KubeNpuError):
    """A configuration file, a flag or a driver table is not usable."""


class AddressError(ConfigError):
    """An address cannot be listened on now; that may pass without a change of the settings."""


class KernelError(KubeNpuError):
    """The kernel side cannot be loaded, attached, opened or trusted."""


class SourceError(KubeNpuError):
    """A source (sysfs, container runtime, pinned maps) gave no usable answer this time."""


class UnreachableError(SourceError):
    """kubenpud, the message bus it is on, or what is needed to speak with it, is not there."""
