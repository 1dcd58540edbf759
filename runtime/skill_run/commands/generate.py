"""`skill-run generate`: from intent to a config that validates, with a reason for every number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS, InputError

if TYPE_CHECKING:
    from skill_run.recipe.generate import GeneratedRecipe

_FORMS: Final = ("script", "python", "yaml", "overrides", "json")
_INPUTS: Final = {
    "seq_length": "seq_length",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_pipeline",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "sp": "sequence_parallel",
    "cp_comm_type": "cp_comm_type",
    "recompute": "recompute",
    "peft": "peft",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "train_iters": "train_iters",
    "data": "data",
    "checkpoint": "pretrained_checkpoint",
    "save": "save",
}


@click.command()
@click.argument("workflow", required=False)
@click.option("--model", metavar="ID|DIR", help="Hugging Face id, or folder with config.json; picks the recipe.")
@click.option("--recipe", metavar="NAME", help="Recipe function to start from, instead of picking one.")
@click.option("--gpus", "-n", type=int, metavar="N", help="Number of GPUs.  [default: the recipe's]")
@click.option("--gpu", metavar="TYPE", help="GPU type, such as h100 or gb200.  [default: the recipe's, or h100]")
@click.option("--bridge", metavar="VERSION", help="Megatron-Bridge version, such as 0.6.2 or main.")
@click.option("--seq-length", type=int, metavar="N", help="Sequence length and width of a pack, in tokens.")
@click.option("--tp", metavar="N|choose", help="Tensor parallel size.")
@click.option("--pp", metavar="N|choose", help="Pipeline parallel size.")
@click.option("--vpp", metavar="N|choose", help="Virtual pipeline size.")
@click.option("--cp", metavar="N|choose", help="Context parallel size.")
@click.option("--ep", metavar="N|choose", help="Expert parallel size.")
@click.option("--etp", metavar="N|choose", help="Tensor parallel size inside experts.")
@click.option("--sp/--no-sp", default=None, help="Sequence parallelism.")
@click.option("--cp-comm-type", metavar="TYPE", help="How context parallel ranks exchange: p2p, all_gather, a2a.")
@click.option("--recompute", metavar="LEVEL", help="none, selective, full or choose.")
@click.option("--peft", metavar="KIND", help="Train adapters instead of all weights: none, lora or dora.")
@click.option("--micro-batch-size", type=int, metavar="N", help="Rows per forward pass and replica.")
@click.option("--global-batch-size", type=int, metavar="N", help="Rows per optimizer step.")
@click.option("--train-iters", type=int, metavar="N", help="Optimizer steps.")
@click.option("--data", metavar="DIR|ID", help="Where the data are.")
@click.option("--checkpoint", metavar="DIR", help="Checkpoint that the weights are read from.")
@click.option("--save", metavar="DIR", help="Folder that checkpoints are written to.")
@click.option("--set", "overrides", metavar="FIELD=VALUE", multiple=True, help="A further setting; repeatable.")
@click.option("--input", "named", metavar="NAME=VALUE", multiple=True, help="An input by its name; repeatable.")
@click.option("--form", type=click.Choice(_FORMS), default="script", show_default=True, help="What to write.")
@click.option("--output", "-o", metavar="FILE", help="Write to FILE instead of standard output.")
@click.option("--explain", is_flag=True, help="Put the reasons on top, as comments.")
@click.option("--describe", is_flag=True, help="Print the JSON Schema of the workflow's inputs.")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
def generate(workflow: str | None, **options: Any) -> int:
    """Write a training setup for WORKFLOW that our own rules have judged; without WORKFLOW, list them.

    Sizes that are not given are chosen to fit the GPUs' memory (with --model), or are the recipe's own (with --recipe).
    The reasons go to standard error. Exit code 1 when an error or corruption is left.
    """
    from skill_run import cli
    from skill_run.recipe.generate import describe_inputs, generate_recipe

    cli._refuse_empty(options, "model", "recipe", "gpu", "bridge", "output")
    if workflow is None:
        return _list(options)
    if options["describe"]:
        cli._emit(json.dumps(describe_inputs(workflow), indent=2), options["output"])
        return EXIT_CLEAN
    cli._check_output("-o", options["output"], {"model": options["model"]})
    found = generate_recipe(
        workflow,
        model=options["model"],
        recipe=options["recipe"],
        gpus=options["gpus"],
        gpu=options["gpu"],
        bridge=options["bridge"],
        inputs=_inputs(options),
        form=options["form"],
        overrides=options["overrides"],
    )
    _deliver(found, options)
    return EXIT_CLEAN if found.clean else EXIT_FINDINGS


def _inputs(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: options[option] for option, name in _INPUTS.items() if options[option] is not None}
    for text in options["named"]:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InputError(f"--input takes NAME=VALUE, not {text[:60]!r}")
        if given.get(name, value) != value:
            raise InputError(f"{name[:60]} is given twice")
        given[name] = value
    return given


def _list(options: dict[str, Any]) -> int:
    from skill_run import cli
    from skill_run.recipe.generate import list_workflows

    rows = list_workflows()
    if options["form_out"] == "json":
        cli._emit(json.dumps(rows, indent=2), options["output"])
        return EXIT_CLEAN
    width = max(len(row["id"]) for row in rows)
    lines = [f"{row['id']:<{width}}  {row['title']} ({row['releases']})" for row in rows]
    cli._emit("\n".join(lines), options["output"])
    return EXIT_CLEAN


def _deliver(found: GeneratedRecipe, options: dict[str, Any]) -> None:
    """Write the text, or with findings left only say them beside it; reasons go to standard error."""
    from skill_run import cli

    reasons = [f"{name}: {text}" for name, text in found.reasons]
    text = found.text.rstrip("\n")
    if options["form_out"] == "json":
        text = json.dumps(found.to_dict(), indent=2)
    elif options["explain"] and found.form != "json":
        text = "\n".join([*(f"# {line}" for line in reasons), text])
    cli._emit(text, options["output"])
    told = [] if options["explain"] or options["form_out"] == "json" else reasons
    told += [f"{finding.severity}: {finding.message} [{finding.rule}]" for finding in (*found.bad, *found.warnings)]
    if options["form_out"] == "text":
        told += [f"next: {line}" for line in found.next_commands]
    for line in told:
        click.echo(line, err=True)
