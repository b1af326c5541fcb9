# SPDX-License-Identifier: Apache-2.0
"""Where pins are, the probe's state file, and the lock between probe and daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kubenpu.kernel.pins import STATE_NAME, Pins, claim, locked, read_state, write_state
from kubenpu.model.errors import KernelError
from kubenpu.model.sample import HookStatus
from tests.fakes.sim_tally import wait_until

FENTRY = HookStatus("drm_ioctl", "fentry", "", 7)
OFF = HookStatus("file_ioctl", "off", 'fentry: "quoted" \u00fc\nline', 2**63 - 1)
CHILD = """
import sys
from pathlib import Path
from kubenpu.kernel.pins import locked

with locked(Path(sys.argv[1]), "rules"):
    print((Path(sys.argv[1]) / "note").read_text(), flush=True)
"""


# ---- pins ----


def test_pins_have_names_that_bpffs_allows_and_that_differ(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "kubenpu")
    paths = [pins.map("drm_ioctl"), *(f("drm_ioctl", s) for f in (pins.link, pins.program) for s in ("enter", "exit"))]
    assert len(set(paths)) == 5
    assert {path.parent for path in paths} == {pins.root}
    assert not any("." in path.name for path in paths)


def test_nothing_can_be_claimed_where_no_pins_are(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="cannot open") as caught:
        claim(tmp_path / "gone")
    assert "kubenpu-probe load" in caught.value.remedy


def test_pins_are_made_and_removed_with_their_directories(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "kubenpu")
    assert pins.remove() == []
    pins.make()
    pins.make()
    names = {"cells", "drm_ioctl_enter_link", "drm_ioctl_exit_link", "drm_ioctl_enter_prog"}
    for name in names:
        pins.map(name).touch()
    removed = pins.remove()
    assert set(removed) == names
    assert all(name.endswith("_link") for name in removed[:2])  # detached before the maps go
    assert not pins.directory.exists()


def test_pins_of_others_stay(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "kubenpu")
    pins.make()
    newer = pins.directory / "2"
    newer.mkdir()
    pins.remove()
    assert list(pins.directory.iterdir()) == [newer]


def test_a_place_that_takes_no_pins(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file" / "kubenpu", tmp_path / "absent" / "kubenpu"):
        with pytest.raises(KernelError, match="cannot create") as caught:
            Pins(directory).make()
        assert "bpffs" in caught.value.remedy


# ---- the state file ----


@pytest.mark.parametrize("module", [None, 4711])
def test_state_round_trip(tmp_path: Path, module: int | None) -> None:
    run = tmp_path / "run" / "kubenpu"
    write_state(run, (FENTRY, OFF), module)
    assert read_state(run) == ((FENTRY, OFF), module)
    write_state(run, (OFF,), module)
    assert read_state(run) == ((OFF,), module)
    assert [path.name for path in run.iterdir()] == [STATE_NAME]


def test_a_hook_of_a_later_version_is_none_of_ours(tmp_path: Path) -> None:
    write_state(tmp_path, (FENTRY, HookStatus("later", "fentry", "", 1)), 4711)
    assert read_state(tmp_path) == ((FENTRY,), 4711)


def test_no_state_before_the_probe_ran(tmp_path: Path) -> None:
    assert read_state(tmp_path) == ((), None)
    assert read_state(tmp_path / "absent") == ((), None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "7",
        "[]",
        "{}",
        '{"hooks": []}',
        '{"hooks": 7, "drm_module": null}',
        '{"hooks": ["x"], "drm_module": null}',
        '{"hooks": [{"hook": "drm_ioctl"}], "drm_module": null}',
        '{"hooks": [{"hook": "drm_ioctl", "mechanism": 5, "reason": "", "since_ns": 1}], "drm_module": null}',
        '{"hooks": [{"hook": "drm_ioctl", "mechanism": "off", "reason": "", "since_ns": "a"}], "drm_module": null}',
        '{"hooks": [{"hook": "drm_ioctl", "mechanism": "off", "reason": "", "since_ns": 1.5}], "drm_module": null}',
        '{"hooks": [{"hook": "drm_ioctl", "mechanism": "off", "reason": "", "since_ns": -1}], "drm_module": null}',
        '{"hooks": [{"hook": "h", "mechanism": "m", "reason": "", "since_ns": 1, "more": 2}], "drm_module": null}',
        "\udcff",
        "[" * 100_000,
    ],
    ids=lambda text: repr(text[:40]),
)
def test_a_damaged_state_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_NAME).write_text(text, errors="surrogateescape")
    with pytest.raises(KernelError, match="is damaged") as caught:
        read_state(tmp_path)
    assert str(tmp_path / STATE_NAME) in caught.value.cause
    assert caught.value.remedy == "Run kubenpu-probe load again"


def test_a_state_file_cut_anywhere_is_noticed(tmp_path: Path) -> None:
    write_state(tmp_path, (FENTRY, OFF), 5)
    whole = (tmp_path / STATE_NAME).read_text()
    for length in range(len(whole) - 1):
        (tmp_path / STATE_NAME).write_text(whole[:length])
        with pytest.raises(KernelError):
            read_state(tmp_path)


def test_a_place_that_takes_no_state(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KernelError, match="cannot write"):
        write_state(tmp_path / "file", (FENTRY,), None)
    with pytest.raises(KernelError, match="cannot read"):
        read_state(tmp_path / "file" / "below")
    with pytest.raises(KernelError, match="cannot lock"), locked(tmp_path / "file", "rules"):
        pass


def test_the_state_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that dies while it writes leaves the last state."""
    write_state(tmp_path, (FENTRY,), 1)

    def die(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 77)
        patch.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            write_state(tmp_path, (OFF,), 2)
    assert read_state(tmp_path) == ((FENTRY,), 1)
    assert json.loads((tmp_path / STATE_NAME).read_text())["drm_module"] == 1
    write_state(tmp_path, (OFF,), 3)
    assert [path.name for path in tmp_path.iterdir()] == [STATE_NAME]  # nothing of the one that died is left


# ---- the lock ----


@contextmanager
def child_that_locks(run_directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CHILD, str(run_directory)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def waits(child: subprocess.Popen[str]) -> bool:
    """Whether a process waits for a lock: the mark of a blocked request in the kernel's list."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("-> FLOCK" in line and f" {child.pid} " in line for line in lines)


def test_the_lock_keeps_another_process_out(tmp_path: Path) -> None:
    """The child asks while we hold the lock, and reads what we wrote last before we gave it back."""
    note = tmp_path / "note"
    with ExitStack() as stack:
        with locked(tmp_path, "rules"):
            note.write_text("too early")
            child = stack.enter_context(child_that_locks(tmp_path))
            assert wait_until(lambda: waits(child) or child.poll() is not None, 20)
            with locked(tmp_path, "probe"):  # another name is another lock
                note.write_text("in time")
        out, _ = child.communicate(timeout=20)
        assert (child.returncode, out) == (0, "in time\n")


def test_the_lock_is_given_back_when_its_holder_fails(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), locked(tmp_path / "run", "rules"):
            raise ZeroDivisionError
