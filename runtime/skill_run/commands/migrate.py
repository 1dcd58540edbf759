"""`skill-run migrate`: a config of one Megatron-Bridge release as one of another, in its own form."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS, InputError

if TYPE_CHECKING:
    from skill_run.recipe.migrate import Migration

_FORMS: Final = ("yaml", "json", "python", "command", "sbatch")
_BOM: Final = b"\xef\xbb\xbf"


@click.command()
@click.argument("inputs", metavar="CONFIG|OVERRIDE...", nargs=-1, required=True)
@click.option("--to", required=True, metavar="VERSION", help="Release the result is for, such as 0.6.2 or main.")
@click.option("--from", "bridge", metavar="VERSION", help="Release the input is for (default: told by the input).")
@click.option("--recipe", metavar="NAME", help="Recipe function that the config or the overrides are laid over.")
@click.option("--pin-recipe", is_flag=True, help="Also write down recipe defaults that changed between the releases.")
@click.option("--form", type=click.Choice(_FORMS), help="What standard input holds, when it cannot be told.")
@click.option("--diff", is_flag=True, help="Print a unified diff instead of the result.")
@click.option("--write", is_flag=True, help="Write the result into the file.")
@click.option("--output", "-o", metavar="FILE", help="Write the result to FILE.")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
def migrate(inputs: tuple[str, ...], **options: Any) -> int:
    """Move a config to another Megatron-Bridge release, keeping its form, comments and layout.

    CONFIG is a YAML, JSON or Python file, an sbatch script, a whole launch command in quotes (or after `--`), or `-`
    for standard input; or give OVERRIDEs such as `section.field=value`. The result goes to standard output, what was
    changed and what is left to do by hand to standard error. Exit code 1 when something needs a hand.
    """
    from skill_run import cli
    from skill_run.recipe.migrate import migrate_config

    cli._refuse_empty(options, "to", "recipe", "output")
    source, overrides = cli._split_inputs(inputs)
    if source is not None and overrides:
        raise InputError("give either a config or overrides; overrides of a launch are migrated in its command line")
    if options["write"]:
        _check_write(source, options)
    else:
        cli._check_output("-o", options["output"], {"config": source})
    text = cli._read_stdin() if source == "-" else None
    form = options["form"]
    if text is not None and form is None:
        from skill_run.config.read import form_of_text

        form = form_of_text(text)
    path = Path(source) if text is None and source is not None and cli._is_there(source) else None
    migration = migrate_config(
        path or (source if text is None else text),
        to=options["to"],
        bridge=options["bridge"],
        form=form if text is not None else None,
        recipe=options["recipe"],
        overrides=overrides,
        pin_recipe=options["pin_recipe"],
    )
    before = _before(path, text, source, overrides)
    _deliver(migration, before, path, options)
    return EXIT_CLEAN if migration.clean else EXIT_FINDINGS


def _before(path: Path | None, text: str | None, source: str | None, overrides: list[str]) -> str:
    """Return the input as text, to be compared with the result."""
    if path is not None:
        return path.read_bytes().decode("utf-8-sig")
    return text or source or "".join(token + "\n" for token in overrides)


def _check_write(source: str | None, options: dict[str, Any]) -> None:
    if options["output"] is not None:
        raise InputError("--write and -o both say where the result goes; give one of them")
    if source is None or not Path(source).is_file():
        raise InputError("--write needs a config file, which the result is written into")
    mode = Path(source).stat().st_mode
    if not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(source, os.W_OK):
        raise InputError(f"{source} is read-only; write the result elsewhere with -o FILE")


def _deliver(migration: Migration, before: str, path: Path | None, options: dict[str, Any]) -> None:
    """Write or print the result; the list of changes goes to standard error."""
    from skill_run.recipe.migrate.render import render_diff, render_migration

    assert isinstance(migration.text, str)
    target = path if options["write"] else Path(options["output"]) if options["output"] else None
    if target is not None and (migration.text != before or target != path):
        _write(target, migration.text, path)
    if options["form_out"] == "json":
        click.echo(json.dumps(migration.to_dict(), indent=2))
        return
    if options["diff"]:
        told = render_diff(before, migration)
        if told:
            click.echo(told.encode(errors="surrogateescape"))
    elif target is None:
        # As bytes: the config keeps its characters whatever the terminal's encoding is.
        click.echo(migration.text.encode("utf-8", "surrogateescape"), nl=not migration.text.endswith("\n"))
    click.echo(render_migration(migration), err=True)


def _write(target: Path, text: str, origin: Path | None) -> None:
    """Write the result, with the byte order mark that the input had."""
    from skill_run.cli import write_file

    marked = origin is not None and origin.read_bytes().startswith(_BOM)
    write_file(target, ("\ufeff" if marked else "") + text)
