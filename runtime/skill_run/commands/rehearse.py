"""`skill-run rehearse`: the user's own config and data through the real training loop, made small, without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS

_FORMS: Final = ("yaml", "json", "python", "command", "sbatch")


@click.command()
@click.argument("inputs", metavar="[CONFIG] [OVERRIDE]...", nargs=-1)
@click.option("--recipe", metavar="NAME", help="Recipe function the config or the overrides are laid over.")
@click.option("--data", metavar="DIR", help="Folder with training.jsonl (default: the config's, else made-up samples).")
@click.option("--tokenizer", metavar="DIR", help="Folder with tokenizer.json (default: the config's, else a stand-in).")
@click.option("--model", metavar="DIR", help="Folder with config.json of the model that the recipe starts from.")
@click.option("--iters", type=int, default=5, show_default=True, metavar="N", help="Training steps.")
@click.option("--pack", type=int, default=1024, show_default=True, metavar="N", help="Longest pack, in tokens.")
@click.option("--world-size", "-n", type=int, metavar="N", help="Number of ranks (GPUs) of the real run.")
@click.option("--rules", metavar="DIR", help="Folder of house rules (default: .skill-run/rules near the config).")
@click.option("--form", type=click.Choice(_FORMS), help="What standard input holds, when it cannot be told.")
@click.option("--worker", metavar="NAME", help="Worker to use (default: the best one; skill-run worker list).")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--output", "-o", metavar="FILE", help="Write the report to FILE instead of standard output.")
@click.option("--verbose", "-v", is_flag=True, help="List every field that was changed, with the reason.")
def rehearse(inputs: tuple[str, ...], **options: Any) -> int:
    """Run a config and data, made small, through the real Megatron-Bridge loop on this machine's CPU.

    Builds the config, calls the real validate(), packs the data, trains with context parallelism, saves a checkpoint
    and resumes from it. CONFIG and OVERRIDEs are as in validate. Exit code 1 when a stage fails, or when a finding of
    the rules or of the captured batch breaks or corrupts a run.
    """
    from skill_run import cli
    from skill_run.commands.progress import progress
    from skill_run.rehearse.report import render_rehearsal
    from skill_run.rehearse.run import rehearse_sources
    from skill_run.rules.validate import read_sources

    cli._refuse_empty(options, "recipe", "data", "tokenizer", "model", "rules", "worker", "output")
    source, overrides = cli._split_inputs(inputs)
    named = {name: options[name] for name in ("data", "tokenizer", "model")}
    cli._check_output("-o", options["output"], {"config": source, **named})
    text = cli._read_stdin() if source == "-" else None
    form = options["form"]
    if text is not None and form is None:
        from skill_run.config.read import form_of_text

        form = form_of_text(text)
    path = Path(source) if text is None and source is not None and cli._is_there(source) else None
    sources = read_sources(
        path or (source if text is None else text),
        recipe=options["recipe"],
        overrides=overrides,
        form=form if text is not None else None,
        folder=Path.cwd(),
    )
    names = ("recipe", "data", "tokenizer", "model", "iters", "pack", "world_size", "rules", "worker")
    settings = {name: options[name] for name in names}
    with progress(shown=sys.stderr is not None and sys.stderr.isatty()) as on_event:
        report = rehearse_sources(sources, on_event=on_event, **settings)
    if options["form_out"] == "json":
        told = json.dumps(report.to_dict(), indent=2)
    else:
        told = render_rehearsal(report, verbose=options["verbose"])
    cli._emit(told, options["output"])
    return EXIT_CLEAN if report.passed else EXIT_FINDINGS
