"""`skill-run launch`: show the plan of a run with every reason, and start it as a job when that is confirmed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS, InputError

if TYPE_CHECKING:
    from skill_run.jobs.model import Job, Plan
    from skill_run.launch.options import LaunchOptions
    from skill_run.launch.plan import Inputs

_FORMS: Final = ("yaml", "json", "python", "command", "sbatch")


@click.command()
@click.argument("inputs", metavar="[CONFIG] [OVERRIDE]...", nargs=-1)
@click.option("--recipe", metavar="NAME", help="Recipe function the config or the overrides are laid over.")
@click.option("--bridge", metavar="VERSION", help="Megatron-Bridge version of the training environment.")
@click.option("--dry-run", is_flag=True, help="Only show the plan (the default without --yes).")
@click.option("--yes", is_flag=True, help="Start the job that the plan describes.")
@click.option("--follow", is_flag=True, help="With --yes, show the job's figures until it ends.")
@click.option("--allow", metavar="RULE", multiple=True, help="Accept the findings of a rule; recorded; repeatable.")
@click.option(
    "--fix", is_flag=True, help="Set what the findings' fixes say, where that does not change what is trained."
)
@click.option("--engine", type=click.Choice(("local", "slurm")), default="local", show_default=True)
@click.option("--launcher", type=click.Choice(("torchrun", "srun", "fork")), help="What starts the ranks.")
@click.option("--cpu", is_flag=True, help="Run made small in the CPU worker (the default where there is no GPU).")
@click.option("--nodes", type=int, default=1, show_default=True, metavar="N", help="Number of nodes.")
@click.option("--gpus-per-node", "ranks_per_node", type=int, metavar="N", help="GPUs, and ranks, of a node.")
@click.option("--gpu", metavar="TYPE", help="Kind of GPU, such as h100 or b200.")
@click.option("--python", metavar="PATH", help="Interpreter of the training environment.")
@click.option("--name", metavar="TEXT", help="Name of the job (default: the recipe's or the config's).")
@click.option("--folder", metavar="DIR", help="Where the job's own folder is made (default: the state folder).")
@click.option("--container-image", metavar="IMAGE", help="Container of the ranks (Slurm with pyxis).")
@click.option("--container-mounts", metavar="A:B,...", help="Mounts of the container, beside the job's folder.")
@click.option("--account", metavar="NAME", help="Slurm account.")
@click.option("--partition", metavar="NAME", help="Slurm partition.")
@click.option("--gres", metavar="TEXT", help="Slurm resources instead of --gpus-per-node, such as gpu:8.")
@click.option("--time", metavar="LIMIT", help="Slurm time limit, such as 04:00:00.")
@click.option("--requeue", is_flag=True, help="Let Slurm start the job again, from its last checkpoint.")
@click.option(
    "--signal-seconds", type=int, default=120, show_default=True, metavar="S", help="Save a checkpoint so long before."
)
@click.option("--packed-data", metavar="DIR", help="Shared folder for packed data of Hugging Face datasets.")
@click.option("--resume", metavar="DIR", help="Checkpoint folder to go on from.")
@click.option("--from-scratch", is_flag=True, help="Random weights are meant.")
@click.option("--env", "environment", metavar="K=V", multiple=True, help="Environment variable; repeatable.")
@click.option("--capture", type=int, default=8, show_default=True, metavar="N", help="Micro-batches each rank dumps.")
@click.option("--model", metavar="DIR|ID", help="Hugging Face folder or config.json of the model, or a model id.")
@click.option("--data", metavar="DIR", help="On CPUs: folder with training.jsonl (default: made-up samples).")
@click.option("--tokenizer", metavar="DIR", help="On CPUs: folder with tokenizer.json (default: a stand-in).")
@click.option("--iters", type=int, default=20, show_default=True, metavar="N", help="On CPUs: training steps.")
@click.option("--pack", type=int, default=1024, show_default=True, metavar="N", help="On CPUs: longest pack in tokens.")
@click.option("--worker", metavar="NAME", help="On CPUs: worker to use (default: the best one).")
@click.option("--rules", metavar="DIR", help="Folder of house rules (default: .skill-run/rules near the config).")
@click.option("--form", type=click.Choice(_FORMS), help="What standard input holds, when it cannot be told.")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--verbose", "-v", is_flag=True, help="Show every setting of the plan.")
def launch(inputs: tuple[str, ...], **options: Any) -> int:
    """Show how a config would be run: commands, batch script, environment with reasons, ranks, checkpoints, cost.

    CONFIG and OVERRIDEs are as in validate, which is asked first: errors and corruption refuse. Nothing starts without
    --yes. Where there is no GPU, the same job runs made small in the CPU worker. Exit code 1 when the launch is
    refused, or when a followed job fails.
    """
    from skill_run.commands.progress import progress
    from skill_run.launch.plan import make_preview
    from skill_run.launch.refuse import RefusedLaunch

    if options["yes"] and options["dry_run"]:
        raise InputError("--dry-run shows the plan and --yes starts it; give one of them")
    if options["follow"] and not options["yes"]:
        raise InputError("--follow needs --yes: without it nothing starts")
    try:
        with progress(shown=sys.stderr is not None and sys.stderr.isatty()) as on_event:
            preview = make_preview(_inputs(inputs, options), _options(options), on_event=on_event)
    except RefusedLaunch as refused:
        from skill_run.report.text import render_text

        click.echo(render_text(refused.report, width=100), err=True)
        raise
    if not options["yes"]:
        _show(preview.plan, options)
        return EXIT_CLEAN
    return _start(preview.plan, options)


def _inputs(words: tuple[str, ...], options: dict[str, Any]) -> Inputs:
    from skill_run import cli
    from skill_run.launch.plan import Inputs
    from skill_run.rules.validate import read_sources

    source, overrides = cli._split_inputs(words)
    text = cli._read_stdin() if source == "-" else None
    form = options["form"]
    if text is not None and form is None:
        from skill_run.config.read import form_of_text

        form = form_of_text(text)
    path = Path(source) if text is None and source is not None and cli._is_there(source) else None
    sources = read_sources(
        path or (source if text is None else text),
        bridge=options["bridge"],
        recipe=options["recipe"],
        overrides=overrides,
        form=form if text is not None else None,
        folder=Path.cwd(),
    )
    return Inputs(sources, bridge=options["bridge"], recipe=options["recipe"], path=path, rules=options["rules"])


def _options(options: dict[str, Any]) -> LaunchOptions:
    from skill_run import cli
    from skill_run.launch.options import LaunchOptions

    same = (
        "engine", "launcher", "nodes", "ranks_per_node", "gpu", "python", "name", "folder", "container_image",
        "account", "partition", "gres", "time", "requeue", "signal_seconds", "packed_data", "resume", "from_scratch",
        "allow", "fix", "capture", "model", "data", "tokenizer", "iters", "pack", "worker",
    )  # fmt: skip
    mounts = options["container_mounts"]
    return LaunchOptions(
        **{name: options[name] for name in same},
        device="cpu" if options["cpu"] else None,
        container_mounts=tuple(mounts.split(",")) if mounts else (),
        env=cli._environment(options["environment"]) or {},
    )


def _show(plan: Plan, options: dict[str, Any]) -> None:
    from skill_run.launch.render import render_plan

    if options["form_out"] == "json":
        click.echo(json.dumps(plan.to_dict(), indent=2))
        return
    click.echo(render_plan(plan, verbose=options["verbose"]))
    click.echo("Nothing is started; --yes starts it.")


def _start(plan: Plan, options: dict[str, Any]) -> int:
    from skill_run.jobs.service import Jobs

    jobs = Jobs()
    jobs.create(plan)
    job = jobs.start(plan.id)
    if options["form_out"] == "text":
        _show_started(job)
    if options["follow"]:
        job = _follow(jobs, job, shown=options["form_out"] == "text")
    if options["form_out"] == "json":
        click.echo(json.dumps(job.to_dict(), indent=2))
    return EXIT_CLEAN if job.state in ("queued", "running", "succeeded") else EXIT_FINDINGS


def _show_started(job: Job) -> None:
    click.echo(f"{job.id} is {job.state}; its folder is {job.plan.folder}")
    click.echo(f"skill-run jobs watch {job.id} follows it; skill-run jobs stop {job.id} ends it")


def _step(figures: dict[str, Any]) -> str:
    from skill_run.jobs.metrics import padding_share

    share = padding_share(figures)
    padding = "" if share is None else f", padding {share:.1%}"
    rate = figures.get("tokens_per_second", 0)
    return f"step {figures['step']}: loss {figures.get('loss', float('nan')):.4f}, {rate:g} tokens/s{padding}"


def _follow(jobs: Any, job: Job, *, shown: bool) -> Job:
    """Wait for the end of a job and print each new step; an interrupt leaves the job running."""
    from skill_run.jobs.folder import METRICS
    from skill_run.jobs.metrics import metrics_series

    told = 0
    while True:
        job = jobs.wait(job.id, seconds=1.0)
        for figures in metrics_series(Path(job.plan.folder) / METRICS) if shown else ():
            if figures["step"] > told:
                told = figures["step"]
                click.echo(_step(figures))
        if job.state not in ("queued", "running"):
            if shown:
                click.echo(f"{job.id} {job.state}{f': {job.reason}' if job.reason else ''}")
            return job
