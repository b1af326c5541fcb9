# SPDX-License-Identifier: Apache-2.0
"""Command lines as text for the man pages. Data comes from the parsers that the programs themselves use.

Options that every listing of kubenpuctl has are told once. What argparse adds by itself (--help) is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache

from kubenpu.cli.main import make_parser as make_kubenpuctl_parser
from kubenpu.cli.output import add_format_arguments
from kubenpu.config.settings import make_daemon_parser
from kubenpu.service.clients import make_parser as make_clients_parser
from kubenpu.service.probe import make_parser as make_probe_parser
from rst import definition, indented, sentence


def kubenpuctl_options() -> list[str]:
    return [*options(make_kubenpuctl_parser()), *options(format_parser())]


def kubenpud_options() -> list[str]:
    return list(options(make_daemon_parser()))


def clients_options() -> list[str]:
    return list(options(make_clients_parser()))


def probe_options() -> list[str]:
    return list(options(make_probe_parser()))


def probe_commands() -> list[str]:
    found = commands(make_probe_parser())
    return [line for name in found for line in entry(name, *found[name], [], ())]


def describe(name: str, text: Iterable[str]) -> list[str]:
    """A subcommand of kubenpuctl; `text` comes between its description and its options."""
    shared = {told(action) for action in actions(format_parser())}
    return list(entry(f"kubenpuctl {name}", *subcommands()[name], text, shared))


@cache
def subcommands() -> Mapping[str, tuple[argparse.ArgumentParser, str]]:
    """Those of kubenpuctl, by what is typed after it: the parser and its help."""
    return dict(_leaves("", make_kubenpuctl_parser()))


def _leaves(prefix: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, tuple[argparse.ArgumentParser, str]]]:
    for name, (below, text) in commands(parser).items():
        deeper = list(_leaves(f"{prefix}{name} ", below))
        yield from deeper or [(prefix + name, (below, text))]


def commands(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """The parsers right below one, with their help."""
    return {
        choice.dest: (action.choices[choice.dest], choice.help or "")
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }


@cache
def format_parser() -> argparse.ArgumentParser:
    """Has what every listing has."""
    parser = argparse.ArgumentParser(add_help=False)
    add_format_arguments(parser)
    return parser


def actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What can be given, without subcommands."""
    left_out = (argparse._HelpAction, argparse._SubParsersAction)
    return [a for a in parser._actions if not isinstance(a, left_out) and a.help != argparse.SUPPRESS]


def entry(
    name: str,
    parser: argparse.ArgumentParser,
    help_text: str,
    text: Iterable[str],
    shared: Container[tuple[str, ...]],
) -> Iterator[str]:
    """A command as an entry of a definition list; options in `shared` are told elsewhere."""
    own = [action for action in actions(parser) if action.option_strings]
    given = [operand(action) for action in actions(parser) if not action.option_strings]
    yield " ".join([f"**{name}**", *(["[*OPTION*]..."] if own else []), *given])
    description = parser.description or help_text
    untold = [action for action in own if told(action) not in shared]
    body = [sentence(description), "", *text, ""]
    yield from indented([*body, *_options(parser, untold)])
    yield ""


def told(action: argparse.Action) -> tuple[str, ...]:
    """What makes two options the same for a reader."""
    return (*action.option_strings, action.help or "")


def explain(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Its help, as argparse shows it."""
    return (action.help or "") % {**vars(action), "prog": parser.prog}


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    return _options(parser, (action for action in actions(parser) if action.option_strings))


def _options(parser: argparse.ArgumentParser, of: Iterable[argparse.Action]) -> Iterator[str]:
    for action in of:
        words = ", ".join(f"**{word}**{value(action, word)}" for word in action.option_strings)
        yield from definition(words, sentence(explain(action, parser)))


def value(action: argparse.Action, flag: str) -> str:
    """What follows a flag."""
    if action.nargs == 0:
        return ""
    name = f"*{metavar(action)}*"
    if not flag.startswith("--"):
        return f" {name}"
    return f"\\ [=\\ {name}]" if action.nargs == "?" else f"\\ =\\ {name}"


def operand(action: argparse.Action) -> str:
    match action.nargs:
        case "*":
            return f"[*{metavar(action)}*]..."
        case "?":
            return f"[*{metavar(action)}*]"
        case "+":
            return f"*{metavar(action)}*..."
    return f"*{metavar(action)}*"


def metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
