"""`leaseplane completion`: what a shell needs to complete commands, options and their values.

The scripts are made from the parsers by shtab. What it has no notion of is a command line within a
command line, `leaseplane run RESOURCE -- COMMAND…`; that is added here for each shell.
"""

import argparse
from collections.abc import Iterator
from typing import Final

from leaseplane.surfaces.cli.parser import Commands, add_command
from leaseplane.surfaces.cli.terminal import DONE, Terminal

SHELLS: Final = ("bash", "zsh", "fish")


def add_to(commands: Commands) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "completion",
        "Print the script that lets a shell complete this command line.",
        "It completes commands, options, their choices and files; what stands behind `run … --` is completed "
        "as the command that it is. In bash, put this into ~/.bashrc:\n\n"
        '    eval "$(leaseplane completion bash)"\n\n'
        "In zsh, put this into ~/.zshrc, behind compinit:\n\n"
        '    eval "$(leaseplane completion zsh)"\n\n'
        "In fish, print it where fish looks:\n\n"
        "    leaseplane completion fish > ~/.config/fish/completions/leaseplane.fish\n\n"
        "A shell starts faster where it finds the script in a file: `leaseplane` in "
        "~/.local/share/bash-completion/completions, or `_leaseplane` in a folder of zsh's fpath. Print it "
        "anew after an upgrade.",
        run=_print,
    )
    parser.add_argument("shell", choices=SHELLS, help="for which shell")


def _print(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.surfaces.cli.commands import build_parser

    terminal.say(completion_script(build_parser(), args.shell))
    return DONE


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for one of `SHELLS`, of the whole command line that `parser` reads.

    `parser` is made ready for it, and of no other use afterwards.
    """
    import shtab

    for action in _arguments(parser):
        metavar = str(action.metavar)
        if metavar in ("FILE", "DIR"):
            # How shtab is told of it; argparse passes over what it does not know.
            action.complete = shtab.FILE if metavar == "FILE" else shtab.DIRECTORY  # type: ignore[attr-defined]
        elif metavar.startswith("-- "):
            # Not for shtab, which would complete no options in front of the dashes.
            action.help = argparse.SUPPRESS
    script = shtab.complete(parser, shell, preamble=_ZSH if shell == "zsh" else "")
    return script + {"bash": _BASH, "zsh": "", "fish": _FISH}[shell]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _arguments(command)
        else:
            yield action


# -- what stands behind `run … --` --------------------------------------------------------------

# The first is of bash-completion, which knows other commands' completions; without it there are names of
# commands, and files. No `mapfile` and no `compopt` without a way around it: macOS has bash 3.2.
_BASH: Final = r"""

_leaseplane() {
  local at line
  if [[ ${COMP_WORDS[1]-} == run ]]; then
    for ((at = 2; at < COMP_CWORD; at++)); do
      [[ ${COMP_WORDS[at]} == -- ]] || continue
      ((at++))
      if declare -F _command_offset >/dev/null; then
        _command_offset "$at"
        return
      fi
      local kind=-f
      ((at == COMP_CWORD)) && kind=-c
      compopt -o filenames 2>/dev/null
      COMPREPLY=()
      while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        compgen "$kind" -- "${COMP_WORDS[COMP_CWORD]}")
      return
    done
  fi
  _shtab_leaseplane "$@"
}

complete -o bashdefault -F _leaseplane leaseplane"""

# Before the script registers `_shtab_leaseplane`, or calls it where it was found in fpath.
_ZSH: Final = r"""
functions[_leaseplane_words]=$functions[_shtab_leaseplane]
_shtab_leaseplane() {
  local -i dashes=${words[(i)--]}
  if [[ $words[2] == run ]] && (( dashes < CURRENT )); then
    shift $dashes words
    (( CURRENT -= dashes ))
    _normal
  else
    _leaseplane_words "$@"
  fi
}
"""

_FISH: Final = r"""
function __leaseplane_runs
  set -l words (commandline -opc)
  test "$words[2]" = run; and contains -- -- $words
end

function __leaseplane_program
  set -l words (commandline -opc)
  set -e words[1..(contains --index -- -- $words)]
  set -l line (string escape -- $words) (commandline -ct)
  complete -C "$line"
end

complete -c leaseplane -n __leaseplane_runs -x -a '(__leaseplane_program)'"""
