"""`skill-run verify`: prove this installation, and packed training with context parallelism on the real Megatron."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS, InputError, MissingError

if TYPE_CHECKING:
    from skill_run.verify.run import CheckResult

_DTYPES: Final = ("float64", "float32", "bfloat16")
_COMM_TYPES: Final = ("all_gather", "p2p", "a2a", "a2a+p2p")
# Options that have a meaning for parity only.
_PARITY_OPTIONS: Final = (
    "config", "recipe", "data", "cp", "tp", "pp", "vpp", "ep", "dp", "sp", "comm_types", "dtype", "steps", "seed",
    "model", "bridge", "device",
)  # fmt: skip


@click.command()
@click.option("--parity", is_flag=True, help="Only compare packed with unpacked training, and show every figure.")
@click.option("--no-parity", is_flag=True, help="Leave the comparison out; needs no worker.")
@click.option(
    "--config", metavar="FILE", help="Take the model's shape and the parallel sizes from a config, made small."
)
@click.option("--recipe", metavar="NAME", help="Recipe function the config is laid over, or instead of a config.")
@click.option("--model", metavar="DIR", help="Hugging Face folder or config.json for the model's shape.")
@click.option("--data", metavar="PACKED", help="Packed dataset, or JSON list or histogram, to take lengths from.")
@click.option("--cp", type=int, metavar="N", help="Context parallel size (default: the config's, else 2).")
@click.option("--tp", type=int, metavar="N", help="Tensor parallel size.")
@click.option("--sp/--no-sp", default=None, help="Sequence parallelism.")
@click.option("--pp", type=int, metavar="N", help="Pipeline parallel size.")
@click.option("--vpp", type=int, metavar="N", help="Virtual pipeline parallel size.")
@click.option("--ep", type=int, metavar="N", help="Expert parallel size.")
@click.option("--dp", type=int, metavar="N", help="Data parallel size.")
@click.option(
    "--comm", "comm_types", type=click.Choice(_COMM_TYPES), multiple=True, help="cp_comm_type to try; repeatable."
)
@click.option(
    "--dtype", type=click.Choice(_DTYPES), help="Precision of the comparison (default: float64; on a GPU bfloat16)."
)
@click.option("--steps", type=int, metavar="K", help="Optimizer steps to compare (default: 2).")
@click.option("--seed", type=int, metavar="N", help="Seed of the samples.")
@click.option(
    "--bridge", metavar="VERSION", help="Run the training loop of this Megatron-Bridge release, such as 0.4.2."
)
@click.option("--device", type=click.Choice(("cpu", "cuda")), help="Where to run (default: cpu).")
@click.option("--job", metavar="ID", help="Check what the run of a job left behind: batches, alignment, tokens, loss.")
@click.option("--worker", metavar="NAME", help="Worker to use (default: the best one; skill-run worker list).")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--output", "-o", metavar="FILE", help="Write the report to FILE as well.")
def verify(**options: Any) -> int:
    """Prove that this installation works, and that packed training with context parallelism is right.

    Without options: cards, rules and their examples, recorded outcomes, one real config, and, when a worker is set up,
    the comparison of packed with unpacked training. Options of the comparison run it alone.
    """
    from skill_run.cli import _check_output, _refuse_empty

    _refuse_empty(options, "config", "recipe", "model", "data", "bridge", "job", "worker", "output")
    _check_output("-o", options["output"], {name: options[name] for name in ("config", "model", "data")})
    if options["job"] is not None:
        return _evidence(options)
    asked = [name for name in _PARITY_OPTIONS if options[name] not in (None, ())]
    if options["parity"] or asked:
        if options["no_parity"]:
            raise InputError(f"--no-parity leaves out what {_option(asked[0]) if asked else '--parity'} asks for")
        if options["bridge"] is not None:
            return _release_parity(options, [name for name in asked if name != "bridge"])
        return _parity(options)
    return _checks(options)


def _parity(options: dict[str, Any]) -> int:
    from skill_run.report.parity import render_parity
    from skill_run.verify.parity import ParityOptions, prove_parity

    given = {name: options[name] for name in (*_PARITY_OPTIONS, "worker") if options[name] is not None}
    given.pop("bridge", None)
    with _progress(options) as on_event:
        report = prove_parity(ParityOptions(**given), on_event=on_event)
    text = json.dumps(report.to_dict(), indent=2) if options["form_out"] == "json" else render_parity(report)
    _emit(text, options["output"])
    return EXIT_CLEAN if report.passed else EXIT_FINDINGS


def _release_parity(options: dict[str, Any], others: list[str]) -> int:
    from skill_run.report.release_parity import render_release_parity
    from skill_run.worker.environments import find_worker
    from skill_run.worker.releases import run_release_parity

    if others:
        raise InputError(f"--bridge runs a fixed set of layouts; it does not go with {_option(others[0])}")
    worker = find_worker(options["worker"], bridge=True)
    with _progress(options) as on_event:
        report = run_release_parity(options["bridge"], on_event=on_event, worker=worker)
    text = json.dumps(report, indent=2) if options["form_out"] == "json" else render_release_parity(report)
    _emit(text, options["output"])
    return EXIT_CLEAN if report["passed"] else EXIT_FINDINGS


def _evidence(options: dict[str, Any]) -> int:
    from skill_run.verify.evidence import verify_job

    names = (*_PARITY_OPTIONS, "parity", "no_parity", "worker")
    others = [name for name in names if options[name] not in (None, (), False)]
    if others:
        raise InputError(f"--job checks what a run left behind; it does not go with {_option(others[0])}")
    return _told(verify_job(options["job"]), options)


def _checks(options: dict[str, Any]) -> int:
    from skill_run.verify.run import run_checks
    from skill_run.worker.environments import find_worker

    if options["no_parity"] and options["worker"] is not None:
        raise InputError("--no-parity leaves out what --worker names a worker for")
    if not options["no_parity"]:
        # A name that is none is told before the checks have taken their time; without any worker parity is skipped.
        with contextlib.suppress(MissingError):
            find_worker(options["worker"])
    with _progress(options) as on_event:
        return _told(run_checks(parity=not options["no_parity"], worker=options["worker"], on_event=on_event), options)


def _told(checks: Iterable[CheckResult], options: dict[str, Any]) -> int:
    """Show each result as it is known, then the verdict; return the exit code."""
    results = []
    for result in checks:
        results.append(result)
        if options["form_out"] == "text":
            click.echo(f"{result.mark} {result.name}: {result.detail} ({result.seconds:.1f} s)")
    passed = all(result.passed for result in results)
    verdict = ("verified" if passed else "not verified") + (
        ", except what was skipped" if any(result.skipped for result in results) else ""
    )
    told = json.dumps({"passed": passed, "checks": [result.to_dict() for result in results]}, indent=2)
    if options["form_out"] == "json":
        click.echo(told)
    else:
        click.echo(verdict)
    if options["output"] is not None:
        _write(options["output"], told)
    return EXIT_CLEAN if passed else EXIT_FINDINGS


def _option(name: str) -> str:
    return "--comm" if name == "comm_types" else f"--{name.replace('_', '-')}"


def _progress(options: dict[str, Any]) -> Any:
    from skill_run.commands.progress import progress

    return progress(shown=sys.stderr is not None and sys.stderr.isatty())


def _emit(text: str, output: str | None) -> None:
    click.echo(text)
    if output is not None:
        _write(output, text)


def _write(output: str, text: str) -> None:
    from skill_run.cli import write_file

    write_file(Path(output), text + "\n")
