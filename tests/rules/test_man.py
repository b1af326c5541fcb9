# SPDX-License-Identifier: Apache-2.0
"""The man pages: they can be made, look right, name everything there is, and nothing that is not."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from docutils.utils import SystemMessage

import from_parsers
import make_pages
from kubenpu.api import dbus as api
from kubenpu.api import fields, varlink
from kubenpu.cli.main import EXIT_CODES
from kubenpu.config.settings import DEFAULT_FILE, SETTINGS, make_daemon_parser, spell
from kubenpu.exporters import web_config
from kubenpu.exporters.metrics import METRICS
from kubenpu.kernel import layout
from kubenpu.kernel.bcc_loader import LAYOUTS
from kubenpu.kernel.hooks import HOOKS, MECHANISM_NAMES, SHARED_MAPS
from kubenpu.kernel.losses import LOSSES
from kubenpu.kernel.pins import STATE_NAME
from kubenpu.kernel.store import LOSS_REASONS
from kubenpu.ledger.clients_file import NAME as CLIENTS_NAME
from kubenpu.ledger.names import NAMES_NAME
from kubenpu.model.device import WHATS
from kubenpu.model.kinds import KINDS
from kubenpu.model.sample import OFF
from kubenpu.model.view import OPTIONAL_SOURCES
from kubenpu.service.probe import make_parser as make_probe_parser
from make_pages import EXTERNAL, KNOWN, PAGES, Page
from tests.rules.tree import ROOT, files, parsed

BY_NAME = {page.name: page for page in PAGES}
COLUMNS = 80
# `make check` installs it, so the tests of a whole run have it.
needs_man = pytest.mark.skipif(shutil.which("man") is None, reason="needs man: make check installs man-db")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)


@cache
def rendered(page: Page) -> str:
    return make_pages.render(page)


@cache
def text_of(name: str) -> str:
    """What a page says, without markup."""
    text = re.sub(r"\\f[BIRP]|\\&", "", rendered(BY_NAME[name]))
    for escaped, plain in ((r"\-", "-"), (r"\(aq", "'"), (r"\(dq", '"'), (r"\(ga", "`"), (r"\e", "\\")):
        text = text.replace(escaped, plain)
    return text


def absent(name: str, words: list[str]) -> list[str]:
    """Those that a page does not have, each as a word of its own."""
    return [w for w in words if not re.search(rf"(?<![\w.-]){re.escape(w)}(?![\w-])", text_of(name))]


def section(page: Page, title: str) -> str:
    """A section of the source of a page, "" when it has none."""
    found = re.search(rf"^{title}\n=+\n(.*?)(?=^[^\n]+\n=+\n|\Z)", page.source.read_text(), re.M | re.S)
    return found[1] if found else ""


# ---- the pages as such ----


def test_every_source_is_a_page() -> None:
    assert files(".rst", below="packaging/man") == [page.source for page in PAGES]


@every_page
def test_page_can_be_made(page: Page) -> None:
    assert f'"{page.section}"' in rendered(page).partition(".SH NAME")[0]
    assert page.summary in text_of(page.name)


@every_page
def test_nothing_is_escaped_twice(page: Page) -> None:
    assert re.findall(r"\S*\\e[_*`|]\S*", rendered(page)) == []


@needs_man
@every_page
def test_page_is_well_formed_and_fits(page: Page, tmp_path: Path) -> None:
    """groff has nothing to complain about, and no line is broken by a terminal."""
    path = tmp_path / page.file
    path.write_text(rendered(page))
    command = ["man", "--warnings", "--encoding=UTF-8", "--local-file", str(path)]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": str(COLUMNS), "MAN_KEEP_FORMATTING": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    assert "SEE ALSO" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > COLUMNS] == []


@every_page
def test_page_refers_to_pages_that_exist(page: Page) -> None:
    """:man: refuses others; a reference without it would be unchecked. One that says what it is not sends nowhere."""
    source = page.source.read_text()
    assert re.findall(r"\S+\([1-8]\)", re.sub(r":man:`[^`]+`", "", source)) == []
    referred = re.findall(r":man:`([^`]+)`", section(page, "SEE ALSO"))
    assert referred
    assert page.reference not in referred
    assert set(referred) <= KNOWN
    assert len(referred) == len(set(referred))


def test_pages_of_others_are_referred_to() -> None:
    sources = "".join(page.source.read_text() for page in PAGES)
    assert [reference for reference in EXTERNAL if f":man:`{reference}`" not in sources] == []


@pytest.mark.parametrize(
    "source",
    [
        ".. from-code:: nothing\n",
        ".. subcommand:: nothing\n\n   Text.\n",
        ".. subcommand:: doctor\n",
        ":value:`nothing`\n",
        ":man:`nothing(1)`\n",
        "Text *without an end\n",
    ],
)
def test_mistakes_are_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_pages, "SOURCES", tmp_path)
    (tmp_path / "page.rst").write_text(f"DESCRIPTION\n===========\n\n{source}")
    with pytest.raises(SystemMessage):
        make_pages.render(Page("page", 7, "summary"))


# ---- what they tell is what there is ----


def test_settings() -> None:
    assert absent("kubenpu.toml", [setting.key for setting in SETTINGS]) == []
    assert [s.key for s in SETTINGS if f"{s.key} = {spell(s.default)}" not in text_of("kubenpu.toml")] == []
    assert absent("kubenpud", [setting.flag for setting in SETTINGS]) == []


def keys_asked_for(module: str, *methods: str) -> list[str]:
    """The texts that a module calls these methods with, which take a key of a file."""
    calls = [node for node in ast.walk(parsed(ROOT / module)) if isinstance(node, ast.Call)]
    keys = [call.args[0] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in methods]
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def test_web_configuration() -> None:
    keys = keys_asked_for("kubenpu/exporters/web_config.py", "text", "texts", "boolean", "section")
    assert {"tls_server_config", "cipher_suites", "http2"} <= set(keys)
    told = section(BY_NAME["kubenpu.toml"], "WEB CONFIGURATION")
    assert [key for key in keys if f"**{key}**" not in told] == []
    values = (web_config.CIPHERS, web_config.CURVES, web_config.VERSIONS, web_config.CLIENT_AUTH, web_config.HEADERS)
    assert absent("kubenpu.toml", [value for each in values for value in each]) == []


def test_driver_tables() -> None:
    takes = ("take", *(f"take_{what}" for what in ("text", "texts", "choice", "number", "section", "sections")))
    modules = ("kubenpu/devices/schema.py", "kubenpu/devices/arguments.py")
    keys = [*WHATS, *(key for module in modules for key in keys_asked_for(module, *takes))]
    assert {"name", "ioctl", "nr", "module", "mask"} <= set(keys)
    told = section(BY_NAME["kubenpu.toml"], "DRIVER TABLES")
    assert [key for key in keys if f"**{key}**" not in told] == []
    assert absent("kubenpu.toml", [kind.label for kind in KINDS]) == []


def test_metrics() -> None:
    assert absent("kubenpu-metrics", [metric.name for metric in METRICS]) == []
    assert absent("kubenpu-metrics", [label for metric in METRICS for label in metric.labels]) == []
    kinds = re.findall(r"^\*\*(\w+)\*\*$", section(BY_NAME["kubenpu-metrics"], "KINDS"), re.M)
    assert kinds == [kind.label for kind in KINDS]


def test_examples_use_metrics_that_exist() -> None:
    named = set(re.findall(r"\bkubenpu_\w+", text_of("kubenpu-metrics")))
    assert named - {metric.name for metric in METRICS} == set()


def test_hooks() -> None:
    page = BY_NAME["kubenpu-hooks"]
    mechanisms = re.findall(r"^\*\*([\w.]+)\*\*$", section(page, "HOW A HOOK IS ATTACHED"), re.M)
    assert mechanisms == [*MECHANISM_NAMES, OFF]
    maps = (*SHARED_MAPS, *(name for hook in HOOKS for name in hook.maps))
    assert [name for name in maps if f"**{name}**" not in section(page, "FILES")] == []
    assert absent("kubenpu-hooks", [loss.reason for loss in LOSSES]) == []


def test_every_loss_is_explained() -> None:
    assert tuple(loss.reason for loss in LOSSES) == LOSS_REASONS


def test_dbus() -> None:
    node = api.NODE
    members = [*(m.name for m in node.methods), *(s.name for s in node.signals)]
    properties = [value.name for value in (*node.properties, *api.DEVICE.properties)]
    keys = [*(field.name for field in fields.WORKLOAD_FIELDS), *(field.name for field in fields.COUNTER_FIELDS)]
    keys += [field.name for field in fields.ALLOCATION_FIELDS]
    signatures = [argument.signature for method in api.NODE.methods for argument in (*method.takes, *method.gives)]
    assert absent("io.kubenpu", [*members, *properties, *keys]) == []
    assert [signature for signature in signatures if signature not in text_of("io.kubenpu")] == []
    assert absent("io.kubenpu", [method.action for method in api.NODE.methods if method.action]) == []


def test_varlink() -> None:
    parts = [part.key for method in varlink.METHODS[1:] for part in (*method.takes, *method.gives)]
    names = [each.name for each in (*varlink.METHODS, *varlink.ERRORS)]
    assert absent("io.kubenpu", [varlink.NAME, *names, *parts]) == []


def test_sources() -> None:
    """Those that a node can do without are found by name; the page says so of each, and of no other."""
    told = re.findall(r"^\*\*(\w+)\*\*$", section(BY_NAME["kubenpud"], "SOURCES"), re.M)
    assert set(told) - OPTIONAL_SOURCES == {"devices", "counters", "names"}
    (optional,) = re.findall(r"every source but ([\w, ]+) answered", section(BY_NAME["kubenpud"], "WEB SERVER"))
    assert set(re.split(", | and ", optional)) == OPTIONAL_SOURCES <= set(told)


def test_subcommands() -> None:
    """Each has its text, keyed by its name, and no text is of one that is gone."""
    texts = re.findall(r"^\.\. subcommand:: (.*)$", BY_NAME["kubenpuctl"].source.read_text(), re.M)
    assert texts == list(from_parsers.subcommands())


@pytest.mark.parametrize("name", from_parsers.subcommands())
def test_options_of_a_subcommand(name: str) -> None:
    parser, _ = from_parsers.subcommands()[name]
    options = [action for action in from_parsers.actions(parser) if action.option_strings]
    assert absent("kubenpuctl", [f"kubenpuctl {name}", *(f for option in options for f in option.option_strings)]) == []
    helps = [from_parsers.explain(option, parser) for option in options]
    assert [text for text in helps if text[1:] not in text_of("kubenpuctl")] == []


def test_options_of_the_daemons() -> None:
    probe = make_probe_parser()
    for page, parser in (("kubenpud", make_daemon_parser()), ("kubenpu-probe", probe)):
        assert absent(page, [flag for a in from_parsers.actions(parser) for flag in a.option_strings]) == []
    commands = from_parsers.commands(probe)
    below = [a for parser, _ in commands.values() for a in from_parsers.actions(parser)]
    assert absent("kubenpu-probe", [*commands, *(flag for action in below for flag in action.option_strings)]) == []


def test_exit_codes() -> None:
    told = re.findall(r"^\.B (\d)\n(.*)$", text_of("kubenpuctl"), re.M)
    assert {int(code): text.lower() for code, text in told} == {code: f"{text}." for code, text in EXIT_CODES.items()}


# ---- files ----


def installed() -> set[str]:
    """What `make install` makes, as far as it says so."""
    command = ["make", "--dry-run", "--directory", str(ROOT), "install", "DESTDIR="]
    found: set[str] = set()
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        found.update(re.findall(r">(/\S+)", line))
        if into := re.match(r"install -D -m 644 -t (/\S+) (.*)", line):
            found.update(f"{into[1]}/{Path(source).name}" for source in into[2].split())
        elif line.startswith("install -d "):
            found.update(line.split()[2:])
    return found


def used() -> set[str]:
    """What the program reads or writes when no setting is changed."""
    defaults = {setting.key: str(setting.default) for setting in SETTINGS if isinstance(setting.default, Path)}
    run, pins, drivers = (defaults[f] for f in ("run_directory", "kernel.pin_directory", "devices.drivers_directory"))
    units = "".join(path.read_text() for path in files(".socket", below="systemd"))
    sockets = re.findall(r"^ListenStream=(/.*)$", units, re.M)
    flags = re.findall(r"^EnvironmentFile=-(.*)$", (ROOT / "systemd/kubenpud.service").read_text(), re.M)
    names = (STATE_NAME, NAMES_NAME, CLIENTS_NAME, LAYOUTS)
    state = (*(f"{run}/{name}" for name in names), f"{pins}/{layout.ABI}")
    return {
        *defaults.values(),
        *sockets,
        *flags,
        *state,
        f"{drivers}/*.toml",
        str(DEFAULT_FILE),
        f"{DEFAULT_FILE}.d/*.toml",
    }


def test_files_are_made_or_used() -> None:
    listed = {path.replace("\\", "") for page in PAGES for path in paths_in(section(page, "FILES"))}
    assert len(listed) > 10
    assert listed - installed() - used() == set()


def paths_in(text: str) -> list[str]:
    """The terms of a definition list that are paths."""
    terms = re.findall(r"^\*/.*$", text, re.M)
    return [path for term in terms for path in re.findall(r"\*(/(?:\\\*|[^*\n])+)\*", term)]


def test_pages_are_installed_in_their_sections() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "\ninstall: $(BPF_OBJECTS) man " in makefile
    assert "$(PREFIX)/share/man/man$${page##*.} $$page" in makefile
