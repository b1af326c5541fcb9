# SPDX-License-Identifier: Apache-2.0
"""Makes the man pages: PAGES is the list, each has its source NAME.rst beside this file.

What the program knows is not written down again in a source but taken from it: `.. from-code:: NAME` is a table of
from_code.py, `:value:` a number or a few words of it, `.. subcommand:: NAME` a subcommand of kubenpuctl with its
options and, below, what else is to be said. `:man:` names another page. Refuses whatever docutils warns of, names
that nobody knows, and subcommands without text. Needs docutils and what kubenpuctl needs.

    PYTHONPATH=. python3 packaging/man/make_pages.py DIRECTORY
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docutils.core
import docutils.writers.manpage
from docutils import nodes
from docutils.parsers.rst import Directive, directives, roles
from docutils.statemachine import StringList

import from_code
import from_parsers
from kubenpu import __version__

SOURCES = Path(__file__).parent
REFERENCE = re.compile(r"([A-Za-z0-9_.-]+)\(([1-8])\)")
WARNING = 2
RAGGED = ".nr HY 0\n.nh\n.ad l"
"""Names of files and commands are neither broken up nor spaced out."""
EXTERNAL = (
    "bpf-helpers(7)",
    "bpftool-prog(8)",
    "busctl(1)",
    "journalctl(1)",
    "polkit(8)",
    "systemctl(1)",
    "systemd.socket(5)",
    "varlinkctl(1)",
)
"""Pages of others that ours refer to."""


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    section: int
    summary: str

    @property
    def reference(self) -> str:
        return f"{self.name}({self.section})"

    @property
    def source(self) -> Path:
        return SOURCES / f"{self.name}.rst"

    @property
    def file(self) -> str:
        return f"{self.name}.{self.section}"


PAGES = (
    Page("io.kubenpu", 5, "D-Bus and Varlink interfaces of kubenpud"),
    Page("kubenpu-clients", 8, "adds up device time and memory of whoever holds an accelerator"),
    Page("kubenpu-hooks", 7, "what KubeNPU counts in the kernel, and how"),
    Page("kubenpu-metrics", 7, "metrics of kubenpud"),
    Page("kubenpu-probe", 8, "loads, replaces and removes the programs that count accelerator calls"),
    Page("kubenpu.toml", 5, "settings of KubeNPU, of its web server and of its driver tables"),
    Page("kubenpuctl", 1, "shows who used each accelerator of this node"),
    Page("kubenpud", 8, "tells which pod used each accelerator of this node"),
)
KNOWN = {page.reference for page in PAGES}.union(EXTERNAL)


class FromCode(Directive):
    """`.. from-code:: NAME`: a table of from_code.TABLES."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        if name not in from_code.TABLES:
            raise self.error(f"from_code.py has no table {name}")
        return parsed(self, from_code.TABLES[name]())


class Subcommand(Directive):
    """`.. subcommand:: NAME`: its synopsis, description, the text below, its options."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        if name not in from_parsers.subcommands():
            raise self.error(f"kubenpuctl has no subcommand {name}")
        self.assert_has_content()
        return parsed(self, from_parsers.describe(name, list(self.content)))


def parsed(directive: Directive, lines: Sequence[str]) -> list[nodes.Node]:
    container = nodes.Element()
    directive.state.nested_parse(StringList(list(lines), "the code"), directive.content_offset, container)
    return container.children


def man_role(_role: str, raw: str, text: str, line: int, inliner: Any, *_: object) -> tuple[list[Any], list[Any]]:
    """`:man:`kubenpud(8)``: the name in bold."""
    found = REFERENCE.fullmatch(text)
    if found is None or text not in KNOWN:
        return [], [inliner.reporter.error(f"{text} is neither a page of ours nor among EXTERNAL", line=line)]
    return [nodes.strong(raw, found[1]), nodes.Text(f"({found[2]})")], []


def value_role(_role: str, raw: str, text: str, line: int, inliner: Any, *_: object) -> tuple[list[Any], list[Any]]:
    """`:value:`NAME``: one of from_code.VALUES."""
    if text not in from_code.VALUES:
        return [], [inliner.reporter.error(f"from_code.py has no value {text}", line=line)]
    return [nodes.Text(from_code.VALUES[text])], []


def render(page: Page) -> str:
    """The page as troff. Raises docutils.utils.SystemMessage when anything is wrong with its source."""
    directives.register_directive("from-code", FromCode)
    directives.register_directive("subcommand", Subcommand)
    roles.register_local_role("man", man_role)
    roles.register_local_role("value", value_role)
    text: str = docutils.core.publish_string(
        header(page) + page.source.read_text(encoding="utf-8"),
        source_path=str(page.source),
        writer=docutils.writers.manpage.Writer(),
        settings_overrides={
            "_disable_config": True,
            "file_insertion_enabled": False,
            "halt_level": WARNING,
            "output_encoding": "unicode",
            "raw_enabled": False,
            "report_level": WARNING,
        },
    )
    text = re.sub(r"^\.SH Name$", ".SH NAME", text, flags=re.M)  # as newer versions of docutils spell it
    return re.sub(r"^\.TH .*$", f"\\g<0>\n{RAGGED}", text, flags=re.M)


def header(page: Page) -> str:
    """What PAGES knows, as docutils wants it; the sources begin with the synopsis."""
    title, summary = "=" * len(page.name), "-" * len(page.summary)
    fields = {"Manual section": page.section, "Manual group": "KubeNPU", "Version": f"KubeNPU {__version__}"}
    lines = [title, page.name, title, "", summary, page.summary, summary, ""]
    return "\n".join([*lines, *(f":{name}: {value}" for name, value in fields.items()), "", ""])


def main(arguments: Sequence[str]) -> int:
    (directory,) = map(Path, arguments)
    directory.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (directory / page.file).write_text(render(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
