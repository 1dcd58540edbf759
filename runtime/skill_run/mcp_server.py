"""The MCP server: tools, resources and prompts over the same functions as the command line."""

from __future__ import annotations

import argparse
import inspect
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError, UnexpectedToolError
from mcp.server.mcpserver.resources import FileResource
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult, InputRequiredResult, Resource, ToolAnnotations
from pydantic import AnyUrl, Field, ValidationError
from pydantic_core import ErrorDetails

from skill_run import __version__
from skill_run.errors import EXIT_CLEAN, InputError, SkillRunError
from skill_run.mcp_inspection import Inspection
from skill_run.mcp_jobs import JobTools
from skill_run.mcp_recipes import RecipeTools
from skill_run.mcp_skills import SkillsOverMcp, skill_files
from skill_run.mcp_tools import Tools
from skill_run.mcp_verification import Verification
from skill_run.report.safe import clip, printable
from skill_run.roots import Roots

INSTRUCTIONS: Final = (
    "Checks NVIDIA Megatron-Bridge training configs for sequence packing, context parallelism and long context, and "
    "finds faults that train silently on wrong data. Call validate_config before a config is launched, after every "
    "change to it, and when a loss looks wrong; pass world_size and every other fact you know. Fix corruption and "
    "error findings first, ask the user before a fix whose fix_is_semantic is true, then validate again. Call "
    "inspect_batch on a dumped batch or a packed dataset when a loss looks wrong, or for proof before the first step. "
    "Call explain_rule for the reason behind a finding, or for the name, type and default of a config field in each "
    "release. Call generate_recipe for a new config, migrate_config after an upgrade of Megatron-Bridge, plan_packing "
    "to choose pack size and context parallelism from the user's data, and pack_dataset to pack it before the run. "
    "Call verify_skill before GPU hours are spent, to prove packed training with context parallelism on the "
    "real Megatron-Core. Call launch_training to preview a run, show the plan to the user, and start it with the "
    "token only when they agree; follow it with get_job, and ask before stop_job. Call list_skills to find the guide "
    "for a task, and read it as the resource it names. Do not judge a config by eye."
)

_ERROR_LIMIT: Final = 1000
_PROMPT_LIMIT: Final = 300
_PACKING: Final = "packed-sequences-long-context"
_READ_ONLY: Final = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
# Jobs are other machines' work: a cluster may change what is asked for at any time.
_LOOKS: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
_STARTS: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
)
_WRITES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_ENDS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True)
_MIME_TYPES: Final = {".md": "text/markdown", ".yaml": "application/yaml", ".json": "application/json"}


class SkillRunServer(MCPServer[Any]):
    """An MCPServer whose errors are sentences, whose bundle is listed on demand, and whose stdout stays clean."""

    def __init__(self, roots: Roots, python: str | Path | None = None) -> None:
        tools = Tools(roots)
        inspection = Inspection(roots, python)
        jobs = JobTools(roots)
        recipes = RecipeTools(roots)
        super().__init__(
            "skill-run",
            title="skill-run",
            instructions=INSTRUCTIONS,
            version=__version__,
            log_level="WARNING",
            lifespan=_clean_stdout,
            extensions=[SkillsOverMcp()],
            tools=[
                _tool(tools.validate_config, "Validate a training config"),
                _tool(inspection.inspect_batch, "Inspect a batch or a packed dataset"),
                _tool(tools.explain_rule, "Explain a rule or a config field"),
                _tool(tools.list_skills, "List the skills"),
                _tool(recipes.generate_recipe, "Generate a config from a workflow"),
                _tool(recipes.migrate_config, "Move a config to another release"),
                _tool(recipes.plan_packing, "Plan pack sizes and context parallelism"),
                _tool(recipes.pack_dataset, "Pack a data set", _WRITES),
                _tool(Verification(roots).verify_skill, "Verify the installation and packed training"),
                _tool(jobs.launch_training, "Preview a training run, or start a previewed one", _STARTS),
                _tool(jobs.get_job, "Follow a job", _LOOKS),
                _tool(jobs.list_jobs, "List the jobs", _LOOKS),
                _tool(jobs.stop_job, "Stop a job", _ENDS),
            ],
        )
        self.serves_stdio = False
        self._listed = False
        self.resource("rule://{id}", name="rule", title="A rule", mime_type="application/yaml")(_no_rule)
        self.resource("skill://{name}/{+path}", name="skill-file", title="A file of a skill")(_skill_file)
        self.prompt(title="Check a config before launch")(check_before_launch)
        self.prompt(title="Enable packing with context parallelism")(enable_packing_with_context_parallelism)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool; an argument given as null counts as not given. ToolError holds one sentence."""
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            return await super().call_tool(name, given, context)
        except ToolError as error:
            sentence = _sentence(error)
            if sentence is None:
                raise
            raise ToolError(printable(clip(sentence, _ERROR_LIMIT))) from error.__cause__

    async def list_resources(self) -> list[Resource]:
        """List the files of the skills and the rules."""
        await self._list_bundle()
        return await super().list_resources()

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[Any, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        """Read one of the listed files."""
        await self._list_bundle()
        return await super().read_resource(uri, context)

    async def run_stdio_async(self) -> None:
        """Serve on standard input and output until the input ends."""
        self.serves_stdio = True
        await super().run_stdio_async()

    async def _list_bundle(self) -> None:
        if self._listed:
            return
        try:
            found = await anyio.to_thread.run_sync(_bundle_files)
        except SkillRunError as error:
            raise MCPError(code=INTERNAL_ERROR, message=str(error)) from error
        if not self._listed:
            self._listed = True
            for resource in found:
                self.add_resource(resource)


def create_server(roots: Sequence[Path], python: str | Path | None = None) -> SkillRunServer:
    """Return a server that reads configs and batches in `roots` only; InputError when one of them is not a folder.

    python: an interpreter with torch, without which .pt files are refused unless $SKILL_RUN_PYTHON names one.
    """
    return SkillRunServer(Roots(roots), python)


def run(roots: Sequence[Path], transport: str = "stdio", python: str | Path | None = None) -> None:
    """Serve until the input ends or the process is told to stop; both are a clean end.

    transport: `stdio`; python: as for create_server. Raises InputError for another one, for a closed stream, or when a
    root is not a folder.
    """
    if transport != "stdio":
        raise InputError(f"the transport '{clip(transport, 60)}' is not offered; use stdio")
    # A stream that the caller closed is None.
    if sys.stdin is None or sys.stdout is None:
        raise InputError("standard input or output is closed; an MCP server speaks over both")
    server = create_server(roots, python)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        server.run("stdio")
    except* (BrokenPipeError, ConnectionResetError):
        # The client closed its end while an answer was on the way.
        _stop()


def _stop(number: int = 0, frame: FrameType | None = None) -> None:
    """End the process now: the thread that waits for input cannot be woken, and there is nothing to save."""
    os._exit(0)


@asynccontextmanager
async def _clean_stdout(server: MCPServer[Any]) -> AsyncIterator[None]:
    """Send what Python code prints while serving to stderr.

    The transport diverts the descriptor, but text left in sys.stdout's buffer would reach the client at exit.
    """
    serves = isinstance(server, SkillRunServer) and server.serves_stdio
    with redirect_stdout(sys.stderr) if serves else nullcontext():
        yield


def _tool(function: Callable[..., Any], title: str, annotations: ToolAnnotations = _READ_ONLY) -> Tool:
    """Return a tool, read-only unless told otherwise, that refuses arguments it does not know."""
    told = inspect.getdoc(function)
    tool = Tool.from_function(function, title=title, description=told, annotations=annotations)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema(by_alias=True)
    schema = tool.fn_metadata.output_schema or {}
    tool.fn_metadata.output_schema = _inlined(schema, schema.get("$defs", {}))
    return tool


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with its references replaced by what they name: clients check answers faster without them."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return {**_inlined(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions), **own}
    return {key: _inlined(value, definitions) for key, value in schema.items() if key != "$defs"}


def _sentence(error: ToolError) -> str | None:
    """Return what an assistant should read of a failed call; None for a crash, which the SDK logs and words."""
    cause = error.__cause__
    if isinstance(cause, SkillRunError):
        return str(cause)
    if isinstance(error, UnexpectedToolError):
        return None
    if isinstance(cause, ValidationError):
        return f"the arguments do not fit: {'; '.join(map(_fault, cause.errors()))}"
    return str(error)


def _fault(fault: ErrorDetails) -> str:
    name = ".".join(map(str, fault["loc"]))
    return f"there is no argument '{name}'" if fault["type"] == "extra_forbidden" else f"{name}: {fault['msg']}"


def _bundle_files() -> list[FileResource]:
    """Return every file of the bundle that can be read as a resource."""
    from skill_run.bundle.load import load_rules
    from skill_run.bundle.locate import bundle_root
    from skill_run.bundle.skills import CARD_FILE, REFERENCES, SKILL_FILE, list_skills, reference_files

    root = bundle_root()
    found = []
    for skill in list_skills(root):
        base = f"skill://{skill.name}"
        texts = [
            (skill.path / SKILL_FILE, f"{base}/{SKILL_FILE}", skill.description or skill.title),
            (skill.path / CARD_FILE, f"{base}/{CARD_FILE}", f"Card of {skill.name}: features, workflows, evidence."),
        ]
        for path in reference_files(skill.path):
            texts.append((path, f"{base}/{REFERENCES}/{path.name}", f"Longer reading of {skill.name}."))
        found += [_file(path, uri, f"{skill.name}/{path.name}", told) for path, uri, told in texts if path.is_file()]
    found += [_file(root / rule.file, f"rule://{rule.id}", rule.id, rule.title) for rule in load_rules()]
    return found


def _file(path: Path, uri: str, name: str, description: str) -> FileResource:
    kind = _MIME_TYPES.get(path.suffix, "text/plain")
    return FileResource(
        uri=uri, name=name, description=description, mime_type=kind, path=path.resolve(), encoding="utf-8"
    )


def _no_rule(id: str) -> str:
    """A rule file: condition, message, fix, evidence and examples. Listed rules are resources of their own."""
    from skill_run.bundle.load import find_rule, load_rules

    try:
        find_rule(id, load_rules())
    except SkillRunError as error:
        raise ResourceNotFoundError(str(error)) from error
    raise ResourceNotFoundError(f"there is no resource for the rule '{id}'")


def _skill_file(name: str, path: str) -> str:
    """Any file of a skill: SKILL.md, card.yaml, references/FILE, rules/ID.yaml, evals/evals.json."""
    from skill_run.bundle.skills import REFERENCES, show_skill

    found = skill_files(name).get(path)
    if found is not None:
        # Bytes as they are, so that the text has the digest that skills/list gives.
        return found.read_bytes().decode("utf-8")
    try:
        skill = show_skill(name)
    except SkillRunError as error:
        raise ResourceNotFoundError(str(error)) from error
    shown = printable(clip(path, _PROMPT_LIMIT))
    there = ", ".join(f"{REFERENCES}/{file}" for file in skill.references) or "none"
    raise ResourceNotFoundError(f"the skill {name} has no file '{shown}'; longer reading: {there}")


def check_before_launch(
    config_path: Annotated[str, Field(description="Config file to check.")],
    world_size: Annotated[str, Field(description="Number of GPUs of the run.")],
) -> str:
    """Check a config for a given number of GPUs, repair it with the user, and say what is left open."""
    path, ranks = _quoted(config_path), _positive("world_size", world_size)
    return f"""Check the Megatron-Bridge config {path} before it is launched on {ranks} GPUs.

1. Call validate_config with config_path {path} and world_size {ranks}. Add bridge, model, recipe, overrides, env, te
   and gpu as far as the user, the launch script or the project tells them; do not guess them.
2. Look at bridge.because: was the right release judged? If not, call again with bridge.
3. Look at needs: get the inputs that are named there, and call again. Go on to next_offset while there is one.
4. Report corruption findings first: the run would finish with wrong training, and upstream_validate may still say
   "passes". Then the errors, with the phase in `fires` where the run would stop, then the rest in a line each.
5. Offer the `fix` of each finding as an edit of the file. Ask before a fix with fix_is_semantic, because it changes
   what is trained. Where there is no fix, call explain_rule and offer its advice.
6. After the edits call validate_config again, until no error and no corruption is left.
7. End with the verdict, what the real validate() would do, and what stays unchecked and why."""


def enable_packing_with_context_parallelism(
    recipe: Annotated[str, Field(description="Recipe function to start from.")],
    context_parallel_size: Annotated[str, Field(description="Number of GPUs that share one sequence.")],
) -> str:
    """Turn on sequence packing together with context parallelism in a recipe, and prove that the two fit."""
    name, ranks = _quoted(recipe), _positive("context_parallel_size", context_parallel_size)
    return f"""Turn on sequence packing with context_parallel_size {ranks} in the Megatron-Bridge recipe {name}.

1. Read the resource skill://{_PACKING}/SKILL.md, and the features in
   skill://{_PACKING}/card.yaml, which give the settings of each release.
2. Find out which Megatron-Bridge release is used, how many GPUs there are, and what the data is. Choose offline or
   in-batch packing by the table in SKILL.md, and say why.
3. Call validate_config with recipe {name}, overrides that hold the settings of the chosen packing and
   model.context_parallel_size={ranks}, and with bridge and world_size. Do not work out multiples by hand: the fixes do.
4. Add every `fix` of an error or a corruption to the overrides and call again, until none is left. Ask before a fix
   with fix_is_semantic. If unknown-recipe is found, use the name that it offers.
5. Look at needs and get what is named there, model above all; then call once more.
6. Answer with the final overrides, what each one is for, whether packed data that is already there must be built
   again, and what stays unchecked."""


def _quoted(text: str) -> str:
    return f"`{printable(clip(text, _PROMPT_LIMIT)).replace('`', '')}`"


def _positive(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        message = f"{name} must be a whole number of at least 1, not {_quoted(text)}"
        raise MCPError(code=INVALID_PARAMS, message=message)
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve on standard input and output; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m skill_run.mcp_server", description=__doc__)
    parser.add_argument("--root", action="append", type=Path, metavar="DIR", help="folder that may be read; repeatable")
    parser.add_argument("--python", metavar="PATH", help="interpreter with torch, to read .pt files in a child process")
    given = parser.parse_args(arguments)
    try:
        run(given.root or [Path.cwd()], python=given.python)
    except SkillRunError as error:
        print(f"skill-run: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_CLEAN


if __name__ == "__main__":
    sys.exit(main())
