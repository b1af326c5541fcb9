# SPDX-License-Identifier: Apache-2.0
"""What a driver table file may say and what is refused, by file and key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.devices.schema import CHAR, CORE_NAME, parse_table, parse_version
from kubenpu.model.device import (
    Argument,
    CountField,
    Envelope,
    GpuField,
    KindField,
    NodeMatch,
    Release,
    Visibility,
)
from kubenpu.model.errors import ConfigError
from kubenpu.model.kinds import Kind
from tests.unit.test_driver_tables import GOOD

CHAR_GOOD = """
name = "npu9"
hardware = "NPU nine"
subsystem = "char"
nodes = [{ devname = "npu9-*", class = "npu" }]
ioctl_type = 0x4e
ioctl = [
  { nr = 0x01, kind = "alloc", name = "NPU9_MEM" },
  { nr = 0x02, kind = "submit", name = "NPU9_RUN", type = 0x4f },
  { cmd = 0x30000001, kind = "context", name = "NPU9_OPEN" },
]
[argument.NPU9_MEM]
size = 24
offset = 8
bytes = 4
kinds = { alloc = [0], free = [1, 2] }
[[release]]
module = "npu9"
first = "1.2"
last = "1.9.0"
ioctl = [{ nr = 0x03, kind = "submit", name = "NPU9_RUN" }]
[visibility]
submit = "partly"
memory = "always"
wait = "never"
note = "Some"
"""


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_table(text, "/etc/x.toml")
    assert caught.value.cause.startswith("/etc/x.toml: ")
    assert caught.value.remedy
    assert str(caught.value).isprintable()
    return caught.value.cause


@pytest.mark.parametrize(("names", "good"), [('["npu9-*"]', True), ('["*"]', True), ('["npu9"]', False)])
def test_auxiliary_nodes_are_nodes_of_the_table(names: str, good: bool) -> None:
    text = f"auxiliary = {names}\n{CHAR_GOOD}"
    if good:
        assert parse_table(text, "/etc/x.toml").auxiliary
    else:
        assert "auxiliary is 'npu9'" in refusal(text)


def test_everything_that_may_be_said() -> None:
    table = parse_table(CHAR_GOOD, "x")
    (interface,) = table.interfaces
    assert (table.name, table.hardware, table.visibility_note) == ("npu9", "NPU nine", "Some")
    assert table.visibility == {
        "submit": Visibility.PARTLY,
        "memory": Visibility.ALWAYS,
        "wait": Visibility.NEVER,
    }
    assert interface.nodes == (NodeMatch("npu9-*", sysfs_class="npu"),)
    assert [(rule.type, rule.nr, rule.cmd) for rule in interface.ioctls] == [
        (0x4E, 1, None),
        (0x4F, 2, None),
        (0, 1, 0x30000001),
    ]
    kinds = {0: Kind.ALLOC, 1: Kind.FREE, 2: Kind.FREE}
    assert interface.ioctls[0].argument == KindField(24, 8, 4, 0xFFFFFFFF, kinds)
    (release,) = interface.releases
    assert isinstance(release, Release)
    assert (release.module, release.first, release.last, release.ioctls[0].nr) == ("npu9", (1, 2), (1, 9), 3)


def test_an_interface_section_says_the_same_as_the_top() -> None:
    sections = GOOD.replace("subsystem", "[[interface]]\nsubsystem")
    assert parse_table(sections, "x") == parse_table(GOOD, "x")


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ('devname = "a", chrdev = "a-dev", minors = [0, 1]', NodeMatch("a", chrdev="a-dev", minors=(0, 1))),
        ('devname = "a*", major = 195, minors = [7, 7]', NodeMatch("a*", major=195, minors=(7, 7))),
        ('devname = "a/b"', NodeMatch("a/b")),
        ('devname = "a/b", shared = true', NodeMatch("a/b", shared=True)),
        (
            'devname = "a", major = 10, minors = [1, 1], shared = true',
            NodeMatch("a", major=10, minors=(1, 1), shared=True),
        ),
        ('devname = "a", chrdev = "b", minors = [1, 1], shared = false', NodeMatch("a", chrdev="b", minors=(1, 1))),
        ('anonymous = "[a]"', NodeMatch("", anonymous="[a]")),
    ],
)
def test_ways_to_know_a_node(node: str, wanted: NodeMatch) -> None:
    text = CHAR_GOOD.replace('devname = "npu9-*", class = "npu"', node)
    assert parse_table(text, "x").interfaces[0].nodes == (wanted,)


@pytest.mark.parametrize(
    ("meaning", "wanted"),
    [
        ('gpu = "gpu_id"', GpuField(24, 8, 4, "gpu_id")),
        ("envelope = { length = 4, pointer = 16 }", Envelope(24, 8, 4, 4, 16)),
        ("mask = 0x7\nkinds = { wait = [7] }", KindField(24, 8, 4, 7, {7: Kind.WAIT})),
    ],
)
def test_meanings_of_an_argument(meaning: str, wanted: Argument) -> None:
    text = CHAR_GOOD.replace("kinds = { alloc = [0], free = [1, 2] }", meaning)
    assert parse_table(text, "x").interfaces[0].ioctls[0].argument == wanted


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("offset = 8", "offset = 24", "argument.NPU9_MEM.offset is 24"),
        ("offset = 8", "offset = 21", "argument.NPU9_MEM.offset is 21"),
        ("offset = 8", "offset = 6", "argument.NPU9_MEM.offset is 6"),
        ("offset = 8", "offset = -4", "argument.NPU9_MEM.offset is -4"),
        ("offset = 8", "", "argument.NPU9_MEM.offset is missing"),
        ("size = 24", "size = 16384", "argument.NPU9_MEM.size is 16384"),
        ("size = 24", "size = 0", "argument.NPU9_MEM.size is 0"),
        ("bytes = 4", "bytes = 3", "argument.NPU9_MEM.bytes is 3"),
        ("bytes = 4", "bytes = true", "argument.NPU9_MEM.bytes is True"),
        ("bytes = 4", "bytes = 4\nmask = 0x100000000", "argument.NPU9_MEM.mask is 4294967296"),
        ("bytes = 4", "bytes = 4\nmask = 1", "argument.NPU9_MEM.kinds.free is 2"),
        ("bytes = 4", "bytes = 4\ncount = true", "argument.NPU9_MEM.meaning is ['kinds', 'count']"),
        ("kinds = { alloc = [0], free = [1, 2] }", "", "argument.NPU9_MEM.meaning is []"),
        ("kinds = { alloc = [0], free = [1, 2] }", "count = false", "argument.NPU9_MEM.count is False"),
        ("kinds = { alloc = [0], free = [1, 2] }", "count = 1", "argument.NPU9_MEM.count is 1"),
        ("kinds = { alloc = [0], free = [1, 2] }", "count = true", "count is 'NPU9_MEM'"),
        ("kinds = { alloc = [0], free = [1, 2] }", 'gpu = "uuid"', "argument.NPU9_MEM.gpu is 'uuid'"),
        ('hardware = "NPU nine"', 'hardware = ""\nwork = "apples"', "work is 'apples'"),
        ("kinds = { alloc = [0], free = [1, 2] }", 'gpu = "A b"', "argument.NPU9_MEM.gpu is 'A b'"),
        ("free = [1, 2]", "free = [0]", "argument.NPU9_MEM.kinds.free is 0"),
        ("free = [1, 2]", "free = [-1]", "argument.NPU9_MEM.kinds.free is -1"),
        ("free = [1, 2]", "free = [true]", "argument.NPU9_MEM.kinds.free is True"),
        ("free = [1, 2]", "query = [1]", "unknown key 'argument.NPU9_MEM.kinds.query'"),
        ("free = [1, 2]", f"free = {list(range(1, 33))}", "argument.NPU9_MEM.kinds is 33"),
        ("alloc = [0], free = [1, 2]", "", "argument.NPU9_MEM.kinds is 0"),
        (
            "kinds = { alloc = [0], free = [1, 2] }",
            "envelope = { length = 4, pointer = 20 }",
            "argument.NPU9_MEM.envelope.pointer is 20",
        ),
        (
            "kinds = { alloc = [0], free = [1, 2] }",
            "envelope = { length = 4, pointer = 16, more = 1 }",
            "unknown key 'argument.NPU9_MEM.envelope.more'",
        ),
        ("[argument.NPU9_MEM]", "[argument.NPU9_NONE]", "argument is 'NPU9_NONE'"),
        ("[argument.NPU9_MEM]", "[argument]\nNPU9_MEM = 1\n[x]", "argument.NPU9_MEM is 1"),
        ('class = "npu"', "major = 195", "nodes[0].minors is missing"),
        ('class = "npu"', "major = 4096, minors = [0, 1]", "nodes[0].major is 4096"),
        ('class = "npu"', "major = 195, minors = [1, 0]", "nodes[0].minors is [1, 0]"),
        ('class = "npu"', "major = 195, minors = [0, 1048576]", "nodes[0].minors is [0, 1048576]"),
        ('class = "npu"', "major = 195, minors = [0]", "nodes[0].minors is [0]"),
        ('class = "npu"', 'class = "npu", major = 195, minors = [0, 1]', "unknown key 'nodes[0].class'"),
        ('class = "npu"', 'anonymous = "[a]"', "unknown key 'nodes[0].devname'"),
        ('[{ devname = "npu9-*", class = "npu" }]', "[]", "nodes is []"),
        ('"char"', '"drm"', "nodes is [NodeMatch("),
        ("ioctl_type = 0x4e\n", "", "ioctl[0].type is missing"),
        ("type = 0x4f", "type = 256", "ioctl[1].type is 256"),
        ("cmd = 0x30000001", "cmd = 0x100000000", "ioctl[2].cmd is 4294967296"),
        ("cmd = 0x30000001", "cmd = 1, nr = 1", "unknown key 'ioctl[2].nr'"),
        ('module = "npu9"', 'module = "../npu9"', "release[0].module is '../npu9'"),
        ('first = "1.2"', 'first = "one"', "release[0].first is 'one'"),
        ('last = "1.9.0"', 'last = "1.1"', "release[0].last is '1.1'"),
        ('last = "1.9.0"', 'last = "1.9.0"\nuntil = 1', "unknown key 'release[0].until'"),
        ('name = "npu9"', 'name = "npu9"\ninterface = []', "interface is []"),
        ('name = "npu9"', 'name = "npu9"\ninterface = [1]', "interface[0] is 1"),
        ('wait = "never"', 'wait = "no"', "visibility.wait is 'no'"),
        ('wait = "never"', 'wait = "none"', "visibility.wait is 'none'"),
        ('submit = "partly"', 'submit = "never"', "visibility.submit is 'never'"),
        ('name = "npu9"', 'name = "drm"', "name is 'drm'"),
        ('class = "npu"', 'class = "npu*"', "nodes.class is 'npu*'"),
        ('class = "npu"', 'chrdev = "n?u", minors = [0, 1]', "nodes.chrdev is 'n?u'"),
        ('devname = "npu9-*"', 'devname = "*"', "nodes.devname is '*'"),
        ('devname = "npu9-*"', 'devname = "[a-z]*"', "nodes.devname is '[a-z]*'"),
        ('devname = "npu9-*"', 'devname = "?pu9"', "nodes.devname is '?pu9'"),
        ("nodes = [", 'uevent_drivers = ["npu[0-9]"]\nnodes = [', "uevent_drivers is 'npu[0-9]'"),
        ('hardware = "NPU nine"', 'hardware = "a\\u001b[31m"', r"hardware is 'a\x1b[31m'"),
    ],
)
def test_refusals_of_what_char_devices_add(old: str, new: str, says: str) -> None:
    assert old in CHAR_GOOD
    assert says in refusal(CHAR_GOOD.replace(old, new, 1))


BATCH = """
[argument.NPU9_RUN]
size = 16
offset = 8
bytes = 4
count = true
"""


def test_work_is_counted_of_submissions_through_drm_in_a_unit() -> None:
    good = GOOD.replace("[visibility]", f"{BATCH}[visibility]").replace("subsystem", 'work = "jobs"\nsubsystem')
    table = parse_table(good, "x")
    assert table.work == "jobs"
    assert parse_table(good.replace("jobs", "commands"), "x").work == "commands"
    assert CountField(16, 8, 4) in {rule.argument for rule in table.interfaces[0].ioctls}
    assert "count is 'NPU9_RUN'" in refusal(good.replace('work = "jobs"\n', ""))
    assert "count is 'NPU9_RUN'" in refusal(good.replace('"submit", name', '"alloc", name'))
    char = CHAR_GOOD.replace("[argument.NPU9_MEM]", f"{BATCH}[argument.NPU9_MEM]")
    assert "count is 'NPU9_RUN'" in refusal(char.replace('hardware = "NPU nine"', 'hardware = ""\nwork = "jobs"'))


def test_early_calls_are_drivers_calls_of_drm_and_hand_over_no_work() -> None:
    good = GOOD.replace('name = "NPU9_RUN" }', 'name = "NPU9_RUN", early = true }')
    assert parse_table(good, "x").interfaces[0].ioctls[0].early
    assert "early is 1" in refusal(good.replace("early = true", "early = 1"))
    counting = good.replace("[visibility]", f"{BATCH}[visibility]").replace("subsystem", 'work = "jobs"\nsubsystem')
    assert "early is 'NPU9_RUN'" in refusal(counting)
    assert "early is 'NPU9_RUN'" in refusal(CHAR_GOOD.replace('name = "NPU9_RUN"', 'name = "NPU9_RUN", early = true'))
    again = '{ nr = 0x41, kind = "submit", name = "AGAIN" }]'
    assert "not the same meaning" in refusal(good.replace("early = true }]", f"early = true }}, {again}"))
    other = '{ nr = 0x42, kind = "other", name = "ENV" }]'
    envelope = "[argument.ENV]\nsize = 16\noffset = 0\nbytes = 4\nenvelope = { length = 4, pointer = 8 }\n[visibility]"
    text = good.replace("early = true }]", f"early = true }}, {other}").replace("[visibility]", envelope)
    assert "early is 'NPU9_RUN'" in refusal(text)
    assert parse_table(text.replace(", early = true", ""), "x")


def test_a_unit_of_work_that_no_call_counts_is_refused() -> None:
    assert "work is 'jobs'" in refusal(GOOD.replace("subsystem", 'work = "jobs"\nsubsystem'))


def test_arguments_of_one_interface_end() -> None:
    calls = ", ".join(f'{{ nr = {nr}, kind = "alloc", name = "C{nr}" }}' for nr in range(2, 33))
    one = "size = 4\noffset = 0\nbytes = 4\nkinds = { free = [0] }\n"
    text = CHAR_GOOD.replace("[[release]]", "".join(f"[argument.C{nr}]\n{one}" for nr in range(2, 33)) + "[[release]]")
    text = text.replace("ioctl = [\n", f"ioctl = [\n{calls},\n", 1)
    assert "argument is 32" in refusal(text)
    assert parse_table(text.replace(f"[argument.C32]\n{one}", ""), "x").interfaces


def test_drm_calls_are_not_matched_by_command() -> None:
    assert "ioctl_type is 100" in refusal(GOOD.replace("nr = 0x41", "cmd = 0x6441"))


def test_a_number_has_one_kind_unless_the_command_differs() -> None:
    both = '{ cmd = 0x30000001, kind = "wait", name = "A" },\n  { cmd'
    assert "same nr 0x01" in refusal(CHAR_GOOD.replace("{ cmd", both))
    assert len(parse_table(CHAR_GOOD.replace("{ cmd", both.replace("0x3", "0x4")), "x").interfaces[0].ioctls) == 4


@pytest.mark.parametrize(
    ("text", "version"),
    [("4.23.0", (4, 23)), ("4.23", (4, 23)), ("0", (0,)), ("5.3.0-rc1", (5, 3)), ("v5", None), ("", None)],
)
def test_versions(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "npu9"', "", "name is missing"),
        ('name = "npu9"', 'name = "-"', "name is '-'"),
        ('name = "npu9"', 'name = "a\\u001b[31m"', r"name is 'a\x1b[31m'"),
        ('"accel"', '"block"', "subsystem is 'block'"),
        ('["npu9"]', '"npu9"', "uevent_drivers is 'npu9'"),
        ('["npu9"]', "[1]", "uevent_drivers is 1"),
        ('["npu9"]', "[]", "uevent_drivers is []"),
        ('["npu9"]', '["npu*"]', "uevent_drivers is 'npu*'"),
        ('["npu9"]', '["npu9"]\ndrm_names = ["n*"]', "drm_names is 'n*'"),
        ("ioctl_type = 0x64", "ioctl_type = 256", "ioctl_type is 256"),
        ("ioctl_type = 0x64", "ioctl_type = 0x48", "ioctl_type is 72"),
        ("ioctl_type = 0x64", 'ioctl_type = "d"', "ioctl_type is 'd'"),
        ("nr = 0x41", "nr = 256", "ioctl[0].nr is 256"),
        ("nr = 0x41", "nr = -1", "ioctl[0].nr is -1"),
        ("nr = 0x41", "nr = true", "ioctl[0].nr is True"),
        ("nr = 0x41", "nr = 0x01", "nr of NPU9_RUN is '0x01'"),
        ("nr = 0x41", f"nr = 0x{'f' * 9000}", "ioctl[0].nr is too long a number"),
        ("nr = 0x41", f"nr = {'9' * 9000}", "not valid TOML"),
        ('"submit",', '"query",', "ioctl[0].kind is 'query'"),
        ('"NPU9_RUN"', '"two words"', "ioctl[0].name is 'two words'"),
        ('name = "NPU9_RUN"', "", "not valid TOML"),
        (', name = "NPU9_RUN"', "", "ioctl[0].name is missing"),
        ("nr = 0x41", "nr = 0x41, size = 4", "unknown key 'ioctl[0].size'"),
        ('submit = "always"', 'submit = "often"', "visibility.submit is 'often'"),
        ('submit = "always"', 'submit = "always"\nhow = 1', "unknown key 'visibility.how'"),
        ('name = "npu9"', 'name = "npu9"\ncolour = 1', "unknown key 'colour'"),
        ("[{ nr", "[7, { nr", "ioctl[0] is 7"),
        (
            '"NPU9_RUN" }',
            '"NPU9_RUN" }, { nr = 0x41, kind = "wait", name = "B" }',
            "B and NPU9_RUN have the same nr 0x41",
        ),
    ],
)
def test_refusals_name_file_and_key(old: str, new: str, says: str) -> None:
    assert old in GOOD
    assert says in refusal(GOOD.replace(old, new, 1))


def test_a_submission_in_an_argument_is_one() -> None:
    text = CHAR_GOOD.replace('submit = "partly"', 'submit = "never"').replace('kind = "submit"', 'kind = "other"')
    assert parse_table(text, "x").visibility["submit"] is Visibility.NEVER
    assert "visibility.submit is 'never'" in refusal(text.replace("free = [1, 2]", "submit = [1]"))


def test_where_nothing_is_submitted_there_may_be_a_call_for_it() -> None:
    """The driver may take it one day."""
    table = parse_table(GOOD.replace('submit = "always"', 'submit = "none"'), "x")
    assert table.visibility["submit"] is Visibility.NONE


def test_two_names_for_one_number_are_fine() -> None:
    text = GOOD.replace('"NPU9_RUN" }', '"NPU9_RUN" }, { nr = 0x41, kind = "submit", name = "NPU9_RUN_WR" }')
    assert [rule.nr for rule in parse_table(text, "x").interfaces[0].ioctls] == [0x41, 0x41]


@given(st.text(), st.integers(0, len(GOOD)), st.integers(0, 20))
def test_any_text_gives_a_table_or_a_config_error(noise: str, at: int, cut: int) -> None:
    text = GOOD[:at] + noise + GOOD[at + cut :]
    try:
        table = parse_table(text, "x.toml")
    except ConfigError as error:
        assert error.cause.startswith("x.toml: ")
    else:
        rules = [rule for interface in table.interfaces if interface.subsystem != CHAR for rule in interface.ioctls]
        assert all(0x40 <= rule.nr < 0xA0 for rule in rules) or table.name == CORE_NAME
