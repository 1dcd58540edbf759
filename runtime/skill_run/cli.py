"""The command line `skill-run`: thin commands over the public functions; heavy imports inside the commands."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from skill_run import __version__
from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS, EXIT_INPUT, InputError, SkillRunError

if TYPE_CHECKING:
    from skill_run.config.model import Source
    from skill_run.report.finding import ValidationReport
    from skill_run.rules.fix import FixResult

_LEVELS = ("error", "corruption", "warning", "info")
_FORMATS = ("text", "json", "sarif", "github", "junit")
_FORMS = ("yaml", "json", "python", "command", "sbatch")
_STDIN = "-"


class _Commands(click.Group):
    """Commands, of which those in LATER are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *LATER})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        return _later(cmd_name)


def _later(name: str) -> click.Command:
    """Import a command of skill_run.commands: one at a time, as each brings what it needs."""
    match name:
        case "generate":
            from skill_run.commands.generate import generate as found
        case "jobs":
            from skill_run.commands.jobs import jobs as found
        case "launch":
            from skill_run.commands.launch import launch as found
        case "migrate":
            from skill_run.commands.migrate import migrate as found
        case "pack":
            from skill_run.commands.pack import pack as found
        case "plan":
            from skill_run.commands.plan import plan as found
        case "rehearse":
            from skill_run.commands.rehearse import rehearse as found
        case "verify":
            from skill_run.commands.verify import verify as found
        case _:
            from skill_run.commands.worker import worker as found
    return found


# Commands with a module of their own in skill_run.commands, which is named after them.
LATER: Final = frozenset({"generate", "jobs", "launch", "migrate", "pack", "plan", "rehearse", "verify", "worker"})


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="skill-run")
def cli() -> None:
    """Validate sequence packing and long-context configs for NVIDIA Megatron-Bridge before they cost GPU hours.

    Exit codes: 0 clean, 1 findings at or above the asked level, 2 wrong usage or unreadable input, 3 something that
    the call needs is not installed.
    """


@cli.command()
@click.argument("inputs", metavar="[CONFIG] [OVERRIDE]...", nargs=-1)
@click.option("--recipe", metavar="NAME", help="Recipe function the config or the overrides are laid over.")
@click.option("--bridge", metavar="VERSION", help="Megatron-Bridge version, such as 0.6.2 or main.")
@click.option("--world-size", "-n", type=int, metavar="N", help="Number of ranks (GPUs) of the run.")
@click.option(
    "--model", metavar="DIR|ID", help="Hugging Face folder or config.json for head counts and the like, or a model id."
)
@click.option("--env", "environment", metavar="K=V", multiple=True, help="Environment variable of the run; repeatable.")
@click.option("--te", metavar="VERSION", help="Transformer Engine version on the GPU machine.")
@click.option("--gpu", metavar="TYPE", help="GPU type, such as h100 or b200.")
@click.option("--rules", metavar="DIR", help="Folder of house rules (default: .skill-run/rules near the config).")
@click.option("--form", type=click.Choice(_FORMS), help="What standard input holds, when it cannot be told.")
@click.option(
    "--level", type=click.Choice(_LEVELS), default="corruption", show_default=True, help="Exit 1 from this severity on."
)
@click.option(
    "--format", "form_out", type=click.Choice(_FORMATS), default="text", show_default=True, help="Form of the report."
)
@click.option("--output", "-o", metavar="FILE", help="Write the report to FILE instead of standard output.")
@click.option("--verbose", "-v", is_flag=True, help="List every rule that was not checked.")
@click.option("--fix", is_flag=True, help="Print the corrected config; the report goes to standard error.")
@click.option("--fix-semantic", is_flag=True, help="With --fix, also apply fixes that change what is trained.")
@click.option("--write", is_flag=True, help="With --fix, write the corrected config into the file.")
@click.option("--ask-upstream", is_flag=True, help="Also run the real validate() of a worker, and show both verdicts.")
def validate(inputs: tuple[str, ...], **options: Any) -> int:
    """Find every problem of a config at once, silent ones too.

    CONFIG is a YAML, JSON or Python file, an sbatch script, a whole launch command in quotes (or after `--`), or `-`
    for standard input. OVERRIDEs are Hydra-style `section.field=value`, laid over CONFIG or over --recipe.
    """
    from skill_run.rules import validate as engine

    source, overrides = _split_inputs(inputs)
    _check_output("-o", options["output"], {"config": source, "model": options["model"]})
    if options["write"]:
        _check_write(source, overrides, options)
    text = _read_stdin() if source == _STDIN else None
    settings = {
        "bridge": options["bridge"],
        "world_size": options["world_size"],
        "recipe": options["recipe"],
        "model": options["model"],
        "env": _environment(options["environment"]),
        "te": options["te"],
        "gpu": options["gpu"],
    }
    # A path as such, since text with a line break would be taken for the config itself.
    path = Path(source) if text is None and source is not None and _is_there(source) else None
    rules = engine.rule_set(path, options["rules"])
    form = options["form"]
    if text is not None and form is None:
        from skill_run.config.read import form_of_text

        form = form_of_text(text)
    sources = engine.read_sources(
        path or (source if text is None else text),
        bridge=settings["bridge"],
        recipe=settings["recipe"],
        overrides=overrides,
        form=form if text is not None else None,
        folder=Path.cwd(),
    )
    if options["fix"] or options["fix_semantic"]:
        if options["ask_upstream"]:
            raise InputError("--ask-upstream asks about the config as it is; leave out --fix, and ask again afterwards")
        from skill_run.rules.fix import fix_config

        fixed = fix_config(sources, rules, semantic=options["fix_semantic"], **settings)
        return _finish_fix(fixed, source, options)
    report = engine.judge_sources(sources, rules, **settings)
    if options["ask_upstream"]:
        report = _with_upstream(report, sources, settings)
    _emit(_rendered(report, options, sys.stdout), options["output"])
    return EXIT_FINDINGS if report.at_least(options["level"]) else EXIT_CLEAN


def _with_upstream(report: ValidationReport, sources: list[Source], settings: dict[str, Any]) -> ValidationReport:
    from dataclasses import replace

    from skill_run.rules.validate import build_config
    from skill_run.worker.oracle import ask_upstream

    answer = ask_upstream(sources, build_config(sources, **settings), report)
    return replace(report, upstream=answer.to_dict())


def _check_write(source: str | None, overrides: Sequence[str], options: dict[str, Any]) -> None:
    if not (options["fix"] or options["fix_semantic"]):
        raise InputError("--write needs --fix")
    if source is None or not Path(source).is_file():
        raise InputError("--write needs a config file, which the corrected config is written into")
    if overrides:
        raise InputError(
            "--write takes no overrides, since the fixes would belong to them; leave --write out to see them"
        )


def _split_inputs(inputs: tuple[str, ...]) -> tuple[str | None, list[str]]:
    if not inputs:
        return None, []
    first = inputs[0]
    if not first:
        raise InputError("the first argument is empty; name a config file")
    only_overrides = all("=" in word and not word.startswith("-") for word in inputs[1:])
    if len(inputs) > 1 and not (only_overrides and _is_there(first)):
        import shlex

        from skill_run.config.read import is_launch

        line = shlex.join(inputs)
        if is_launch(line):
            return line, []
    if first == _STDIN or _is_there(first):
        return first, list(inputs[1:])
    if "=" in first and " " not in first.partition("=")[0]:
        return None, list(inputs)
    if first.startswith("~"):
        return None, list(inputs)
    return first, list(inputs[1:])


def _is_there(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _read_stdin() -> str:
    from skill_run.config.tree import MAX_BYTES

    if sys.stdin is None:
        raise InputError("standard input is closed")
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"standard input is larger than {MAX_BYTES // 1024} KiB, which no config is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 text (byte {error.start})") from error


def _environment(pairs: Sequence[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--env takes NAME=VALUE, not {pair[:60]!r}")
        found[name] = value
    return found or None


def _rendered(report: ValidationReport, options: dict[str, Any], stream: Any) -> str:
    from skill_run.report.render import render

    return render(report, options["form_out"], **_display(options, stream))


def _display(options: dict[str, Any], stream: Any) -> dict[str, Any]:
    """Return how a report is shown on a stream: colours and width of a terminal, level and folder for other forms."""
    # A stream that the caller closed is None.
    terminal = stream is not None and stream.isatty()
    width = 100
    if terminal:
        import shutil

        width = min(shutil.get_terminal_size().columns, 110)
    return {
        "color": terminal and options["output"] is None and not os.environ.get("NO_COLOR"),
        "width": width,
        "verbose": options["verbose"],
        "level": options["level"],
        "root": Path.cwd(),
    }


def _emit(text: str, output: str | None) -> None:
    if output is None:
        click.echo(text)
        return
    write_file(Path(output), text + "\n")


def _refuse_empty(options: dict[str, Any], *names: str) -> None:
    """Refuse a word without a letter, as a shell variable leaves it that is not set."""
    for name in names:
        if options[name] == "":
            raise InputError(f"--{name.replace('_', '-')} is empty")


def _check_output(option: str, output: str | None, inputs: dict[str, str | None]) -> None:
    """Refuse a report file that cannot be made or would replace an input, before anything is read or changed."""
    if output is None:
        return
    path = Path(output)
    if not _is_there(output):
        if not path.resolve().parent.is_dir():
            raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
        return
    if path.is_dir():
        raise InputError(f"{path} cannot be written: it is a folder")
    if not path.is_file():
        return
    for kind, name in inputs.items():
        # A model or a dataset may be named by its folder.
        for read in (name, *(os.path.join(name, file) for file in _READ_IN_FOLDERS)) if name is not None else ():
            if _is_there(read) and path.samefile(read):
                raise InputError(f"{option} is the {kind} itself ({path}); name another file")
        if kind == "data" and name is not None and Path(name).is_dir() and path.resolve().parent.samefile(name):
            raise InputError(f"{option} is a file of the data ({path}); name another file")


_READ_IN_FOLDERS: Final = ("config.json", "tokenizer.json", "tokenizer.model", "vocab.json")


def write_file(path: Path, text: str) -> None:
    """Replace a file in one step, so that a failure leaves the old one whole; a device or a pipe is written to."""
    import tempfile

    try:
        if path.exists() and not path.is_file():
            _write_into(path, text)
            return
        path = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
            os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o644)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _write_into(path: Path, text: str) -> None:
    """Write into a character device, or into a pipe that somebody reads from; InputError for anything else."""
    import errno

    mode = path.stat().st_mode
    if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        raise InputError(f"{path} cannot be written: it is neither a file nor a pipe nor a character device")
    try:
        # Without waiting for a reader, who may never come.
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise InputError(f"{path} cannot be written: nobody reads from it") from error
        raise
    os.set_blocking(handle, True)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)


def _finish_fix(fixed: FixResult, source: str | None, options: dict[str, Any]) -> int:
    """Print or write the corrected config; the list of changes and the report go to standard error."""
    from skill_run.report.safe import printable

    for line in _change_lines(fixed):
        click.echo(printable(line), err=True)
    report = _rendered(fixed.after, options, sys.stderr)
    if not isinstance(fixed.text, str):
        raise InputError(
            f"the fixes cannot be placed in the input: {fixed.note}; make the changes listed above by hand"
        )
    if not options["write"]:
        # As bytes: the config keeps its characters whatever the terminal's encoding is.
        click.echo(fixed.text.encode("utf-8", "surrogateescape"), nl=not fixed.text.endswith("\n"))
    elif fixed.note:
        raise InputError(f"--write cannot place the fixes in {source}: {fixed.note}")
    elif source is not None and (fixed.changes or fixed.removed):
        write_file(Path(source), fixed.text)
    if options["output"] is not None:
        _emit(report, options["output"])
    else:
        click.echo(report, err=True)
    return EXIT_FINDINGS if fixed.after.at_least(options["level"]) else EXIT_CLEAN


def _change_lines(fixed: FixResult) -> list[str]:
    from skill_run.config.write import flow

    lines = [f"removed {path}" for path in fixed.removed]
    for change in fixed.changes:
        old = "(not set)" if change.old is None else flow(change.old)
        mark = "  [changes training]" if change.semantic else ""
        lines.append(f"changed {change.field}: {old} -> {flow(change.new)}  ({change.rule}){mark}")
    if not lines:
        lines.append("nothing to fix")
    if fixed.note:
        lines.append(f"note: {fixed.note}")
    waiting = [finding.rule for finding in fixed.left if finding.fix_is_semantic]
    if waiting:
        lines.append(f"left alone, since the fix changes what is trained (--fix-semantic): {', '.join(waiting)}")
    return lines


@cli.command()
@click.argument("source", metavar="[BATCH|DATASET]", required=False)
@click.option("--bridge", metavar="VERSION", help="Megatron-Bridge version the batch comes from.")
@click.option("--cp", type=int, metavar="N", help="Context parallel size: check boundaries and show each rank's part.")
@click.option("--tp", type=int, metavar="N", help="Tensor parallel size.")
@click.option("--sp/--no-sp", default=None, help="Sequence parallelism is on.")
@click.option("--config", metavar="FILE", help="The run's config, in any form that validate reads.")
@click.option("--python", metavar="PATH", help="Interpreter with torch, to read .pt files in a child process.")
@click.option("--tokenizer", metavar="DIR", help="Local tokenizer: show the text with trained tokens marked.")
@click.option("--html", "html_file", metavar="FILE", help="Write a self-contained page with the pack map.")
@click.option("--plot", "plot_file", metavar="FILE", help="Write the pack map as PNG or SVG.")
@click.option("--capture-snippet", is_flag=True, help="Print the lines that dump batches from a running job, and stop.")
@click.option("--level", type=click.Choice(_LEVELS), default="corruption", show_default=True, help="Exit 1 from here.")
@click.option("--format", "form_out", type=click.Choice(_FORMATS), default="text", show_default=True)
@click.option("--output", "-o", metavar="FILE", help="Write the report to FILE instead of standard output.")
@click.option("--verbose", "-v", is_flag=True, help="Show every sequence and the reasons behind findings.")
def inspect(source: str | None, **options: Any) -> int:
    """See every sequence and boundary of a batch or packed dataset, what is wrong, and why.

    BATCH is a .safetensors, .npz, .json, .pt or packed .npy/.parquet file, a folder or glob of packed files, or a
    folder of per-rank dumps.
    """
    if options["capture_snippet"]:
        from skill_run.batch.snippet import capture_snippet

        click.echo(capture_snippet(options["bridge"]))
        return EXIT_CLEAN
    if source is None:
        raise InputError("nothing to inspect: name a batch file or a packed dataset")
    for option, name in (("-o", "output"), ("--html", "html_file"), ("--plot", "plot_file")):
        _check_output(option, options[name], {"batch": source, "config": options["config"]})
    from skill_run.batch.inspect import inspect_batch
    from skill_run.report.inspection import render_inspection

    report = inspect_batch(
        source,
        bridge=options["bridge"],
        cp=options["cp"],
        tp=options["tp"],
        sp=options["sp"],
        config=options["config"],
        python=options["python"],
    )
    shown = _display(options, sys.stdout)
    text = render_inspection(report, options["form_out"], tokenizer=options["tokenizer"], **shown)
    if options["html_file"] is not None:
        from skill_run.report.html import render_html

        write_file(Path(options["html_file"]), render_html(report, tokenizer=options["tokenizer"]))
    if options["plot_file"] is not None:
        from skill_run.report.plot import save_plot

        save_plot(report, Path(options["plot_file"]))
    _emit(text, options["output"])
    return EXIT_FINDINGS if report.at_least(options["level"]) else EXIT_CLEAN


@cli.command()
@click.argument("name", metavar="RULE|FIELD")
@click.option("--bridge", metavar="VERSION", help="Show what holds for this Megatron-Bridge version.")
@click.option("--rules", metavar="DIR", help="Folder of house rules (default: .skill-run/rules near this folder).")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
def explain(name: str, bridge: str | None, rules: str | None, form_out: str) -> int:
    """Explain a rule, or a config field across the recorded releases."""
    from skill_run.bundle.load import house_folder, load_house_rules, load_rules
    from skill_run.rules.explain import explain as find

    folder = Path(rules) if rules is not None else house_folder(None)
    house = load_house_rules(folder, {rule.id for rule in load_rules()}) if folder is not None else ()
    found = find(name, bridge=bridge, house=house)
    if form_out == "json":
        import json

        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        click.echo(found.render_text())
    return EXIT_CLEAN


@cli.group()
def skills() -> None:
    """List the skills of the bundle, or show one."""


@skills.command("list")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
def skills_list(form_out: str) -> int:
    """List the skills with what each is for."""
    from skill_run.bundle.skills import list_skills

    found = list_skills()
    if form_out == "json":
        import json

        click.echo(json.dumps([skill.to_dict() for skill in found], indent=2))
        return EXIT_CLEAN
    import textwrap

    for skill in found:
        click.echo(f"{skill.name} ({skill.rule_count} rules)")
        click.echo(textwrap.fill(skill.description, 100, initial_indent="    ", subsequent_indent="    "))
    return EXIT_CLEAN


@skills.command("show")
@click.argument("name")
@click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
def skills_show(name: str, form_out: str) -> int:
    """Show a skill: its instructions and its rules."""
    from skill_run.bundle.skills import show_skill

    found = show_skill(name)
    if form_out == "json":
        import json

        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        click.echo(found.render_text())
    return EXIT_CLEAN


@cli.command()
@click.option(
    "--root",
    "roots",
    metavar="DIR",
    multiple=True,
    help="Folder the server may read configs and batches from; repeatable (default: here).",
)
@click.option("--python", metavar="PATH", help="Interpreter with torch, to read .pt files in a child process.")
@click.option("--http", is_flag=True, help="Serve over streamable HTTP instead.")
@click.option("--host", metavar="HOST", help="Address to listen on, with --http (default: 127.0.0.1).")
@click.option("--port", metavar="N", type=int, help="Port to listen on, with --http (default: 8765; 0: any free one).")
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Further name by which clients call the server, with --http; repeatable.",
)
@click.option("--token-file", metavar="FILE", type=click.Path(path_type=Path), help="File of the bearer token.")
@click.option(
    "--rotate-token", is_flag=True, help="Replace the bearer token, and end; running servers take it at once."
)
def mcp(
    roots: tuple[str, ...],
    python: str | None,
    http: bool,
    host: str | None,
    port: int | None,
    allowed_hosts: tuple[str, ...],
    token_file: Path | None,
    rotate_token: bool,
) -> int:
    """Serve the tools to an assistant over MCP: on standard input and output, or over HTTP."""
    if rotate_token:
        from skill_run.mcp_token import replace_token

        click.echo(f"skill-run: new token in {replace_token(token_file)}", err=True)
        return EXIT_CLEAN
    if not http and (host is not None or port is not None or allowed_hosts or token_file):
        raise click.UsageError("--host, --port, --allow-host and --token-file go with --http")
    folders = [Path(root) for root in roots] or [Path.cwd()]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder")
    if http:
        from skill_run.mcp_http import DEFAULT_HOST, DEFAULT_PORT, HttpOptions, serve

        given = (DEFAULT_HOST if host is None else host, DEFAULT_PORT if port is None else port)
        serve(folders, HttpOptions(*given, allowed_hosts=allowed_hosts, token_file=token_file), python)
        return EXIT_CLEAN
    from skill_run.mcp_server import run

    run(folders, python=python)
    return EXIT_CLEAN


def main() -> NoReturn:
    """Run the command line; every error leaves as one sentence and a documented exit code."""
    try:
        code = cli(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else EXIT_CLEAN)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_INPUT)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader went away; python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_CLEAN)
    except SkillRunError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        _fail(f"{error.filename or 'the output'} cannot be used: {error.strerror or error}", EXIT_INPUT)
    except (RecursionError, MemoryError):
        _fail("the input is nested too deep or too large to read", EXIT_INPUT)
    except Exception as error:
        if "SKILL_RUN_DEBUG" in os.environ:
            raise
        kind = type(error).__name__
        _fail(
            f"internal error ({kind}: {str(error)[:200]}); set SKILL_RUN_DEBUG=1 for the details and report it",
            EXIT_INPUT,
        )


def _fail(sentence: str, code: int) -> NoReturn:
    printable = "".join(c if c.isprintable() else " " for c in sentence)
    click.echo(f"skill-run: {printable}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
