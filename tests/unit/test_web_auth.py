# SPDX-License-Identifier: Apache-2.0
"""Passwords: who comes in, what is remembered, and that guessing costs the guesser and not the others."""

from __future__ import annotations

import base64
import importlib
import threading
import types

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.exporters import web_auth
from kubenpu.exporters.web_auth import PasswordCheck, Verdict, load_bcrypt, parse_basic
from kubenpu.model.errors import ConfigError
from tests.fakes.sim_tally import eventually

USERS = {"alice": bcrypt.hashpw(b"secret", bcrypt.gensalt(4)), "bob": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4))}


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Counting:
    """The library's check, counted, and held up on demand."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []
        self.hold: threading.Event | None = None

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.asked.append((password, hashed))
        if self.hold is not None:
            assert self.hold.wait(20)
        return bcrypt.checkpw(password, hashed)


@pytest.fixture
def library() -> Counting:
    return Counting()


@pytest.fixture
def check(library: Counting) -> PasswordCheck:
    return PasswordCheck(library)


@pytest.mark.parametrize(
    ("header", "verdict"),
    [
        (basic("alice", "secret"), Verdict.GRANTED),
        (basic("alice", "secret").replace("Basic", "bAsIc"), Verdict.GRANTED),
        (basic("bob", "x" * 72), Verdict.GRANTED),
        (basic("bob", "x" * 500), Verdict.GRANTED),  # as everywhere: bcrypt looks at 72 bytes
        (basic("bob", "x" * 71), Verdict.REFUSED),
        (basic("alice", "Secret"), Verdict.REFUSED),
        (basic("alice", ""), Verdict.REFUSED),
        (basic("alice", "secret\0more"), Verdict.REFUSED),
        (basic("Alice", "secret"), Verdict.REFUSED),
        (basic("", "secret"), Verdict.REFUSED),
        (basic("mallory", "x" * 72), Verdict.REFUSED),
        (basic("mallory", "secret"), Verdict.REFUSED),  # alice's hash stands in for a user that is not there
        ("", Verdict.REFUSED),
        ("Basic", Verdict.REFUSED),
        ("Basic !!!", Verdict.REFUSED),
        ("Basic " + base64.b64encode(b"alice").decode(), Verdict.REFUSED),
        ("Basic " + base64.b64encode(b"\xff\xfe:secret").decode(), Verdict.REFUSED),
        ("Bearer " + base64.b64encode(b"alice:secret").decode(), Verdict.REFUSED),
        ("Basic \u0663", Verdict.REFUSED),
    ],
)
def test_who_comes_in(check: PasswordCheck, header: str, verdict: Verdict) -> None:
    for _ in range(2):  # found out, then remembered
        assert check.check(USERS, header, "") is verdict


@given(st.text())
def test_no_header_crashes(text: str) -> None:
    parse_basic(text)
    parse_basic(f"Basic {text}")


def test_what_was_found_is_remembered(check: PasswordCheck, library: Counting) -> None:
    for _ in range(50):
        assert check.check(USERS, basic("alice", "secret"), "a") is Verdict.GRANTED
        assert check.check(USERS, basic("alice", "wrong"), "b") is Verdict.REFUSED
        assert check.check(USERS, basic("mallory", "wrong"), "b") is Verdict.REFUSED
    assert len(library.asked) == 3


def test_a_changed_password_is_asked_about_again(check: PasswordCheck) -> None:
    assert check.check(USERS, basic("alice", "secret"), "") is Verdict.GRANTED
    changed = {"alice": bcrypt.hashpw(b"other", bcrypt.gensalt(4))}
    assert check.check(changed, basic("alice", "secret"), "") is Verdict.REFUSED
    assert check.check({"bob": USERS["bob"]}, basic("alice", "secret"), "") is Verdict.REFUSED


def test_a_user_made_later_is_not_refused_from_memory(check: PasswordCheck) -> None:
    """Even when he gets the very hash that stood in for him before."""
    assert check.check({"bob": USERS["bob"]}, basic("carol", "x" * 72), "") is Verdict.REFUSED
    both = {"bob": USERS["bob"], "carol": USERS["bob"]}
    assert check.check(both, basic("carol", "x" * 72), "") is Verdict.GRANTED


def test_parts_cannot_be_shifted_into_each_other(check: PasswordCheck, library: Counting) -> None:
    """What made CVE-2022-46146: another split of the same bytes must not be the same question."""
    assert check.check(USERS, basic("alice", "secret"), "") is Verdict.GRANTED
    hashed = USERS["alice"].decode()
    for name, password in (("alic", f"e{hashed}secret"), (f"alice{hashed}", "secret"), ("alice", f"{hashed}secret")):
        assert check.check(USERS, basic(name, password), "") is Verdict.REFUSED
    assert len(library.asked) == 4


def test_a_refusal_costs_the_same_whoever_is_named(check: PasswordCheck, library: Counting) -> None:
    made = {cost: bcrypt.hashpw(b"x", bcrypt.gensalt(cost)) for cost in (4, 5, 6)}
    users = {"low": made[4], "middle": made[5], "high": made[6], "too": made[6]}
    costs = []
    for name in (*users, "nobody"):
        library.asked.clear()
        assert check.check(users, basic(name, "guess"), "") is Verdict.REFUSED
        costs.append(sorted(hashed[4:6] for _, hashed in library.asked))
    assert costs == [[b"04", b"05", b"06"]] * 5
    library.asked.clear()
    assert check.check(users, basic("middle", "x"), "") is Verdict.GRANTED
    assert library.asked == [(b"x", made[5])]


def test_memory_is_bounded_and_wrong_ones_push_out_no_right_one(
    check: PasswordCheck, library: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_auth, "MAX_WRONG", 10)
    monkeypatch.setattr(web_auth, "FAILURES_BURST", 1000)
    assert check.check(USERS, basic("alice", "secret"), "") is Verdict.GRANTED
    for number in range(100):
        check.check(USERS, basic("alice", f"wrong {number}"), "")
    before = len(library.asked)
    assert check.check(USERS, basic("alice", "secret"), "") is Verdict.GRANTED
    assert len(library.asked) == before
    check.check(USERS, basic("alice", "wrong 0"), "")
    assert len(library.asked) == before + 1


def test_who_failed_too_often_is_not_looked_at(
    check: PasswordCheck, library: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_auth, "FAILURES_BURST", 5)
    monkeypatch.setattr(web_auth, "FAILURES_PER_S", 0.0)
    assert check.check(USERS, basic("alice", "secret"), "guesser") is Verdict.GRANTED
    verdicts = [check.check(USERS, basic("bob", f"wrong {number}"), "guesser") for number in range(20)]
    assert verdicts == [Verdict.REFUSED] * 5 + [Verdict.BUSY] * 15
    assert len(library.asked) == 6
    assert check.check(USERS, basic("alice", "secret"), "guesser") is Verdict.GRANTED  # known already
    assert check.check(USERS, basic("bob", "x" * 72), "other") is Verdict.GRANTED


def test_failures_are_forgiven(check: PasswordCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_auth, "FAILURES_BURST", 5)
    monkeypatch.setattr(web_auth, "FAILURES_PER_S", 1000.0)
    for number in range(20):
        eventually(lambda n=number: check.check(USERS, basic("bob", f"{n}"), "a") is Verdict.REFUSED)  # type: ignore[misc]


class Crowd:
    """Clients that ask at the same time, each in a thread of its own."""

    def __init__(self, check: PasswordCheck) -> None:
        self._check = check
        self._threads: list[threading.Thread] = []
        self.verdicts: dict[str, Verdict] = {}

    def ask(self, password: str, client: str) -> None:
        def run() -> None:
            self.verdicts[password] = self._check.check(USERS, basic("alice", password), client)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)


def waiting(check: PasswordCheck) -> int:
    return len(check._places._waiting)


def test_the_well_behaved_go_first_and_the_queue_is_short(
    check: PasswordCheck, library: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_auth, "PARALLEL", 1)
    monkeypatch.setattr(web_auth, "FAILURES_PER_S", 0.0)
    assert check.check(USERS, basic("alice", "known as a guesser"), "guesser") is Verdict.REFUSED
    library.hold = threading.Event()
    crowd = Crowd(check)
    crowd.ask("flood 0", "guesser")
    eventually(lambda: len(library.asked) == 2)
    for number in range(1, 9):
        crowd.ask(f"flood {number}", "guesser")
        eventually(lambda n=number: waiting(check) == n)  # type: ignore[misc]
    crowd.ask("secret", "good")  # the ninth: the oldest of the flood has to go
    eventually(lambda: crowd.verdicts.get("flood 1") is Verdict.BUSY)
    library.hold.set()
    crowd.join()
    asked = [password.decode() for password, _ in library.asked]
    assert asked[1:4] == ["flood 0", "secret", "flood 8"]
    assert crowd.verdicts["secret"] is Verdict.GRANTED
    assert waiting(check) == check._places._taken == 0


def test_the_same_question_at_once_is_worked_out_once_per_place(check: PasswordCheck, library: Counting) -> None:
    library.hold = threading.Event()
    crowd = Crowd(check)
    for _ in range(8):
        crowd.ask("secret", "good")
    eventually(lambda: waiting(check) == 8 - web_auth.PARALLEL)
    library.hold.set()
    crowd.join()
    assert len(library.asked) == web_auth.PARALLEL
    assert crowd.verdicts == {"secret": Verdict.GRANTED}


def test_waiting_ends(check: PasswordCheck, library: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_auth, "PARALLEL", 1)
    monkeypatch.setattr(web_auth, "WAIT_S", 0.05)
    library.hold = threading.Event()
    crowd = Crowd(check)
    crowd.ask("first", "a")
    eventually(lambda: len(library.asked) == 1)
    assert check.check(USERS, basic("alice", "second"), "b") is Verdict.BUSY
    library.hold.set()
    crowd.join()
    assert check.check(USERS, basic("alice", "secret"), "b") is Verdict.GRANTED


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> types.ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ConfigError, match="python3-bcrypt"):
        load_bcrypt()
