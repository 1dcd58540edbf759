"""The MCP tools that make configs and data: generate, migrate, plan, and packing as a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from mcp.server.mcpserver import Context
from pydantic import Field

from skill_run import mcp_recipe_models as models
from skill_run.errors import InputError
from skill_run.mcp_background import MAX_WAIT_SECONDS, BackgroundJob, BackgroundJobs, wait_for
from skill_run.mcp_tools import only_overrides, override_tokens

if TYPE_CHECKING:
    from skill_run.report.finding import ValidationReport
    from skill_run.roots import Roots

TEXT_LIMIT: Final = 30_000
MESSAGE_LIMIT: Final = 600
MAX_PROBLEMS: Final = 20
MAX_CHANGES: Final = 40
MAX_ROWS: Final = 12


@dataclass(slots=True)
class _Job(BackgroundJob):
    """One packing; its processes end with the server."""

    report: dict[str, Any] = field(default_factory=dict)

    def answer(self) -> models.Packing:
        """Return the job as an answer of bounded size."""
        state: models.JobState = "running" if self.running else "failed" if self.error else "passed"
        return models.Packing(
            job=self.id,
            state=state,
            doing=self.doing if self.running else "",
            done=self.done,
            total=self.total,
            report=self.report,
            message=self.error,
        )


class RecipeTools:
    """The tools of one server. roots: what it may read, and where it may write packed data."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self._jobs = BackgroundJobs("packing", "pack", _Job)

    def generate_recipe(
        self,
        workflow: Annotated[
            str, Field(description="Workflow, such as offline-packed-sft; empty: list the workflows.")
        ] = "",
        describe: Annotated[bool, Field(description="Only describe the workflow's inputs.")] = False,
        model: Annotated[str, Field(description="Hugging Face model id, or a folder the server may read.")] = "",
        recipe: Annotated[str, Field(description="Recipe function to start from, instead of a model.")] = "",
        gpus: Annotated[int | None, Field(ge=1, description="Number of GPUs of the run.")] = None,
        gpu: Annotated[str, Field(description="Kind of GPU, such as h100 or gb200.")] = "",
        bridge: Annotated[str, Field(description="Megatron-Bridge version, such as 0.6.2 or main.")] = "",
        inputs: Annotated[
            dict[str, Any] | None,
            Field(description='The workflow\'s inputs by name; a size may be "choose". describe tells them.'),
        ] = None,
        form: Annotated[
            Literal["script", "python", "yaml", "overrides", "json"], Field(description="What to write.")
        ] = "script",
        overrides: Annotated[
            list[str] | None, Field(description="Further `section.field=value` settings of the user.")
        ] = None,
    ) -> models.Recipe:
        """Generate a config that validates, from a workflow and what the user wants; every number has a reason.

        First call without a workflow to see which there are, then with describe for its inputs. Sizes that the user
        does not fix are chosen to fit the GPUs' memory. Nothing is written or run: write the text to a file, then
        validate_config it, or launch_training.
        """
        from skill_run.recipe.generate import describe_inputs, generate_recipe, list_workflows

        if not workflow:
            return _listed(list_workflows())
        if describe:
            return _listed([], describe_inputs(workflow))
        found = generate_recipe(
            workflow,
            model=self.roots.find_model(model) if model else None,
            recipe=recipe or None,
            gpus=gpus,
            gpu=gpu or None,
            bridge=bridge or None,
            inputs=inputs or {},
            form=form,
            overrides=tuple(overrides or ()),
        )
        told = found.to_dict()
        text, left_out = _bounded(told["text"])
        return models.Recipe(
            workflow=workflow,
            bridge=str(told["bridge"]),
            recipe=told["recipe"] or "",
            form=form,
            text=text,
            left_out=left_out,
            settings=told["settings"],
            reasons=[
                models.Reason(
                    field=reason["field"], value=told["settings"].get(reason["field"]), because=reason["because"]
                )
                for reason in told["reasons"]
            ],
            problems=_problems(found.report),
            next_commands=list(told["next_commands"]),
            workflows=[],
            inputs={},
        )

    def migrate_config(
        self,
        to: Annotated[str, Field(description="Megatron-Bridge version to move to, such as 0.6.2 or main.")],
        config_path: Annotated[str, Field(description="Config file in a folder the server may read.")] = "",
        config_text: Annotated[
            str,
            Field(description="The config itself: YAML, JSON, Python, overrides, a launch command or Slurm script."),
        ] = "",
        form: Annotated[
            Literal["yaml", "json", "python", "overrides", "command", "sbatch"] | None,
            Field(description="What config_text holds; only needed when it cannot be told from the text."),
        ] = None,
        bridge: Annotated[str, Field(description="Version that the config is for now, when it is known.")] = "",
        recipe: Annotated[str, Field(description="Recipe function that the config is laid over.")] = "",
    ) -> models.Migrated:
        """Move a config from one Megatron-Bridge release to another, keeping its form, comments and layout.

        Renamed fields, moved imports and classes, switches that came or went, and defaults that changed (they are
        pinned, so that training stays the same). What cannot be moved safely is in `manual`: do it by hand or ask the
        user. The result is judged by the same rules as validate_config. Nothing is written.
        """
        from skill_run.config.read import form_of_text
        from skill_run.recipe.migrate import migrate_config

        if bool(config_path) == bool(config_text.strip()):
            raise InputError("give config_path or config_text, one of them")
        source: Any = self.roots.find(config_path) if config_path else config_text
        told = form or (None if config_path else form_of_text(config_text))
        tokens: tuple[str, ...] = ()
        if told == "overrides" or (form is None and told == "yaml" and only_overrides(config_text)):
            source, told, tokens = None, None, tuple(override_tokens(config_text))
        found = migrate_config(source, to=to, bridge=bridge or None, form=told, recipe=recipe or None, overrides=tokens)
        text, left_out = _bounded(found.text if isinstance(found.text, str) else "")
        return models.Migrated(
            from_version=found.from_version,
            to_version=found.to_version,
            clean=found.clean,
            text=text,
            left_out=left_out,
            changes=[models.Edit(**_short(change.to_dict())) for change in found.changes[:MAX_CHANGES]],
            changes_left_out=max(0, len(found.changes) - MAX_CHANGES),
            manual=[models.ByHand(**_short(item.to_dict())) for item in found.manual[:MAX_CHANGES]],
            problems=_problems(found.report),
            note=found.note,
        )

    def plan_packing(
        self,
        data_path: Annotated[
            str,
            Field(description="JSONL, Parquet, packed files, a file of lengths or a histogram the server may read."),
        ] = "",
        lengths: Annotated[
            dict[str, int] | None, Field(description="Instead of data: length in tokens -> number of samples.")
        ] = None,
        tokenizer_path: Annotated[str, Field(description="Local tokenizer folder, for JSONL with text.")] = "",
        pack_sizes: Annotated[list[int] | None, Field(description="Sizes to compare; chosen otherwise.")] = None,
        bridge: Annotated[str, Field(description="Megatron-Bridge version, such as 0.6.2 or main.")] = "",
        model: Annotated[str, Field(description="Hugging Face model id, or a folder the server may read.")] = "",
        recipe: Annotated[str, Field(description="Recipe function that the run starts from.")] = "",
        gpus: Annotated[int | None, Field(ge=1, description="Number of GPUs of the run.")] = None,
        gpu: Annotated[str, Field(description="Kind of GPU, such as h100.")] = "",
        tp: Annotated[int | None, Field(ge=1, description="Tensor parallel size, when it is fixed.")] = None,
        cp: Annotated[int | None, Field(ge=1, description="Context parallel size, when it is fixed.")] = None,
        seq_length: Annotated[int | None, Field(ge=1, description="Longest sample that is kept whole.")] = None,
        global_batch_size: Annotated[int | None, Field(ge=1, description="Packs of a step.")] = None,
    ) -> models.Plan:
        """Compare pack sizes for the user's own data, and say which to take and how much context parallelism pays.

        Fill, padding, cut and dropped samples, steps per epoch, how uneven the packs' work is; transfer against
        attention by context parallel size; memory per GPU when a model and GPUs are given. Large data takes a while
        with text: give lengths when you have them.
        """
        from skill_run.plan.plan import plan_packing

        if bool(data_path) == bool(lengths):
            raise InputError("give data_path or lengths, one of them")
        source: Any = self.roots.find_files(data_path) if data_path else _counts(lengths or {})
        found = plan_packing(
            source,
            tokenizer=self.roots.find_files(tokenizer_path) if tokenizer_path else None,
            pack_sizes=tuple(pack_sizes or ()),
            bridge=bridge or None,
            model=self.roots.find_model(model) if model else None,
            recipe=recipe or None,
            gpus=gpus,
            gpu=gpu or None,
            tp=tp,
            cp=cp,
            seq_length=seq_length,
            global_batch_size=global_batch_size,
        ).to_dict()
        chosen = found["recommendation"]
        size = chosen["pack_size"]
        rows = [row for row in found["candidates"] if row["pack_size"] == size]
        return models.Plan(
            bridge=found["bridge"]["version"],
            lengths=found["lengths"],
            model=found["model"],
            pack_size=size,
            reasons=chosen["reasons"],
            overrides=chosen["overrides"],
            sizes=[_size(row) for row in found["candidates"][:MAX_ROWS]],
            traffic=[_traffic(row) for row in (rows[0]["traffic"] if rows else [])[:MAX_ROWS]],
            notes=[*found["notes"], *found["limits"]],
            next_commands=chosen["commands"],
        )

    async def pack_dataset(
        self,
        context: Context[Any, Any],
        data_path: Annotated[str, Field(description="JSONL or Parquet, or a folder with training.jsonl.")] = "",
        out_path: Annotated[str, Field(description="Folder for the packed files, inside the server's folders.")] = "",
        bridge: Annotated[str, Field(description="Megatron-Bridge version that will read the files.")] = "",
        pack_size: Annotated[int | None, Field(ge=1, description="Tokens of a pack.")] = None,
        seq_length: Annotated[int | None, Field(ge=1, description="Longest sample; the pack size otherwise.")] = None,
        tokenizer_path: Annotated[str, Field(description="Local tokenizer folder, for text.")] = "",
        cp: Annotated[int, Field(ge=1, description="Context parallel size of the run.")] = 1,
        tp: Annotated[int, Field(ge=1, description="Tensor parallel size of the run.")] = 1,
        sp: Annotated[bool, Field(description="Sequence parallelism in the run.")] = False,
        compat: Annotated[bool, Field(description="Make exactly the packs that Megatron-Bridge would make.")] = False,
        max_sequences: Annotated[int | None, Field(ge=1, description="Most samples in a pack.")] = None,
        balance: Annotated[bool, Field(description="Even out the attention work of packs.")] = False,
        seed: Annotated[int, Field(ge=0, description="Seed of the order.")] = 0,
        skip_bad: Annotated[bool, Field(description="Leave out broken lines, and list them.")] = False,
        job: Annotated[str, Field(description="Ask for this packing, which was started before.")] = "",
        wait_seconds: Annotated[
            int, Field(ge=0, le=MAX_WAIT_SECONDS, description="Longest time to wait for the end of it.")
        ] = 5,
    ) -> models.Packing:
        """Pack a data set into the files that Megatron-Bridge's training reads, before GPUs wait for it.

        It starts a job and returns its id; call again with `job` until `state` is no longer "running". The report
        counts what was cut, dropped or has nothing to train on, and holds the settings for the config.
        """
        if job:
            found = self._jobs.find(job)
        else:
            if not (data_path and out_path and pack_size):
                raise InputError("give data_path, out_path and pack_size, or the id of a job that was started before")
            options = {
                "bridge": bridge or None,
                "pack_size": pack_size,
                "seq_length": seq_length,
                "tokenizer": self.roots.find_files(tokenizer_path) if tokenizer_path else None,
                "cp": cp,
                "tp": tp,
                "sp": sp,
                "compat": compat,
                "max_sequences": max_sequences,
                "balance": balance,
                "seed": seed,
                "skip_bad": skip_bad,
            }
            data, out = self.roots.find_files(data_path), self.roots.place(out_path)
            found = self._jobs.start(_packing(data, out, options))
        await wait_for(found, wait_seconds, context)
        return found.answer()


def _packing(data: Path, out: Path, options: Mapping[str, Any]) -> Callable[[_Job], None]:
    def work(job: _Job) -> None:
        from skill_run.pack.build import build_packs

        job.report = build_packs(data, out, on_progress=job.take, **options).to_dict()

    return work


def _bounded(text: str) -> tuple[str, int]:
    """Return the text, or its beginning up to a line's end, and how many characters are left out."""
    if len(text) <= TEXT_LIMIT:
        return text, 0
    cut = text.rfind("\n", 0, TEXT_LIMIT) + 1 or TEXT_LIMIT
    return text[:cut], len(text) - cut


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    from skill_run.report.safe import clip

    return {key: clip(value, MESSAGE_LIMIT) if isinstance(value, str) else value for key, value in entry.items()}


def _problems(report: ValidationReport | None) -> list[models.Problem]:
    from skill_run.report.safe import clip, flow

    found = report.findings[:MAX_PROBLEMS] if report is not None else ()
    return [
        models.Problem(rule=item.rule, severity=item.severity, message=flow(clip(item.message, MESSAGE_LIMIT)))
        for item in found
    ]


def _listed(workflows: list[dict[str, str]], inputs: dict[str, Any] | None = None) -> models.Recipe:
    return models.Recipe(
        workflow="",
        bridge="",
        recipe="",
        form="",
        text="",
        left_out=0,
        settings={},
        reasons=[],
        problems=[],
        next_commands=[],
        workflows=workflows,
        inputs=inputs or {},
    )


def _counts(lengths: Mapping[str, int]) -> dict[int, int]:
    try:
        return {int(length): int(count) for length, count in lengths.items()}
    except (TypeError, ValueError) as error:
        raise InputError("lengths must map a length in tokens to a number of samples") from error


def _size(row: Mapping[str, Any]) -> models.PackSize:
    packs = row["packs"] or {}
    held = packs.get("sequences_per_pack") or {}
    spread = packs.get("attention_spread") or {}
    memory = row["memory"]
    return models.PackSize(
        pack_size=row["pack_size"],
        unfit=row["unfit"] or "",
        packs=packs.get("packs"),
        fill=packs.get("fill"),
        sequences_mean=held.get("mean"),
        sequences_max=held.get("max"),
        truncated=row["truncated"]["samples"],
        dropped=row["dropped"]["samples"],
        lost=row["lost"],
        global_batch_size=row["global_batch_size"],
        steps_per_epoch=row["steps_per_epoch"],
        work_spread=spread.get("p99_over_p50"),
        memory_gib=memory["total"] if memory else None,
    )


def _traffic(row: Mapping[str, Any]) -> models.Traffic:
    return models.Traffic(**{name: row[name] for name in models.Traffic.model_fields})
