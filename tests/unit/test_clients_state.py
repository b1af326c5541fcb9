# SPDX-License-Identifier: Apache-2.0
"""What kubenpu-clients writes of its accounts is what it reads after a restart, for every state there can be."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.ledger.clients import Accounts, Client, Since, Unpaid, Use
from kubenpu.ledger.clients_state import dump_rest, read_clients_and_rest, restore, write_clients
from kubenpu.ledger.meters import Clock, Meter, Speed
from kubenpu.model.clients import COUNT_LIMIT, ClientSample

BOOT_ID = "b0b0"
COUNT = st.integers(0, COUNT_LIMIT - 1)
WORD = st.integers(0, (1 << 64) - 1)  # whatever the kernel has a field of 64 bits for
POINTER = st.integers(0xFFFF_8880_0000_0000, (1 << 64) - 1) | WORD
DEVICE = st.sampled_from(["0000:03:00.0", "rknn"])
ENGINE = st.text("abz019_-", min_size=1, max_size=4)
PATH = st.binary(max_size=8).map(lambda name: "/" + name.decode(errors="surrogateescape"))
SINCE = st.builds(Since, COUNT, COUNT)
SPEED = st.builds(Speed, st.integers(1, COUNT_LIMIT - 1), st.integers(1, COUNT_LIMIT - 1))
CLIENT = st.builds(
    Client,
    file=POINTER,
    cgroup_id=COUNT,
    since=SINCE,
    meters=st.dictionaries(ENGINE, st.builds(Meter, *[COUNT] * 6), max_size=2),
    unpaid=st.dictionaries(ENGINE, st.builds(Unpaid, COUNT, COUNT, COUNT), max_size=2),
    memory=st.dictionaries(ENGINE, COUNT, max_size=2),
    missed=COUNT,
    kernel_id=WORD,
)
USE = st.builds(
    Use,
    path=PATH,
    first_ns=COUNT,
    dead_since=st.none() | st.floats(0, 2**62),
    engine_ns=st.dictionaries(ENGINE, COUNT, max_size=2),
    ended=COUNT,
    earlier_ns=COUNT,
)
ACCOUNTS = st.builds(
    Accounts,
    clients=st.dictionaries(st.tuples(DEVICE, WORD), CLIENT, max_size=3),
    clocks=st.dictionaries(
        st.tuples(DEVICE, ENGINE),
        st.builds(Clock, *[COUNT] * 4, st.lists(SPEED, max_size=2), st.none() | SPEED),
        max_size=2,
    ),
    uses=st.dictionaries(st.tuples(COUNT, DEVICE), USE, max_size=3),
    unread=st.dictionaries(st.tuples(DEVICE, POINTER), SINCE, max_size=2),
    looked_ns=COUNT,
    crowded=st.frozensets(st.tuples(COUNT, DEVICE), max_size=2),
)


@settings(max_examples=200, deadline=None)
@given(ACCOUNTS)
def test_it_is_read_as_it_was_written(accounts: Accounts) -> None:
    sample = ClientSample(1, 2, 3, tuple(accounts.shown()), "trouble")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "clients.json")
        write_clients(file, BOOT_ID, sample, dump_rest(accounts))
        found = read_clients_and_rest(file, BOOT_ID)
    assert found is not None
    assert found[0] == sample
    assert restore(found[0].uses, found[1]) == accounts
    assert tuple(restore(found[0].uses, found[1]).shown()) == sample.uses
