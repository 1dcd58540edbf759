"""`skill-run plan`: which pack size for these data, and how much context parallelism."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS

_KINDS: Final = ("text", "tokens", "packed", "lengths", "histogram")
_COMMS: Final = ("p2p", "all_gather", "a2a", "a2a+p2p")
_PEFT: Final = ("lora", "dora", "canonical_lora")


@click.command()
@click.argument("source", metavar="DATA|LENGTHS")
@click.option("--kind", type=click.Choice(_KINDS), help="What DATA is, when its content does not tell.")
@click.option("--tokenizer", metavar="DIR", help="Local tokenizer, for JSONL with text.")
@click.option("--chat/--no-chat", default=None, help="Samples are conversations (default: told from the data).")
@click.option("--prompt-column", metavar="NAME", help="Column of the prompt in text data.  [default: input]")
@click.option("--completion-column", metavar="NAME", help="Column of the answer in text data.  [default: output]")
@click.option("--prompt-template", metavar="TEXT", help="Upstream's prompt_template, such as '{input} {output}'.")
@click.option("--pack-size", "pack_sizes", type=int, multiple=True, metavar="N", help="Size to compare; repeatable.")
@click.option("--bridge", metavar="VERSION", help="Megatron-Bridge version, such as 0.6.2 or main.")
@click.option("--model", metavar="DIR|ID", help="Folder with config.json, that file, or a model id.")
@click.option("--recipe", metavar="NAME", help="Recipe function that the run starts from.")
@click.option("--config", metavar="FILE", help="The run's config, in any form that validate reads.")
@click.option("--gpus", "-n", type=int, metavar="N", help="Number of GPUs of the run.")
@click.option("--gpu", metavar="TYPE", help="GPU type, such as h100 or gb200.  [default: the recipe's, or h100]")
@click.option("--tp", type=int, metavar="N", help="Fix the tensor parallel size.")
@click.option("--pp", type=int, metavar="N", help="Fix the pipeline parallel size.")
@click.option("--cp", type=int, metavar="N", help="Fix the context parallel size.")
@click.option("--ep", type=int, metavar="N", help="Fix the expert parallel size.")
@click.option("--sp/--no-sp", default=None, help="Fix sequence parallelism.")
@click.option("--cp-comm-type", type=click.Choice(_COMMS), help="Fix how context parallel ranks exchange.")
@click.option("--dp", type=int, metavar="N", help="Data parallel size, where --gpus is not given.")
@click.option("--peft", type=click.Choice(_PEFT), help="Train adapters instead of all weights.")
@click.option("--recompute", type=click.Choice(("none", "selective", "full")), help="Fix the level of recompute.")
@click.option("--seq-length", type=int, metavar="N", help="Longest sample, in tokens (default: the pack size).")
@click.option("--max-sequences", type=int, metavar="N", help="Most samples in a pack, for CUDA graphs.")
@click.option("--pad-seq-to-mult", type=int, metavar="N", help="Alignment (default: what CP, TP and SP need).")
@click.option("--global-batch-size", type=int, metavar="N", help="Packs of a step; other sizes get as many tokens.")
@click.option("--tokens-per-step", type=int, metavar="N", help="The same in tokens.")
@click.option("--skip-bad", is_flag=True, help="Leave out broken lines of JSONL instead of stopping.")
@click.option("--workers", type=int, default=1, show_default=True, metavar="N", help="Processes that tokenise.")
@click.option("--figure", "figures", metavar="FILE", multiple=True, help="Draw lengths and traffic as .png or .svg.")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--output", "-o", metavar="FILE", help="Write the plan to FILE instead of standard output.")
@click.option("--verbose", "-v", is_flag=True, help="Give the reason of every parallel size, and the limits.")
def plan(source: str, **options: Any) -> int:
    """Compare pack sizes for your data and recommend one, with the context parallelism that pays.

    DATA is JSONL (with --tokenizer), token lists as JSONL or Parquet, packed files, a file of lengths (one a line, JSON
    or .npy), a histogram (`length,count` lines or {"400": 17}), or `-` for standard input. Exit code 1 when no pack
    size can be recommended.
    """
    from skill_run import cli
    from skill_run.commands.progress import progress
    from skill_run.plan.plan import plan_packing
    from skill_run.report.plan import render_plan

    cli._refuse_empty(options, "tokenizer", "model", "recipe", "config", "output", "bridge", "gpu")
    figures = options.pop("figures")
    written = {name: options.pop(name) for name in ("form_out", "output", "verbose")}
    read = {"data": source, "config": options["config"], "model": options["model"], "tokenizer": options["tokenizer"]}
    cli._check_output("-o", written["output"], read)
    for figure in figures:
        cli._check_output("--figure", figure, read)
    columns = {name: options.pop(name) for name in ("prompt_column", "completion_column", "prompt_template")}
    given = {name: value for name, value in columns.items() if value is not None}
    with progress(shown=sys.stderr is not None and sys.stderr.isatty()) as on_progress:
        found = plan_packing(source, data_options=given, on_progress=on_progress, **options)
    for figure in figures:
        from skill_run.plan.figures import save_figure

        save_figure(found, Path(figure))
    if written["form_out"] == "json":
        told = json.dumps(found.to_dict(), indent=2)
    else:
        told = render_plan(found, verbose=written["verbose"])
    cli._emit(told, written["output"])
    return EXIT_CLEAN if found.recommendation.candidate is not None else EXIT_FINDINGS
