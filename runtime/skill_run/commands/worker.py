"""`skill-run worker`: set up, list, check and remove the environments that real Megatron code runs in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS, InputError

if TYPE_CHECKING:
    from skill_run.worker.environments import Worker

_FORMAT = click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
# Options that have a meaning only when an environment is built.
_BUILD_OPTIONS = ("kind", "build", "find_links", "index_url", "extra_index_urls", "no_index")


@click.group()
def worker() -> None:
    """Set up, list, check and remove workers: environments with torch and Megatron, which the tool never imports."""


@worker.command("setup")
@click.argument("kind", metavar="[KIND]", required=False)
@click.option("--name", metavar="NAME", help="Name of the worker (default: its kind, `local` or `container`).")
@click.option("--python", metavar="PATH", help="Register the environment of this interpreter instead of building one.")
@click.option(
    "--command",
    metavar="WORDS",
    help="Register a container: the words that start its Python, such as 'docker run --rm -i IMAGE python'.",
)
@click.option(
    "--torch",
    "build",
    type=click.Choice(("auto", "cpu", "cuda-build")),
    help="Build of torch; auto takes the CPU-only one where an index has it, else the one for GPUs, several GB.",
)
@click.option("--find-links", metavar="DIR|URL", multiple=True, help="Folder or page with package files; repeatable.")
@click.option("--index-url", metavar="URL", help="Package index instead of the one that pip is set up for.")
@click.option("--extra-index-url", "extra_index_urls", metavar="URL", multiple=True, help="Another index; repeatable.")
@click.option("--no-index", is_flag=True, help="Ask no index, only --find-links.")
@_FORMAT
def setup(**options: Any) -> int:
    """Build a worker from its pinned, hashed lock, or register an environment that is there.

    KIND is core-0.16.1 (the default: quick, proves parity) or cpu-0.6.2 (Megatron-Bridge's own loop too). A set-up that
    was cut goes on where it stopped.
    """
    # An empty word is what a variable without a value leaves, and no wish for a download.
    named = [options[name] for name in ("python", "command") if options[name] is not None]
    if len(named) > 1:
        raise InputError("--python and --command each name an environment; give one of them")
    given = [name for name in _BUILD_OPTIONS if options[name]]
    if named and given:
        raise InputError(f"with --python or --command nothing is built, so {_option(given[0])} has no meaning")
    made = _register(options) if named else _build(options)
    if options["form_out"] == "json":
        click.echo(json.dumps(made.to_dict(), indent=2))
    else:
        click.echo(f"worker {made.name} is ready: {_versions(made)}")
    return EXIT_CLEAN


@worker.command("list")
@_FORMAT
def show(form_out: str) -> int:
    """List the workers that are ready, and those that can be built."""
    from skill_run.worker.environments import list_workers, workers_folder
    from skill_run.worker.kinds import list_kinds

    ready = list_workers()
    kinds = list_kinds()
    if form_out == "json":
        found = {
            "folder": str(workers_folder()),
            "workers": [each.to_dict() for each in ready],
            "kinds": [kind.to_dict() for kind in kinds.values()],
        }
        click.echo(json.dumps(found, indent=2))
        return EXIT_CLEAN
    from skill_run.report.safe import printable

    for each in ready:
        origin = "built here" if each.built else f"registered: {' '.join(each.command)}"
        click.echo(printable(f"{each.name}: {_versions(each)} ({origin})"))
    if not ready:
        click.echo("no worker is ready")
    names = {each.name for each in ready}
    for kind in kinds.values():
        if kind.name not in names:
            lock = next(iter(kind.locks.values()))
            size = f"{lock.download_mb} MB to download, {lock.disk_mb} MB on disk"
            click.echo(f"available: {kind.name}, {kind.purpose} ({size}): skill-run worker setup {kind.name}")
    return EXIT_CLEAN


@worker.command("check")
@click.argument("name", required=False)
@_FORMAT
def check(name: str | None, form_out: str) -> int:
    """Say what a worker has, what it can do here and what to repair; without NAME every worker.

    Exit code 1 when something must be repaired.
    """
    from skill_run.errors import MissingError
    from skill_run.report.worker import render_worker
    from skill_run.worker.check import check_worker
    from skill_run.worker.environments import find_worker, list_workers

    workers = [find_worker(name)] if name is not None else list_workers()
    if not workers:
        raise MissingError("no worker is set up; skill-run worker setup makes one")
    reports = [check_worker(each) for each in workers]
    if form_out == "json":
        click.echo(json.dumps([report.to_dict() for report in reports], indent=2))
    else:
        click.echo("\n\n".join(render_worker(report) for report in reports))
    return EXIT_FINDINGS if any(report.broken for report in reports) else EXIT_CLEAN


@worker.command("remove")
@click.argument("name")
def remove(name: str) -> int:
    """Remove a worker; an environment that was only registered stays, and loses its record."""
    from skill_run.worker.install import remove_worker

    deleted = remove_worker(name)
    click.echo(f"worker {name} is removed" if deleted else f"worker {name} is no longer listed; its environment stays")
    return EXIT_CLEAN


def _register(options: dict[str, Any]) -> Worker:
    from skill_run.worker.install import register_worker

    container = options["python"] is None
    command = options["command"] if container else options["python"]
    return register_worker(command, name=options["name"], container=container)


def _build(options: dict[str, Any]) -> Worker:
    from skill_run.commands.setup_progress import setup_progress
    from skill_run.worker.install import AUTO, setup_worker
    from skill_run.worker.packages import Sources

    sources = Sources(
        find_links=options["find_links"],
        index_url=options["index_url"],
        extra_index_urls=options["extra_index_urls"],
        no_index=options["no_index"],
    )
    with setup_progress(terminal=sys.stderr is not None and sys.stderr.isatty()) as on_progress:
        return setup_worker(
            options["kind"],
            name=options["name"],
            build=options["build"] or AUTO,
            sources=sources,
            on_progress=on_progress,
        )


def _option(name: str) -> str:
    names = {"kind": "a kind", "build": "--torch", "extra_index_urls": "--extra-index-url"}
    return names.get(name, f"--{name.replace('_', '-')}")


def _versions(made: Worker) -> str:
    return ", ".join(_told(made.versions.items()))


def _told(versions: Iterable[tuple[str, str]]) -> list[str]:
    shown = ("torch", "megatron-core", "megatron-bridge", "transformer-engine")
    return [f"{name} {version}" for name, version in versions if name in shown]
