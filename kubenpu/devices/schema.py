# SPDX-License-Identifier: Apache-2.0
"""What a driver table file may say: the text of one TOML file in, a DriverTable or a ConfigError out.

    name, hardware           the `vendor` label; what it drives, for people
    work                     jobs, buffers, chunks, commands: in what its submissions say how much they hand over
    scheduled                drivers of devices whose jobs the kernel's GPU scheduler hands out, a ring working on one
                             at a time: its events tell device time, where fdinfo has none
    subsystem                drm, accel: nodes of these classes, whose calls pass drm_ioctl; char: other device nodes
    uevent_drivers           DRIVER of the parent device, the first that fits decides
    sysfs_names              name of the parent device, where no driver is bound to it
    drm_names                name of the driver in fdinfo
    auxiliary                devnames of nodes that stand for several accelerators or for none, "*": all; counted, and
                             nobody is charged for them
    nodes                    for char: { devname, and class | chrdev + minors | major + minors } or { anonymous };
                             shared = true: other minors of the same major are no accelerators
    ioctl_type, ioctl        type byte, unless a call has its own; { nr | cmd, kind, name, type }; early = true: the
                             driver of a DRM device answers it by its number before drm_ioctl, file_ioctl counts it
    [argument.NAME]          a field of the argument of call NAME: size, offset, bytes, and one of
                             kinds = { alloc = [0] } with mask | count = true | gpu = "gpu_id" |
                             envelope = { length, pointer }
    [[release]]              module, first, last, ioctl: instead of `ioctl` while such a release is loaded
    [visibility]             submit, and where it matters memory, wait, device_time, device_memory: always,
                             partly, never; submit = "none": there is nothing to submit; note

All from subsystem to release may stand in several [[interface]] sections instead, where a driver has several kinds of
nodes. `cmd`, the whole command, is for drivers that reuse a number or build none; a comment says why.

The kernel programs read arguments when a call begins. One whose command says a smaller argument than `size`, or whose
memory cannot be read, counts as its own kind; so does one with a value that `kinds` does not list. `count` is for
submissions through drm_ioctl, because only work that the driver took counts.

Pure: reads no file. Strict, because a mistyped table counts the wrong thing without anyone noticing: unknown keys,
numbers that the driver can never receive and one number with two kinds are refused; the error names file and key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kubenpu.devices.arguments import MAX_ARGUMENTS, parse_argument
from kubenpu.devices.section import Section, refusal
from kubenpu.model.device import (
    WHATS,
    Argument,
    CountField,
    DriverTable,
    Envelope,
    Interface,
    IoctlRule,
    KindField,
    NodeMatch,
    Release,
    Visibility,
)
from kubenpu.model.errors import ConfigError
from kubenpu.model.kinds import KINDS, Kind
from kubenpu.model.toml import parse_toml

SUBSYSTEMS = ("drm", "accel")
WORK_UNITS = ("jobs", "buffers", "chunks", "commands")
CHAR = "char"
CORE_NAME = "drm"
ALL_NODES = "*"
DRM_IOCTL_TYPE = 0x64
# Numbers of a DRM or accel driver (DRM_COMMAND_BASE up to DRM_COMMAND_END); all others belong to the DRM core.
DRIVER_NRS = range(0x40, 0xA0)

_KIND_BY_LABEL = {kind.label: kind for kind in KINDS}
_VISIBILITIES = tuple(visibility.value for visibility in Visibility)  # none, of submissions alone, is the last
_DRIVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_IOCTL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}")
_MATCH_NAME = re.compile(r"[!-~]{1,128}")
_SCHEDULED_NAME = re.compile(r"[!-~]{1,31}")  # what the kernel program compares, with its end
_MODULE_NAME = re.compile(r"[A-Za-z0-9_]{1,63}")
_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,5}")
_NOTE = re.compile(r"[ -~]{0,200}")
_WILD = re.compile(r"[*?\[]")
_BYTES = range(0x100)
_COMMANDS = range(1 << 32)
_MAJORS = range(1 << 12)
_MINORS = range(1 << 20)
_INTERFACE_KEYS = "subsystem, uevent_drivers, sysfs_names, drm_names, nodes, ioctl_type, ioctl, argument and release"
_RULE_KEYS = "nr or cmd, kind, name, type and early"
_NODE_KEYS = "devname, shared, and class, or chrdev or major with minors, or anonymous alone"


def parse_table(text: str, source: str) -> DriverTable:
    """The table that `text` describes; `source` is the file it came from, for errors and listings."""
    top = Section(_parse_toml(text, source), source)
    visibility, note = _parse_visibility(top.take_section("visibility"))
    table = DriverTable(
        name=top.take_text("name", _DRIVER_NAME),
        hardware=top.take_text("hardware", _NOTE, ""),
        interfaces=_parse_interfaces(top),
        visibility=visibility,
        visibility_note=note,
        source=source,
        work=top.take_choice("work", WORK_UNITS) if top.has("work") else None,
        scheduled=top.take_texts("scheduled", _SCHEDULED_NAME),
        auxiliary=top.take_texts("auxiliary", _MATCH_NAME),
    )
    top.finish(f"name, hardware, work, scheduled, auxiliary, visibility and either interface or {_INTERFACE_KEYS}")
    for interface in table.interfaces:
        _check_interface(table, interface)
    _check_work(table)
    devnames = {ALL_NODES, *(node.devname for interface in table.interfaces for node in interface.nodes)}
    for name in table.auxiliary:
        if name not in devnames:
            raise refusal(source, "auxiliary", name, "a devname of its nodes, or * alone for all of them")
    return table


def parse_version(text: str) -> tuple[int, ...] | None:
    """The numbers that a version begins with, to be compared; None when it begins with none. 4.23 is 4.23.0."""
    match = _VERSION.match(text)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers) or None


def _parse_toml(text: str, source: str) -> dict[str, object]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}", "Correct the file or remove it") from error


def _parse_visibility(section: Section) -> tuple[dict[str, Visibility], str]:
    visibility = {
        what: Visibility(section.take_choice(what, _VISIBILITIES if what == "submit" else _VISIBILITIES[:-1]))
        for what in WHATS
        if what == "submit" or section.has(what)
    }
    note = section.take_text("note", _NOTE, "")
    section.finish(f"{', '.join(WHATS)} and note")
    return visibility, note


def _parse_interfaces(top: Section) -> tuple[Interface, ...]:
    if not top.has("interface"):
        return (_parse_interface(top),)
    interfaces = tuple(map(_parse_interface, top.take_sections("interface", _INTERFACE_KEYS)))
    if not interfaces:
        raise refusal(top.source, "interface", [], "a list of at least one")
    return interfaces


def _parse_interface(section: Section) -> Interface:
    default = section.take_number("ioctl_type", _BYTES) if section.has("ioctl_type") else None
    arguments = _parse_arguments(section)
    interface = Interface(
        subsystem=section.take_choice("subsystem", (*SUBSYSTEMS, CHAR)),
        uevent_drivers=section.take_texts("uevent_drivers", _MATCH_NAME),
        sysfs_names=section.take_texts("sysfs_names", _MATCH_NAME),
        drm_names=section.take_texts("drm_names", _MATCH_NAME),
        nodes=tuple(map(_parse_node, section.take_sections("nodes", _NODE_KEYS))),
        ioctls=_parse_rules(section, default, arguments),
        releases=tuple(_parse_releases(section, default, arguments)),
    )
    named = {rule.name for rules in _rule_lists(interface) for rule in rules}
    for name in arguments:
        if name not in named:
            raise refusal(section.source, "argument", name, "the name of a call of the same interface")
    return interface


def _parse_node(section: Section) -> NodeMatch:
    if section.has("anonymous"):
        return NodeMatch("", anonymous=section.take_text("anonymous", _MATCH_NAME))
    devname = section.take_text("devname", _MATCH_NAME)
    shared = section.take("shared", bool, default=False)
    if section.has("chrdev"):
        chrdev = section.take_text("chrdev", _MATCH_NAME)
        return NodeMatch(devname, chrdev=chrdev, minors=_take_minors(section), shared=shared)
    if section.has("major"):
        major = section.take_number("major", _MAJORS)
        return NodeMatch(devname, major=major, minors=_take_minors(section), shared=shared)
    sysfs_class = section.take_text("class", _MATCH_NAME) if section.has("class") else None
    return NodeMatch(devname, sysfs_class=sysfs_class, shared=shared)


def _take_minors(section: Section) -> tuple[int, int]:
    minors = section.take("minors", list)
    if [type(each) for each in minors] != [int, int] or not 0 <= minors[0] <= minors[1] < _MINORS.stop:
        raise section.refuse("minors", minors, f"first and last, from 0 to {_MINORS.stop - 1}")
    return minors[0], minors[1]


def _parse_arguments(section: Section) -> dict[str, Argument]:
    if not section.has("argument"):
        return {}
    arguments = section.take_section("argument")
    if len(arguments.names()) > MAX_ARGUMENTS:
        raise section.refuse("argument", len(arguments.names()), f"of {MAX_ARGUMENTS} calls at most")
    return {name: parse_argument(arguments.take_section(name)) for name in arguments.names()}


def _parse_rules(section: Section, default: int | None, arguments: Mapping[str, Argument]) -> tuple[IoctlRule, ...]:
    return tuple(_parse_rule(each, default, arguments) for each in section.take_sections("ioctl", _RULE_KEYS))


def _parse_rule(section: Section, default: int | None, arguments: Mapping[str, Argument]) -> IoctlRule:
    name = section.take_text("name", _IOCTL_NAME)
    kind = _KIND_BY_LABEL[section.take_choice("kind", _KIND_BY_LABEL)]
    early = section.take("early", bool, default=False)
    if section.has("cmd"):
        cmd = section.take_number("cmd", _COMMANDS)
        return IoctlRule(name, cmd & 0xFF, kind, cmd >> 8 & 0xFF, cmd, arguments.get(name), early)
    nr = section.take_number("nr", _BYTES)
    number = section.take_number("type", _BYTES, default)
    return IoctlRule(name, nr, kind, number, argument=arguments.get(name), early=early)


def _parse_releases(section: Section, default: int | None, arguments: Mapping[str, Argument]) -> Iterator[Release]:
    for each in section.take_sections("release", "module, first, last and ioctl"):
        first, last = (parse_version(each.take_text(key, _VERSION)) for key in ("first", "last"))
        assert first is not None and last is not None  # they match _VERSION
        if first > last:
            raise each.refuse("last", ".".join(map(str, last)), "a version not before first")
        yield Release(each.take_text("module", _MODULE_NAME), first, last, _parse_rules(each, default, arguments))


def _rule_lists(interface: Interface) -> Iterator[tuple[IoctlRule, ...]]:
    yield interface.ioctls
    yield from (release.ioctls for release in interface.releases)


def _check_interface(table: DriverTable, interface: Interface) -> None:
    """Refuse what is well-formed but can never match, or fits what it cannot mean: it would look as if it counted."""
    is_char = interface.subsystem == CHAR
    is_core = table.name == CORE_NAME
    if is_char and is_core:
        raise refusal(table.source, "name", table.name, "another one for subsystem char; this is the DRM core's table")
    if is_char is not bool(interface.nodes):
        raise refusal(table.source, "nodes", [*interface.nodes], "given for subsystem char and for no other")
    if not is_char and not is_core and not interface.uevent_drivers and not interface.sysfs_names:
        raise refusal(table.source, "uevent_drivers", [], "a driver, unless sysfs_names has a device name")
    _check_names(table.source, interface)
    for rules in _rule_lists(interface):
        if not is_char:
            _check_drm_rules(table.source, rules, is_core)
        _check_kinds(table.source, rules)
        _check_early(table, rules, is_char or is_core)
        for rule in rules:
            if isinstance(rule.argument, CountField) and (is_char or not table.work or rule.kind is not Kind.SUBMIT):
                wanted = "of a submission of subsystem drm or accel, in a table with work"
                raise refusal(table.source, "count", rule.name, wanted)
            if _submits(rule) and table.visibility["submit"] is Visibility.NEVER:
                wanted = f"always or partly, as {rule.name} is a call of kind submit"
                raise refusal(table.source, "visibility.submit", Visibility.NEVER.value, wanted)


def _check_early(table: DriverTable, rules: tuple[IoctlRule, ...], elsewhere: bool) -> None:
    """Each call is to be counted by one hook, and which one that is only its number can say."""
    has_envelope = any(isinstance(rule.argument, Envelope) for rule in rules)
    for rule in rules:
        if not rule.early:
            continue
        if elsewhere or has_envelope or rule.cmd is not None:
            wanted = "of a driver's call of subsystem drm or accel, by its nr and where no call is an envelope"
            raise refusal(table.source, "early", rule.name, wanted)
        if table.work and _submits(rule):
            raise refusal(table.source, "early", rule.name, "of no submission in a table with work")


def _check_work(table: DriverTable) -> None:
    rules = [rule for interface in table.interfaces for rules in _rule_lists(interface) for rule in rules]
    if table.work and rules and not any(isinstance(rule.argument, CountField) for rule in rules):
        raise refusal(table.source, "work", table.work, "given where the argument of a call has a count")


def _submits(rule: IoctlRule) -> bool:
    kinds = rule.argument.kinds.values() if isinstance(rule.argument, KindField) else ()
    return Kind.SUBMIT in (rule.kind, *kinds)


def _check_names(source: str, interface: Interface) -> None:
    exact = [("uevent_drivers", name) for name in interface.uevent_drivers]
    exact += [("drm_names", name) for name in interface.drm_names]
    exact += [("nodes.class", each.sysfs_class or "") for each in interface.nodes]
    exact += [("nodes.chrdev", each.chrdev or "") for each in interface.nodes]
    for key, name in exact:
        if _WILD.search(name):
            raise refusal(source, key, name, "a whole name; only sysfs_names and devname are patterns")
    for node in interface.nodes:
        if _WILD.match(node.devname):
            raise refusal(source, "nodes.devname", node.devname, "a name or a pattern that begins with a part of one")


def _check_drm_rules(source: str, rules: tuple[IoctlRule, ...], is_core: bool) -> None:
    for rule in rules:
        if rule.type != DRM_IOCTL_TYPE or rule.cmd is not None:
            raise refusal(source, "ioctl_type", rule.type, f"{DRM_IOCTL_TYPE:#x}, which all DRM calls have, and no cmd")
        if (rule.nr in DRIVER_NRS) is is_core:
            wanted = "0x00-0x3f or 0xa0-0xff, the core's" if is_core else "0x40-0x9f, with DRM_COMMAND_BASE added"
            raise refusal(source, f"nr of {rule.name}", f"{rule.nr:#04x}", wanted)


def _check_kinds(source: str, rules: tuple[IoctlRule, ...]) -> None:
    by_number: dict[tuple[int, int, int | None], IoctlRule] = {}
    for rule in rules:
        other = by_number.setdefault((rule.type, rule.nr, rule.cmd), rule)
        if (other.kind, other.argument, other.early) != (rule.kind, rule.argument, rule.early):
            raise ConfigError(
                f"{source}: {rule.name} and {other.name} have the same nr {rule.nr:#04x} but not the same meaning",
                "Keep one of them; calls are told apart by type and nr alone",
            )
