# SPDX-License-Identifier: Apache-2.0
"""Who may read the metrics and how, as one value. Pure, and usable without OpenSSL, which costs 4 MiB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Access:
    """`tls` None: plain HTTP. `users` empty: no password is asked for. `headers` go with every page."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """For a log line."""
        client = {
            "CERT_REQUIRED": " with client certificates",
            "CERT_OPTIONAL": " with optional client certificates",
        }
        tls = "plain HTTP" if self.tls is None else "TLS" + client.get(self.tls.verify_mode.name, "")
        return f"{tls}, {f'passwords of {len(self.users)} users' if self.users else 'no passwords'}"


OPEN = Access()
