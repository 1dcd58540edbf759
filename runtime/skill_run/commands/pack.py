"""`skill-run pack`: the packed files that training reads, made before GPUs wait for them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from skill_run.errors import EXIT_CLEAN, InputError


@click.command()
@click.argument("data", metavar="DATA")
@click.option("--out", metavar="DIR", required=True, help="Dataset root; the files go where training looks below it.")
@click.option("--pack-size", type=int, required=True, metavar="N", help="Tokens of a pack (packed_sequence_size).")
@click.option("--bridge", metavar="VERSION", help="Release that will read the files (default: the newest).")
@click.option("--seq-length", type=int, metavar="N", help="Longest sample (default: the pack size).")
@click.option("--pad-seq-to-mult", type=int, metavar="N", help="Multiple of each sample (default: from CP, TP, SP).")
@click.option("--cp", type=int, default=1, show_default=True, metavar="N", help="Context parallel size of the run.")
@click.option("--tp", type=int, default=1, show_default=True, metavar="N", help="Tensor parallel size of the run.")
@click.option("--sp/--no-sp", default=False, help="Sequence parallelism in the run.")
@click.option("--tokenizer", metavar="DIR", help="Local tokenizer, for text.")
@click.option("--tokenizer-name", metavar="NAME", help="The model's name as the config has it; part of the folder.")
@click.option("--kind", type=click.Choice(("auto", "prompt-completion", "chat", "tokens")), default="auto")
@click.option("--prompt-column", metavar="NAME", help="Column of the prompt (default: input).")
@click.option("--completion-column", metavar="NAME", help="Column of the answer (default: output).")
@click.option("--prompt-template", metavar="TEXT", help="Upstream's prompt_template, such as '{input} {output}'.")
@click.option("--eos-id", type=int, metavar="N", help="End-of-text token of data that hold token ids.")
@click.option(
    "--dataset-kwargs", metavar="JSON", help='The config\'s dataset_kwargs (default: {"pad_to_max_length": true}).'
)
@click.option(
    "--algorithm",
    type=click.Choice(("histogram", "first_fit_decreasing", "first_fit_shuffle")),
    help="How packs are chosen (default: histogram; with --compat first_fit_shuffle).",
)
@click.option("--compat", is_flag=True, help="Make exactly the rows that the release itself makes for the seed.")
@click.option("--max-sequences", type=int, metavar="N", help="Most samples in a pack.")
@click.option("--balance", is_flag=True, help="Even out the attention work of packs.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="dataset.seed of the config.")
@click.option("--workers", type=int, default=1, show_default=True, metavar="N", help="Processes that tokenise.")
@click.option("--skip-bad", is_flag=True, help="Leave out lines that cannot be read, and list them.")
@click.option(
    "--refuse",
    type=click.Choice(("truncated", "dropped", "masked")),
    multiple=True,
    help="Stop, with nothing written, when a sample is cut, left out or has nothing to train on; repeatable.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that was made from other data or settings.")
@click.option("--keep-tokens", is_flag=True, help="Keep the tokens, so that another pack size needs no tokenising.")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--output", "-o", metavar="FILE", help="Write the report to FILE instead of standard output.")
def pack(data: str, **options: Any) -> int:
    """Pack DATA into the files that Megatron-Bridge's training reads, before the run.

    DATA is JSONL or Parquet (text, chats or token ids), or a folder with training.jsonl and perhaps validation.jsonl.
    What is cut, left out or has nothing to train on is counted and listed. A second call makes nothing; one after an
    interruption goes on.
    """
    from skill_run import cli
    from skill_run.pack.build import build_packs
    from skill_run.pack.build.report import render_packing

    cli._refuse_empty(options, "out", "tokenizer", "tokenizer_name", "bridge", "output")
    cli._check_output("-o", options["output"], {"data": data, "tokenizer": options["tokenizer"]})
    form_out, output = options.pop("form_out"), options.pop("output")
    reading = ("kind", "prompt_column", "completion_column", "prompt_template", "eos_id")
    sample_options = {name: value for name in reading if (value := options.pop(name)) is not None}
    kwargs = _kwargs(options.pop("dataset_kwargs"))
    with _progress() as on_progress:
        report = build_packs(
            data, dataset_kwargs=kwargs, sample_options=sample_options, on_progress=on_progress, **options
        )
    cli._emit(json.dumps(report.to_dict(), indent=2) if form_out == "json" else render_packing(report), output)
    return EXIT_CLEAN


def _kwargs(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError("--dataset-kwargs must be a JSON object") from error
    if not isinstance(found, dict):
        raise InputError("--dataset-kwargs must be a JSON object")
    return found


@contextmanager
def _progress() -> Iterator[Any]:
    from skill_run.commands.progress import progress

    with progress(shown=sys.stderr is not None and sys.stderr.isatty()) as on_event:
        yield on_event
