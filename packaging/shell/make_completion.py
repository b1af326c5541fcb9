# SPDX-License-Identifier: Apache-2.0
"""Shell completion, made from the parsers of the programs: one static file per program for bash, zsh and fish.

Pressing Tab starts no Python. Understands what our parsers have: options, choices, one level of subcommands. What is
completed for a value: its choices, also when only its metavar tells them (yes|no); file names where that is PATH or
FILE; else nothing. Needs only Python.

    PYTHONPATH=. python3 packaging/shell/make_completion.py DIRECTORY    # which becomes /usr/share
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubenpu.cli.main import make_parser as make_kubenpuctl_parser
from kubenpu.config.settings import make_daemon_parser
from kubenpu.service.clients import make_parser as make_clients_parser
from kubenpu.service.probe import make_parser as make_probe_parser


@dataclass(frozen=True, slots=True)
class Option:
    """`takes` a value after it: "" none, "file", "word", or the choices with a blank between them."""

    names: tuple[str, ...]
    help: str
    takes: str

    @property
    def choices(self) -> tuple[str, ...]:
        return () if self.takes in ("", "file", "word") else tuple(self.takes.split())


@dataclass(frozen=True, slots=True)
class Program:
    """A program or, in `commands`, one of its subcommands."""

    name: str
    help: str
    options: tuple[Option, ...]
    commands: tuple[Program, ...]


def read_program(parser: argparse.ArgumentParser, name: str = "", text: str = "") -> Program:
    options, commands = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {each.dest: each.help or "" for each in action._choices_actions}
            commands += [read_program(each, key, told.get(key, "")) for key, each in action.choices.items()]
        elif action.option_strings and action.help != argparse.SUPPRESS:
            options.append(Option(tuple(action.option_strings), _help_of(parser, action), _takes(action)))
        elif action.choices:
            commands += [Program(str(choice), "", (), ()) for choice in action.choices]
    return Program(name or parser.prog, text, tuple(options), tuple(commands))


def _help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The first sentence of what --help shows."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return re.split(r"[.;] ", " ".join(text.split()))[0]


def _takes(action: argparse.Action) -> str:
    metavar = str(action.metavar)
    if action.nargs in (0, "?"):
        return ""
    if action.choices:
        return " ".join(map(str, action.choices))
    if "|" in metavar:
        return metavar.replace("|", " ")
    return "file" if metavar in ("PATH", "FILE") else "word"


def main(share: Path) -> None:
    """The files of all programs, where the three shells look for them below /usr/share."""
    daemons = (make_daemon_parser(), make_probe_parser(), make_clients_parser())
    for program in map(read_program, (make_kubenpuctl_parser(), *daemons)):
        for path, render in (
            (share / "bash-completion/completions" / program.name, render_bash),
            (share / "zsh/vendor-completions" / f"_{program.name}", render_zsh),
            (share / "fish/vendor_completions.d" / f"{program.name}.fish", render_fish),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render(program))


# ---- bash ----


def render_bash(program: Program) -> str:
    """Needs nothing of bash-completion, whose versions differ. Bash makes a word of `=`, hence the look behind it."""
    function = "_" + re.sub(r"\W", "_", program.name)
    names = "|".join(command.name for command in program.commands) or "''"
    scopes = [program, *program.commands] if _has_options(program) else [program]
    values = [line for scope in scopes for line in _bash_values(scope, "" if scope is program else scope.name)]
    words = [_bash_words(scope, "" if scope is program else scope.name) for scope in scopes]
    return f"""\
# bash completion for {program.name}

{function}()
{{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command= word
    if [[ $cur == "=" ]]; then
        cur=
    elif [[ $prev == "=" && COMP_CWORD -gt 1 ]]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in
            {names}) command=$word; break ;;
        esac
    done
    COMPREPLY=()
    case $command:$prev in
{"".join(values)}    esac
    case $command in
{"".join(words)}    esac
}}
complete -F {function} {program.name}
"""


def _has_options(program: Program) -> bool:
    return any(command.options for command in program.commands)


def _bash_values(scope: Program, command: str) -> Iterator[str]:
    for option in scope.options:
        if option.takes:
            match = "|".join(f"{command}:{name}" for name in option.names)
            yield f"        {match}) {_bash_reply(option)}; return ;;\n"


def _bash_reply(option: Option) -> str:
    if option.choices:
        return f'mapfile -t COMPREPLY < <(compgen -W "{option.takes}" -- "$cur")'
    if option.takes == "file":
        return 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")'
    return ":"


def _bash_words(scope: Program, command: str) -> str:
    words = [name for option in scope.options for name in option.names] + [each.name for each in scope.commands]
    pattern = command or ("''" if _has_options(scope) else "*")
    return f'        {pattern}) mapfile -t COMPREPLY < <(compgen -W "{" ".join(words)}" -- "$cur") ;;\n'


# ---- zsh ----


def render_zsh(program: Program) -> str:
    if not program.commands:
        return f"#compdef {program.name}\n\n_arguments -s -S{_zsh_specs(program)}\n"
    described = " ".join(_zsh_quote(f"{_zsh_escape(c.name)}:{c.help}") for c in program.commands)
    cases = "".join(
        f"            {command.name}) _arguments -s -S{_zsh_specs(command, indent=16)} ;;\n"
        for command in program.commands
        if command.options
    )
    return f"""\
#compdef {program.name}

local curcontext=$curcontext context state state_descr line
typeset -A opt_args
local -a commands=({described})

_arguments -C -s -S{_zsh_specs(program)} \\
    '1: :->command' \\
    '*:: :->rest' && return 0
case $state in
    command) _describe command commands ;;
    rest)
        case $words[1] in
{cases}        esac ;;
esac
"""


def _zsh_specs(program: Program, indent: int = 4) -> str:
    return "".join(f" \\\n{' ' * indent}{spec}" for option in program.options for spec in _zsh_option(option))


def _zsh_option(option: Option) -> Iterator[str]:
    """One spec per spelling. A long option takes its value after = too."""
    action = f"({option.takes})" if option.choices else {"file": "_files", "word": " "}.get(option.takes, "")
    message = option.names[-1].lstrip("-")
    for name in option.names:
        equals = "=" if option.takes and name.startswith("--") else ""
        others = f"({' '.join(option.names)})" if len(option.names) > 1 else ""
        value = f":{message}:{action}" if option.takes else ""
        yield _zsh_quote(f"{others}{name}{equals}[{_zsh_escape(option.help)}]{value}")


def _zsh_escape(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# ---- fish ----


def render_fish(program: Program) -> str:
    lines = [f"# fish completion for {program.name}", "", f"complete -c {program.name} -f"]
    lines += _fish_options(program.name, program, "__fish_use_subcommand" if _has_options(program) else "")
    for command in program.commands:
        condition = "__fish_use_subcommand" if _has_options(program) else ""
        lines.append(_fish(program.name, condition, "-a", command.name, command.help))
        lines += _fish_options(program.name, command, f"__fish_seen_subcommand_from {command.name}")
    return "\n".join([*lines, ""])


def _fish_options(program: str, scope: Program, condition: str) -> Iterator[str]:
    for option in scope.options:
        words: list[str] = []
        for name in option.names:
            words += ("-l", name[2:]) if name.startswith("--") else ("-s", name[1:])
        words += {"": (), "file": ("-r", "-F"), "word": ("-x",)}.get(option.takes, ("-x", "-a", option.takes))
        yield _fish(program, condition, *words, option.help)


def _fish(program: str, condition: str, *words: str) -> str:
    *given, text = words
    when = ["-n", condition] if condition else []
    about = ["-d", text] if text else []
    return shlex.join(["complete", "-c", program, *when, *given, *about])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
