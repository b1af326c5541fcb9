# SPDX-License-Identifier: Apache-2.0
"""What kubenpu-clients finds when it is started again: its own file, or one that is no use."""

from __future__ import annotations

import json

import pytest

from kubenpu.ledger.clients import LOOKS_REMEMBERED
from kubenpu.ledger.clients_file import NAME, read_clients
from tests.fakes.clients_machine import GPU, Machine

POINTER = 0xFFFF888103A4C500
"""As the kernel's are."""


def test_a_restart_neither_loses_nor_counts_twice(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    machine.start().step()
    generation = machine.sample().generation
    machine.tell(holder, 5, 1700)
    machine.start().step()
    assert (machine.gfx(), machine.sample().generation) == ({"/pod/a": 1700}, generation)


def test_what_an_ended_client_used_outlives_a_restart(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """With addresses of files as the kernel has them."""
    ending = machine.hold(10, "/pod/a", POINTER)
    machine.tell(ending, 5, 1000)
    machine.tell(machine.hold(11, "/pod/b", POINTER + 0x100), 6, 30)
    running = machine.start()
    running.step()
    machine.holders.remove(ending)
    for _ in range(LOOKS_REMEMBERED + 1):
        running.step()
    before = machine.sample()
    assert [(use.path, use.engine_ns, use.ended) for use in before.uses] == [
        ("/pod/a", {"gfx": 1000}, 1),
        ("/pod/b", {"gfx": 30}, 0),
    ]
    for _ in range(3):
        machine.start().step()
        after = machine.sample()
        assert (after.uses, after.generation, caplog.text) == (before.uses, before.generation, "")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]\n", '{"format": 3}\n', "@\n", None],
)
def test_a_file_that_is_no_use_is_begun_anew(
    machine: Machine, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    machine.start().step()
    before = machine.sample().generation
    file = machine.run / NAME
    if content is None:  # cut off before the last line
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    else:
        file.write_text(content)
    machine.start().step()
    assert "totals begin anew" in caplog.text
    assert machine.gfx() == {"/pod/a": 1000}
    assert machine.sample().generation != before


METER = [1, 1, 1000, 0, 0, 0]
CLIENT = [GPU, 5, POINTER, 77, [1, 1], {"gfx": METER}, {"rcs": [1, 1, 1]}, {"vram": 1}, 0, 6]
CLOCK = [GPU, "rcs", 1, 1, 0, 0, [[1, 1]], [1, 1]]
REST = {
    "clients": [CLIENT],
    "clocks": [CLOCK],
    "unread": [[GPU, POINTER, 1, 1]],
    "looked_ns": 1,
    "crowded": [[77, GPU]],
    "dead_since": [None],
}


def with_rest(machine: Machine, rest: object) -> None:
    file = machine.run / NAME
    file.write_text("".join([*file.read_text().splitlines(keepends=True)[:-1], json.dumps(rest), "\n"]))


def test_a_rest_that_is_of_use(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    machine.start().step()
    with_rest(machine, {**REST, "dead_since": [5.5]})
    machine.start()
    assert caplog.text == ""


@pytest.mark.parametrize(
    "rest",
    [
        [],
        {},
        {**REST, "clients": [[1]]},
        {**REST, "clients": 5},
        {**REST, "clients": [[*CLIENT[:-1], "z"]]},
        {**REST, "clients": [[*CLIENT[:5], {"gfx": "x"}, *CLIENT[6:]]]},
        {**REST, "clients": [[*CLIENT[:5], {"gfx": [*METER[:-1], "x"]}, *CLIENT[6:]]]},
        {**REST, "clients": [[*CLIENT[:5], {"gfx": [*METER, 1]}, *CLIENT[6:]]]},
        {**REST, "clients": [[*CLIENT[:5], ["gfx"], *CLIENT[6:]]]},
        {**REST, "clients": [[*CLIENT[:4], 7, *CLIENT[5:]]]},
        {**REST, "clients": [[*CLIENT[:6], {"rcs": [1, 1, None]}, *CLIENT[7:]]]},
        {**REST, "clients": [[GPU, 1 << 64, *CLIENT[2:]]]},
        {**REST, "clients": [[GPU, 5, 1 << 64, *CLIENT[3:]]]},
        {**REST, "clients": [[*CLIENT[:7], {"vram": -1}, 0, 6]]},
        {**REST, "clocks": [[*CLOCK[:-1], [1, 0]]]},
        {**REST, "clocks": [[*CLOCK[:-1], 1]]},
        {**REST, "clocks": [[*CLOCK[:-2], [[0, 1]], None]]},
        {**REST, "clocks": [CLOCK[:-1]]},
        {**REST, "unread": [[GPU, 7, 1]]},
        {**REST, "unread": [[GPU, "7", 1, 1]]},
        {**REST, "unread": [[GPU, 1 << 64, 1, 1]]},
        {**REST, "looked_ns": 1.5},
        {**REST, "crowded": [77]},
        {**REST, "crowded": [["77", GPU]]},
        {**REST, "dead_since": ["soon"]},
        {**REST, "dead_since": [float("nan")]},
        {**REST, "dead_since": [-1]},
        {**REST, "dead_since": []},
    ],
)
def test_a_rest_that_is_no_use(machine: Machine, rest: object, caplog: pytest.LogCaptureFixture) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    machine.start().step()
    with_rest(machine, rest)
    machine.start().step()
    assert "totals begin anew" in caplog.text
    assert machine.gfx() == {"/pod/a": 1000}


def test_totals_of_another_boot_are_not_taken(machine: Machine) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    machine.start().step()
    (machine.proc / "sys/kernel/random/boot_id").write_text("another\n")
    machine.holders.clear()
    machine.start().step()
    found = read_clients(machine.run / NAME, "another")
    assert found is not None
    assert found.uses == ()
