# SPDX-License-Identifier: Apache-2.0
"""The web configuration file and what it names, kept up to date while we run.

Owns what is in force, as one value that is replaced as a whole. Data comes from the file, the certificate, the key and
the authorities; check() looks at them and reads them again when they changed and have been still since the check
before, so that nothing half-written is used. Refuses to run without what was configured: a file that is broken is an
error at the start and changes nothing later, nor does one that would take TLS, client certificates or passwords away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from kubenpu.exporters.web_access import Access
from kubenpu.exporters.web_auth import load_bcrypt
from kubenpu.exporters.web_config import WebConfig, read_web_config
from kubenpu.exporters.web_tls import make_context
from kubenpu.model.errors import ConfigError

log = logging.getLogger(__name__)


Seen = Mapping[Path, tuple[int, ...] | None]


class AccessFile:
    """`current` is what is in force. Every method may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when the file or what it names is not usable."""
        self._path = path
        self._lock = threading.Lock()
        self._tried: Seen = {}
        self._changed: Seen | None = None
        self.current = self._read()

    def reload(self) -> None:
        """Reads everything now. Raises ConfigError; then the old one stays."""
        with self._lock:
            self._reload()

    def check(self) -> None:
        """Reads everything again when it changed and is no longer changing; an error is logged once."""
        with self._lock:
            seen = look_at(self._tried)
            if seen == self._tried:
                self._changed = None
            elif seen != self._changed:
                self._changed = seen
            else:
                self._reload_and_tell()

    def _reload_and_tell(self) -> None:
        try:
            self._reload()
            log.info("%s or what it names changed and is in force: %s", self._path, self.current.describe())
        except ConfigError as error:
            log.error("what was in force stays: %s", error)

    def _reload(self) -> None:
        new = self._read()
        refuse_less(self._path, self.current, new)
        self.current = new

    def _read(self) -> Access:
        """Looked at before it is read: a change in between is found by the next check."""
        self._changed = None
        self._tried = look_at({self._path, *self._tried})
        config = read_web_config(self._path)
        files = config.tls.files() if config.tls is not None else ()
        self._tried = {self._path: self._tried[self._path], **look_at(files)}
        return _make(config)


def _make(config: WebConfig) -> Access:
    for note in config.notes:
        log.info("%s", note)
    if config.users:
        load_bcrypt()
    return Access(make_context(config.tls) if config.tls is not None else None, config.users, config.headers)


def refuse_less(path: Path, old: Access, new: Access) -> None:
    """Raises ConfigError for a change that lets in whom the old one kept out without being told to."""
    lost = [
        what
        for what, missing in (
            ("TLS", old.tls is not None and new.tls is None),
            ("the check of client certificates", _verifies(new) < _verifies(old)),
            ("all passwords", bool(old.users) and not new.users),
        )
        if missing
    ]
    if lost:
        raise ConfigError(f"{path} takes away {' and '.join(lost)}", "Restart kubenpud if that is what you want")


def _verifies(access: Access) -> int:
    return 0 if access.tls is None else int(access.tls.verify_mode)


def look_at(paths: Iterable[Path]) -> Seen:
    """What tells one content of a file from the next, None for a file that is not there."""
    return {path: _look(path) for path in paths}


def _look(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
