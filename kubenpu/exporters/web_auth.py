# SPDX-License-Identifier: Apache-2.0
"""Checks passwords of HTTP's basic authentication against bcrypt hashes, without letting anybody use that up.

A check costs tens of milliseconds of a CPU by design. So what was found is remembered, under an HMAC with a key of
this process only (no password is kept, no key can be made to collide); the right ones apart from the wrong, so that a
flood of these cannot push those out. New ones wait for one of PARALLEL places; of those that wait the client with the
fewest failures goes first, then the newest. Refuses to wait when too many do, and whoever failed too often of late.
A refusal takes as long for an unknown user as for a known one, whatever the costs of the hashes: it is made after one
hash of each cost. Threads share one PasswordCheck. bcrypt is imported when users are configured.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum

from kubenpu.model.errors import ConfigError

PARALLEL = min(2, os.cpu_count() or 1)
MAX_WAITING = 8
WAIT_S = 5.0
MAX_RIGHT, MAX_WRONG, MAX_CLIENTS = 128, 1024, 1024
FAILURES_BURST = 200
FAILURES_PER_S = 5.0  # so many are forgiven
BCRYPT_BYTES = 72  # bcrypt looks at no more, and newer libraries refuse more

Check = Callable[[bytes, bytes], bool]


class Verdict(Enum):
    """BUSY: not looked at, ask again later."""

    GRANTED = "granted"
    REFUSED = "refused"
    BUSY = "busy"


def load_bcrypt() -> Check:
    """The library's check. Raises ConfigError when it is not installed."""
    try:
        library = importlib.import_module("bcrypt")
    except ImportError as error:
        raise ConfigError("basic_auth_users needs bcrypt", "Install the package python3-bcrypt") from error
    check: Check = library.checkpw
    return check


class PasswordCheck:
    """Remembers results and failures; knows no users, those are given with each question."""

    def __init__(self, check: Check | None = None) -> None:
        self._check = check
        self._secret = os.urandom(32)
        self._lock = threading.Lock()
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._failures = _Failures()
        self._places = _Places()

    def check(self, users: Mapping[str, bytes], authorization: str, client: str) -> Verdict:
        """Whether a header `Authorization` names a user with the right password. `client` is where it comes from."""
        given = parse_basic(authorization)
        if given is None:
            return Verdict.REFUSED
        name, password = given
        known = name in users
        hashed = users[name] if known else next(iter(users.values()))
        key = self._key(known, name, password, hashed)
        verdict = self._remembered(key)
        if verdict is not None:
            return verdict
        with self._lock:
            failures = self._failures.count(client)
        if failures >= FAILURES_BURST or not self._places.enter(failures):
            return Verdict.BUSY
        try:
            # meanwhile another connection may have asked the same
            hashes = _one_of_each_cost(users, hashed)
            return self._remembered(key) or self._find_out(key, known, password, hashes, client)
        finally:
            self._places.leave()

    def _find_out(self, key: bytes, known: bool, password: bytes, hashes: list[bytes], client: str) -> Verdict:
        """Against the first of the hashes; the others are for the time they take."""
        check = self._check or load_bcrypt()
        right = check(password[:BCRYPT_BYTES], hashes[0]) and known
        if not right:
            for other in hashes[1:]:
                check(password[:BCRYPT_BYTES], other)
        with self._lock:
            found, most = (self._right, MAX_RIGHT) if right else (self._wrong, MAX_WRONG)
            found[key] = None
            if len(found) > most:
                found.popitem(last=False)
            if not right:
                self._failures.add(client)
        return Verdict.GRANTED if right else Verdict.REFUSED

    def _remembered(self, key: bytes) -> Verdict | None:
        with self._lock:
            for found, verdict in ((self._right, Verdict.GRANTED), (self._wrong, Verdict.REFUSED)):
                if key in found:
                    found.move_to_end(key)
                    return verdict
        return None

    def _key(self, known: bool, name: str, password: bytes, hashed: bytes) -> bytes:
        """Lengths keep the parts apart; the hash is in it, so that a changed password is a new question."""
        import hmac  # noqa: PLC0415 - it loads OpenSSL, 4 MiB that not everybody needs

        user = name.encode(errors="surrogatepass")
        head = f"{known} {len(user)} {len(hashed)} ".encode()
        return hmac.digest(self._secret, head + user + hashed + password, "sha256")


def _one_of_each_cost(users: Mapping[str, bytes], first: bytes) -> list[bytes]:
    """`$2y$10$...` has the cost at the fifth place."""
    others = {hashed[4:6]: hashed for hashed in users.values() if hashed[4:6] != first[4:6]}
    return [first, *others.values()]


def parse_basic(authorization: str) -> tuple[str, bytes] | None:
    """User and password, None if it is anything else than well-formed basic authentication."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    if not colon or b"\0" in password:
        return None
    return name.decode(errors="surrogateescape"), password


class _Failures:
    """How often each client failed of late. The caller locks."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, client: str) -> float:
        count, at = self._counts.get(client, (0.0, 0.0))
        return max(0.0, count - (time.monotonic() - at) * FAILURES_PER_S)

    def add(self, client: str) -> None:
        self._counts[client] = (self.count(client) + 1, time.monotonic())
        self._counts.move_to_end(client)
        if len(self._counts) > MAX_CLIENTS:
            self._counts.popitem(last=False)


class _Waiter:
    """`rank`: the lowest goes first. `decided`: True come in, False go away, None not yet."""

    def __init__(self, rank: tuple[float, float]) -> None:
        self.rank = rank
        self.decided: bool | None = None


class _Places:
    """So many at once; a short queue in which the well-behaved go first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: list[_Waiter] = []

    def enter(self, failures: float) -> bool:
        """Waits for a place. False: there is none for this one."""
        with self._changed:
            if self._taken < PARALLEL:
                self._taken += 1
                return True
            waiter = _Waiter((failures, -time.monotonic()))
            self._waiting.append(waiter)
            if len(self._waiting) > MAX_WAITING:
                self._decide(max(self._waiting, key=lambda each: each.rank), False)
            self._changed.wait_for(lambda: waiter.decided is not None, WAIT_S)
            if waiter.decided is None:
                self._waiting.remove(waiter)
            return waiter.decided is True

    def leave(self) -> None:
        """Gives the place to the next in line."""
        with self._changed:
            if self._waiting:
                self._decide(min(self._waiting, key=lambda each: each.rank), True)
            else:
                self._taken -= 1

    def _decide(self, waiter: _Waiter, come_in: bool) -> None:
        self._waiting.remove(waiter)
        waiter.decided = come_in
        self._changed.notify_all()
