# SPDX-License-Identifier: Apache-2.0
"""Tables of the program as text for the man pages: TABLES by the name that a source asks for, VALUES for single words.

Data comes from the tables that the program itself works with, and from the units. Each function gives lines of
reStructuredText, mostly a definition list: unlike a table it fits any terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import from_parsers
from kubenpu.api import dbus as api
from kubenpu.api import fields, varlink
from kubenpu.cli.main import EXIT_CODES
from kubenpu.config.settings import SETTINGS, Setting, spell
from kubenpu.devices import arguments, schema
from kubenpu.devices.tables import load_tables
from kubenpu.exporters import web, web_config, web_request
from kubenpu.exporters.metrics import METRICS
from kubenpu.identity import kubelet_socket, podresources
from kubenpu.identity.cri import KNOWN_SOCKETS
from kubenpu.kernel import layout
from kubenpu.kernel.losses import LOSSES
from kubenpu.model.device import DriverTable, Visibility
from kubenpu.model.kinds import KIND_LABELS
from kubenpu.model.text import MAX_LABEL_CHARACTERS
from rst import definition, escape, literal, sentence

UNITS = Path(__file__).parents[2] / "systemd"
Lines = list[str]


def settings() -> Lines:
    def about(setting: Setting) -> str:
        when = "A change needs a restart." if setting.needs_restart else "Reload applies it."
        return escape(f"Expected: {setting.type.expected}. {when}")

    return [
        line
        for setting in SETTINGS
        for line in definition(
            f"**{setting.key}** = {literal(spell(setting.default))}", escape(setting.help), about(setting)
        )
    ]


def metrics() -> Lines:
    def term(name: str, labels: Iterable[str]) -> str:
        shown = ", ".join(labels)
        return f"**{name}**" + (f" {{{escape(shown)}}}" if shown else "")

    return [
        line
        for metric in METRICS
        for line in definition(
            term(metric.name, metric.labels),
            escape(metric.help),
            " ".join(map(sentence, (metric.type, f"unit: {metric.unit}", f"source: {metric.source}"))),
        )
    ]


def losses() -> Lines:
    return [
        line
        for loss in LOSSES
        for line in definition(f"**{loss.reason}**", f"{sentence(loss.cause)} {sentence(f'missing: {loss.missing}')}")
    ]


def drivers() -> Lines:
    """Those that are built in, without the core's."""
    tables = sorted(load_tables(UNITS / "none").tables, key=lambda table: table.name)
    return [line for table in tables for line in _driver(table)]


def _driver(table: DriverTable) -> Lines:
    subsystems = ", ".join(dict.fromkeys(interface.subsystem for interface in table.interfaces))
    submit, *others = (f"{what} {seen.value}" for what, seen in table.visibility.items())
    seen = ", ".join((submit.removeprefix("submit "), *others))
    return definition(
        f"**{table.name}** ({subsystems}): {seen}",
        sentence(table.hardware),
        sentence(table.visibility_note),
    )


def exit_codes() -> Lines:
    return [line for code, text in EXIT_CODES.items() for line in definition(f"**{code}**", sentence(text))]


def capabilities(name: str) -> Lines:
    """What a unit grants, with the calls that need it: its comments say so."""
    unit = (UNITS / name).read_text(encoding="utf-8")
    found = re.findall(r"^# (CAP_\w+): (.*)$", unit, re.M)
    return [line for name, calls in found for line in definition(f"**{name}**", escape(f"{calls}."))]


# ---- D-Bus ----


def dbus_methods(interface: api.Interface) -> Iterator[str]:
    for method in interface.methods:
        takes, gives = (_arguments(arguments) for arguments in (method.takes, method.gives))
        reply = f" → {gives}" if gives else ""
        action = f". Needs the polkit action {method.action}, or root" if method.action else ""
        yield from definition(f"**{method.name}**\\ ({takes}){reply}", sentence(method.help + action))


def dbus_signals(interface: api.Interface) -> Iterator[str]:
    for signal in interface.signals:
        yield from definition(f"**{signal.name}**\\ ({_arguments(signal.carries)})", sentence(signal.help))


def dbus_properties(interface: api.Interface) -> Iterator[str]:
    for each in interface.properties:
        constant = " Constant." if each.constant else ""
        yield from definition(f"**{each.name}** {literal(each.signature)}", sentence(each.help) + constant)


def _arguments(arguments: Iterable[api.Argument]) -> str:
    return ", ".join(f"{literal(argument.signature)} *{argument.name}*" for argument in arguments)


def dbus_fields(rows: Iterable[tuple[str, str, str]]) -> Lines:
    return [line for name, signature, text in rows for line in definition(f"**{name}** {literal(signature)}", text)]


def workload_fields() -> Lines:
    return dbus_fields((field.name, field.signature, sentence(field.help)) for field in fields.WORKLOAD_FIELDS)


def counter_fields() -> Lines:
    """Those that can be filtered by are marked."""
    filters = {field.name for field in fields.FILTER_FIELDS}
    return dbus_fields(
        (field.name, field.signature, sentence(field.help) + (" *Filter.*" if field.name in filters else ""))
        for field in fields.COUNTER_FIELDS
    )


# ---- Varlink ----


def varlink_methods() -> Lines:
    return [line for method in varlink.METHODS for line in _varlink_method(method)]


def _varlink_method(method: varlink.Method) -> list[str]:
    takes, gives = (", ".join(map(_part, parts)) for parts in (method.takes, method.gives))
    notes = [sentence(f"{part.key}: {part.help}") for part in (*method.takes, *method.gives) if part.help]
    named = method.name != "GetInfo"  # its values are the properties above
    return definition(f"**{method.name}**\\ ({takes}) → {gives}", " ".join([sentence(method.help), *notes * named]))


def _part(part: varlink.Part) -> str:
    return f"*{part.key}* {literal(part.type)}"


def varlink_errors() -> Lines:
    return [
        line
        for error in varlink.ERRORS
        for line in definition(f"**{error.name}**\\ ({', '.join(map(_part, error.parts))})", sentence(error.help))
    ]


def allocation_fields() -> Lines:
    return dbus_fields((field.name, field.signature, sentence(field.help)) for field in fields.ALLOCATION_FIELDS)


def usage_fields() -> Lines:
    return dbus_fields((field.name, field.signature, sentence(field.help)) for field in fields.USAGE_FIELDS)


TABLES: Mapping[str, Callable[[], Lines]] = {
    "settings": settings,
    "metrics": metrics,
    "losses": losses,
    "drivers": drivers,
    "exit-codes": exit_codes,
    "capabilities": lambda: capabilities("kubenpu-probe.service"),
    "dbus-methods": lambda: [*dbus_methods(api.NODE)],
    "dbus-properties": lambda: [*dbus_properties(api.NODE)],
    "dbus-signals": lambda: [*dbus_signals(api.NODE)],
    "dbus-device": lambda: [*dbus_properties(api.DEVICE)],
    "dbus-workloads": workload_fields,
    "dbus-counters": counter_fields,
    "varlink-methods": varlink_methods,
    "varlink-errors": varlink_errors,
    "dbus-allocations": allocation_fields,
    "dbus-usage": usage_fields,
    "kubenpuctl-options": from_parsers.kubenpuctl_options,
    "kubenpud-options": from_parsers.kubenpud_options,
    "clients-capabilities": lambda: capabilities("kubenpu-clients.service"),
    "kubenpu-clients-options": from_parsers.clients_options,
    "kubenpu-probe-options": from_parsers.probe_options,
    "kubenpu-probe-commands": from_parsers.probe_commands,
}
VALUES: Mapping[str, str] = {
    "abi": str(layout.ABI),
    "cri-sockets": ", ".join(map(str, KNOWN_SOCKETS)),
    "bcrypt-costs": f"{web_config.COSTS.start} to {web_config.COSTS.stop - 1}",
    "ciphers": ", ".join((*web_config.CIPHERS_13, *web_config.CIPHERS)),
    "client-auth": ", ".join(web_config.CLIENT_AUTH),
    "container-devices": str(podresources.MAX_OF_CONTAINER),
    "curves": ", ".join(web_config.CURVES),
    "dbus-call-kib": str(api.MAX_CALL_BYTES // 1024),
    "devices": str(layout.DEVICE_SLOTS - 1),
    "driver-numbers": f"{schema.DRIVER_NRS.start:#x} to {schema.DRIVER_NRS.stop - 1:#x}",
    "headers": ", ".join(web_config.HEADERS),
    "ioctl-type": f"{schema.DRM_IOCTL_TYPE:#x}",
    "kinds": ", ".join(KIND_LABELS),
    "label-characters": str(MAX_LABEL_CHARACTERS),
    "kubelet-roots": ", ".join(map(str, kubelet_socket.ROOTS)),
    "max-rows": str(fields.MAX_ROWS),
    "max-usage-groups": str(fields.MAX_USAGE_GROUPS),
    "max-workloads": str(fields.MAX_WORKLOADS),
    "node-devices": str(podresources.MAX_CLAIMED),
    "argument-values": str(arguments.MAX_VALUES),
    "subsystems": f"{' or '.join(schema.SUBSYSTEMS)} for nodes of these classes, {schema.CHAR} for other device nodes",
    "units": ", ".join(schema.WORK_UNITS),
    "tls-versions": ", ".join(web_config.VERSIONS),
    "varlink-call-kib": str(varlink.MAX_CALL_BYTES // 1024),
    "varlink-call-seconds": f"{varlink.CALL_S:.0f}",
    "varlink-connections": str(varlink.MAX_CONNECTIONS),
    "varlink-patience-seconds": f"{varlink.PATIENCE_S:.0f}",
    "varlink-take-seconds": f"{varlink.TAKE_S:.0f}",
    "visibilities": ", ".join(visibility.value for visibility in Visibility),
    "web-connections": str(web.MAX_CONNECTIONS),
    "web-head-kib": str(web_request.MAX_HEAD_BYTES // 1024),
    "web-seconds": f"{web_request.TIMEOUT_S:.0f}",
}
