"""`python -m apss_jax.cli.completion`: prints what a shell needs to complete our command lines.

For bash: `eval "$(python -m apss_jax.cli.completion)"`; zsh first runs `autoload bashcompinit` and
`bashcompinit`. What `python` itself takes is completed as before, by file names.
"""

from __future__ import annotations

import sys
from typing import Final

import typer

from apss_jax.cli import calibrate, estimate, search, train, trial, validate
from apss_jax.cli.exports import FORMATS

APPS: Final = tuple(module.app for module in (search, estimate, validate, calibrate, train, trial))
PROGRAMS: Final = "python python3 .venv/bin/python"
SCRIPT: Final = """\
_apss_jax() {{
  local here="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local module="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ "${{COMP_WORDS[i]}}" == -m ]]; then module="${{COMP_WORDS[i+1]}}"; break; fi
  done
  COMPREPLY=()
  if [[ "$before" == -m ]]; then
    COMPREPLY=($(compgen -W "{modules}" -- "$here")); return
  fi
  case "$module" in
{flags}
    *) return ;;
  esac
  case "$before" in
{values}
    --*) [[ "$here" == --* ]] || return ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$here"))
}}
complete -o bashdefault -o default -F _apss_jax {programs}
"""


def completion_script() -> str:
    """Returns a function of bash that knows every flag, and the values that have names."""
    flags = [f'    {app.info.name.split()[-1]}) words="{" ".join(_flags(app))}" ;;' for app in APPS]
    values = [f'    {flag}) words="{" ".join(names)}" ;;' for flag, names in _values().items()]
    return SCRIPT.format(
        modules=" ".join(app.info.name.split()[-1] for app in APPS),
        flags="\n".join(flags),
        values="\n".join(values),
        programs=PROGRAMS,
    )


def _flags(app: typer.Typer) -> list[str]:
    options = typer.main.get_command(app).params
    return [flag for option in options for flag in (*option.opts, *option.secondary_opts)]


def _values() -> dict[str, tuple[str, ...]]:
    from apss_jax.importers.clusters import list_clusters, list_stacks
    from apss_jax.importers.load import list_models

    return {
        "--model": tuple(list_models()),
        "--cluster": tuple(list_clusters()),
        "--stack": tuple(list_stacks()),
        "--solver": search.SOLVERS,
        "--export": FORMATS,
    }


def main() -> None:
    """Prints the script."""
    sys.stdout.write(completion_script())


if __name__ == "__main__":
    main()
