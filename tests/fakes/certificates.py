# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests: an authority, and what it signs. Made by the openssl command, valid for two days."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
# Python 3.13 verifies strictly: an authority has to say that it is one
CA_USAGE = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Two PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; everything is below one directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self.own = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
        self._openssl("req", "-x509", *NEW_KEY, "-subj", f"/CN={name}", *CA_USAGE, *self._output(self.own))

    @property
    def cert(self) -> Path:
        return self.own.cert

    def issue(self, name: str, *options: str) -> Certificate:
        """A certificate for 127.0.0.1, localhost and clients alike."""
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        signer = ("-CA", str(self.own.cert), "-CAkey", str(self.own.key))
        names = (
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        )
        more = options or NEW_KEY
        self._openssl("req", "-x509", *more, *signer, "-subj", f"/CN={name}", *names, *self._output(made))
        return made

    def _output(self, made: Certificate) -> tuple[str, ...]:
        return ("-out", str(made.cert), "-keyout", str(made.key))

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)


def tls_section(made: Certificate, more: str = "") -> str:
    """The part of a web configuration file that names it."""
    return f"tls_server_config:\n  cert_file: {made.cert}\n  key_file: {made.key}\n{more}"
