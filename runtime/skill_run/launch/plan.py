"""From a config and the options of a run to a plan: every command, file, variable and path, fixed before the start."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skill_run.config.config import Config
from skill_run.config.model import Source, State
from skill_run.errors import InputError
from skill_run.jobs.folder import state_folder
from skill_run.jobs.model import Allowance, Plan, Variable, new_id, now
from skill_run.launch import cpu as on_cpu
from skill_run.launch.arithmetic import Ranks, share_out
from skill_run.launch.files import ConfigFiles, config_files, data_files, entry_files
from skill_run.launch.options import Device, Launcher, LaunchOptions, absolute, check_text, hours_of
from skill_run.launch.places import not_shared, resumed_from, saved_step
from skill_run.launch.refuse import allowances
from skill_run.launch.sbatch import BATCH, Steps, render_sbatch
from skill_run.launch.variables import variables_for
from skill_run.report.finding import ValidationReport
from skill_run.rules.derived import Facts, NeedsValue
from skill_run.rules.fix import fix_config
from skill_run.rules.validate import build_config, judge_sources, rule_set
from skill_run.worker.environments import Worker, find_worker, list_workers
from skill_run.worker.session import Event

OnEvent = Callable[[Event], None]
# A launcher in srun learns its place from variables that torchrun takes for its options.
_IN_SRUN: Final = (
    'export PET_NODE_RANK=$SLURM_NODEID PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT; exec "$@"'
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A config that is read already: sources as from read_sources; path: of the config, for house rules near it."""

    sources: Sequence[Source]
    bridge: str | None = None
    recipe: str | None = None
    path: Path | None = None
    rules: str | Path | None = None
    original: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan and the report of the config that it was made of."""

    plan: Plan
    report: ValidationReport


def make_preview(
    inputs: Inputs,
    options: LaunchOptions,
    *,
    job_id: str | None = None,
    created: str | None = None,
    on_event: OnEvent | None = None,
) -> Preview:
    """Return the plan of a launch; nothing is started or written.

    job_id, created: for plans that must come out the same. on_event: progress of the worker, which is asked for runs on
    CPUs. Raises RefusedLaunch when findings stand against it, InputError when it cannot be run, MissingError when no
    worker with Megatron-Bridge is set up for a run on CPUs.
    """
    return _Maker(inputs, options, job_id or new_id(), created or now(), on_event).make()


class _Maker:
    """Makes one plan, step by step."""

    def __init__(
        self, inputs: Inputs, options: LaunchOptions, job_id: str, created: str, on_event: OnEvent | None
    ) -> None:
        self.inputs, self.options, self.job_id, self.created = inputs, options, job_id, created
        self.on_event = on_event
        self.device: Device = options.device or _device(options)
        self.worker: Worker | None = find_worker(options.worker, bridge=True) if self.device == "cpu" else None
        parent = absolute(options.folder) if options.folder else str(state_folder() / "jobs")
        self.folder = f"{parent}/{job_id}"
        check_text("the job's folder", self.folder)
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.settings: list[dict[str, Any]] = []

    def make(self) -> Preview:
        config = self._config(self._asked_world())
        ranks = self._ranks(config)
        report, allowed = self._judge(ranks)
        release = config.choice.release
        files = config_files(self.inputs.sources, release, self.inputs.recipe, self.inputs.original)
        packs = self._packs(config)
        prepared: Mapping[str, Any] | None = None
        if self.worker is not None:
            prepared, packs, ranks = self._on_cpu(files, ranks)
        save, resume, resumes = self._checkpoints(config, files)
        run = {
            "job": self.job_id,
            "base": files.base,
            "settings": self.settings,
            "function": self._function(config, prepared, resume),
            "world_size": ranks.world_size,
            "pack": packs,
            "capture": self.options.capture,
            "checkpoints": save,
            "resume": resume,
            "cpu": prepared,
        }
        variables = variables_for(config, ranks, self.options, folder=self.folder, cpu=self.device == "cpu")
        self._warn_of_places(ranks, variables)
        command, written, steps = self._commands(ranks, packs, variables)
        every = {**entry_files(release), **data_files(files, run), **written}
        return Preview(
            self._plan(config, ranks, report, allowed, variables, command, every, steps, save, resumes), report
        )

    def _asked_world(self) -> int | None:
        per_node = self.options.ranks_per_node
        return None if per_node is None or self.worker is not None else per_node * self.options.nodes

    def _config(self, world_size: int | None) -> Config:
        bridge = self.worker.bridge if self.worker is not None else self.inputs.bridge
        return build_config(
            self.inputs.sources,
            bridge=bridge,
            recipe=self.inputs.recipe,
            model=self.options.model,
            world_size=world_size,
            env=dict(self.options.env) or None,
            gpu=self.options.gpu,
        )

    def _ranks(self, config: Config) -> Ranks:
        if self.worker is not None:
            return share_out(config, 1, None, least=True)
        return share_out(config, self.options.nodes, self.options.ranks_per_node)

    def _judge(self, ranks: Ranks) -> tuple[ValidationReport, tuple[Allowance, ...]]:
        rules = rule_set(self.inputs.path, self.inputs.rules)
        settings: dict[str, Any] = {
            "bridge": self.worker.bridge if self.worker is not None else self.inputs.bridge,
            "recipe": self.inputs.recipe,
            "model": self.options.model,
            "world_size": ranks.world_size,
            "env": dict(self.options.env) or None,
            "gpu": self.options.gpu,
        }
        if not self.options.fix:
            report = judge_sources(self.inputs.sources, rules, **settings)
        else:
            fixed = fix_config(list(self.inputs.sources), rules, **settings)
            report = fixed.after
            self.settings += [
                {"field": each.field, "value": each.new, "old": each.old, "why": f"rule {each.rule}"}
                for each in fixed.changes
            ]
        return report, allowances(report, self.options.allow)

    def _on_cpu(self, files: ConfigFiles, ranks: Ranks) -> tuple[Mapping[str, Any], bool, Ranks]:
        assert self.worker is not None
        found = on_cpu.plan_cpu_run(
            self.inputs.sources,
            files,
            self.options,
            self.worker,
            settings=self.settings,
            folder=self.folder,
            world_size=ranks.world_size,
            recipe=self.inputs.recipe,
            original=self.inputs.original,
            on_event=self.on_event,
        )
        self.settings += found.settings
        self.notes += found.notes
        nodes, sizes = self.options.nodes, found.layout
        if found.ranks % nodes:
            raise InputError(f"the run on CPUs has {found.ranks} ranks, which {nodes} nodes cannot share evenly")
        tp, pp, cp = sizes["tp"], sizes["pp"], sizes["cp"]
        lines = (
            f"{found.ranks} ranks = {nodes} node{'s' if nodes > 1 else ''} x {found.ranks // nodes}, on CPUs",
            f"one model copy = TP {tp} x PP {pp} x CP {cp} = {tp * pp * cp} ranks; DP = {sizes['dp']}",
            f"the config itself: {ranks.lines[0]}; {ranks.lines[1]}",
        )
        per_node = found.ranks // nodes
        made = Ranks(
            found.ranks, nodes, per_node, sizes["tp"], sizes["pp"], sizes["cp"], sizes["ep"], sizes["dp"], lines
        )
        return found.prepared, found.packs, made

    def _packs(self, config: Config) -> bool:
        facts = Facts(config)
        try:
            if not facts.test("packing.offline"):
                return False
        except NeedsValue:
            self.warnings.append("whether the data are packed offline is not known, so nothing is packed beforehand")
            return False
        ready = config.get("dataset.offline_packing_specs.packed_train_data_path")
        return ready.state is State.UNKNOWN or ready.value is None

    def _checkpoints(self, config: Config, files: ConfigFiles) -> tuple[str, str | None, str | None]:
        """Return where checkpoints go, what is loaded, and that in words."""
        load, save = files.decided.get("checkpoint.load"), files.decided.get("checkpoint.save")
        own = f"{self.folder}/checkpoints"
        if save is not None and isinstance(save[0], str) and save[1] != "container" and self.worker is None:
            own = absolute(save[0])
            if (held := saved_step(own)) is not None and self.options.resume is None:
                raise InputError(
                    f"checkpoint.save {own} holds a checkpoint of step {held}, from which the run would go on; name "
                    "another folder, or say --resume with it"
                )
        trap = config.get("checkpoint.load")
        written = load[0] if load is not None else trap.value if trap.state is not State.UNKNOWN else None
        if written and self.options.resume is None:
            self.notes.append(
                f"checkpoint.load of the config ({written}) is not used: upstream would resume silently from what an "
                "earlier run left there; --resume DIR resumes"
            )
        if self.options.resume is None:
            return own, None, None
        path, step = resumed_from(self.options.resume)
        return own, path, f"{path} (step {step})"

    def _function(self, config: Config, prepared: Mapping[str, Any] | None, resume: str | None) -> str:
        if prepared is not None:
            return "finetune" if prepared["peft"] else "pretrain"
        found = config.get("checkpoint.pretrained_checkpoint")
        pretrained = found.value if found.state is not State.UNKNOWN else None
        try:
            tuned = Facts(config).test("derived.sft_dataset")
        except NeedsValue:
            tuned = pretrained is not None
        if self.options.from_scratch or not tuned:
            return "pretrain"
        if pretrained is None and resume is None:
            raise InputError(
                "no pretrained checkpoint: the run would train from random weights; give "
                "checkpoint.pretrained_checkpoint=DIR, --resume DIR, or --from-scratch when that is meant"
            )
        return "finetune"

    def _warn_of_places(self, ranks: Ranks, variables: Mapping[str, Variable]) -> None:
        if ranks.nodes < 2:
            return
        places = {"the job's folder": self.folder}
        if "NEMO_HOME" in variables and not variables["NEMO_HOME"].value.startswith(self.folder):
            places["the folder of packed data"] = variables["NEMO_HOME"].value
        self.warnings += [told for what, path in places.items() if (told := not_shared(what, path)) is not None]

    def _commands(
        self, ranks: Ranks, packs: bool, variables: Mapping[str, Variable]
    ) -> tuple[tuple[str, ...], dict[str, str], list[list[str]]]:
        """Return the command that starts the job, the files that it needs, and the steps that it runs."""
        pack, launch = self._steps(ranks, packs)
        if self.options.engine == "slurm":
            steps = Steps(pack, launch, 1 if self._launcher() == "torchrun" else ranks.ranks_per_node)
            text = render_sbatch(
                self.options,
                steps,
                variables,
                folder=self.folder,
                name=self._name(),
                ranks_per_node=ranks.ranks_per_node,
                gpus=self.device == "gpu",
            )
            shown = [list(each) for each in (pack, launch) if each is not None]
            return ("sbatch", "--parsable", BATCH), {BATCH: text}, shown
        commands = [list(each) for each in (pack, launch) if each is not None]
        if self._launcher() == "fork":
            return launch, {}, commands
        first = (*self._python(), f"{self.folder}/start.py")
        return first, {"commands.json": json.dumps(commands, indent=1) + "\n"}, commands

    def _steps(self, ranks: Ranks, packs: bool) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Return what runs once before the ranks, and what starts the ranks (of one node, for Slurm)."""
        launcher, python = self._launcher(), self._python()
        if self.worker is not None:
            if launcher == "fork":
                return None, on_cpu.worker_command(self.worker, self.folder, "ranks", str(ranks.world_size))
            prepare = on_cpu.worker_command(self.worker, self.folder, "prepare")
            rank = on_cpu.worker_command(self.worker, self.folder, "rank")
            # Options of the interpreter stay with it; torchrun takes the script and its arguments.
            script = rank[len(self.worker.command) + 2 :]
            return prepare, (rank if launcher == "srun" else self._torchrun(ranks, python, script))
        script = (f"{self.folder}/train.py",)
        pack = (*python, *script, "--pack") if packs else None
        return pack, ((*python, *script) if launcher == "srun" else self._torchrun(ranks, python, script))

    def _torchrun(self, ranks: Ranks, python: tuple[str, ...], script: tuple[str, ...]) -> tuple[str, ...]:
        words = (*python, "-m", "torch.distributed.run")
        if self.options.engine == "local":
            return (*words, "--standalone", f"--nproc-per-node={ranks.ranks_per_node}", *script)
        sizes = (f"--nnodes={ranks.nodes}", f"--nproc-per-node={ranks.ranks_per_node}")
        return ("bash", "-c", _IN_SRUN, "torchrun", *words, *sizes, *script)

    def _launcher(self) -> Launcher:
        if self.options.launcher is not None:
            if self.options.launcher == "fork" and self.device == "gpu":
                raise InputError("forked ranks run on CPUs only; on GPUs the launcher is torchrun or srun")
            return self.options.launcher
        if self.options.engine == "slurm":
            return "srun"
        return "fork" if self.worker is not None else "torchrun"

    def _python(self) -> tuple[str, ...]:
        if self.worker is not None:
            return self.worker.command
        if self.options.python is not None:
            return (self.options.python,)
        if self.options.container_image is None:
            own = [worker for worker in list_workers() if not worker.built and worker.bridge is not None]
            if own:
                return own[0].command
        return ("python",)

    def _name(self) -> str:
        if self.options.name is not None:
            return self.options.name
        name = self.inputs.recipe or next((s.recipe for s in self.inputs.sources if s.recipe), None)
        return (name or Path(self.inputs.sources[0].name).stem or "job").rpartition(".")[2][:60]

    def _plan(
        self,
        config: Config,
        ranks: Ranks,
        report: ValidationReport,
        allowed: tuple[Allowance, ...],
        variables: Mapping[str, Variable],
        command: tuple[str, ...],
        files: Mapping[str, str],
        steps: list[list[str]],
        save: str,
        resumes: str | None,
    ) -> Plan:
        time = self.options.time
        summary = {severity: len([f for f in report.findings if f.severity == severity]) for severity in _SEVERITIES}
        digest = hashlib.sha256("\0".join(files[name] for name in _CONFIG_FILES).encode("utf-8", "surrogateescape"))
        return Plan(
            id=self.job_id,
            name=self._name(),
            engine=self.options.engine,
            command=command,
            folder=self.folder,
            files=dict(files),
            environment=dict(variables),
            world_size=ranks.world_size,
            nodes=ranks.nodes,
            ranks_per_node=ranks.ranks_per_node,
            bridge=config.choice.version,
            recipe=next((s.recipe for s in self.inputs.sources if s.recipe), self.inputs.recipe),
            config_digest=digest.hexdigest(),
            outputs={
                "checkpoints": save,
                "log": f"{self.folder}/job.log",
                "metrics": f"{self.folder}/metrics.jsonl",
                "captured batches": f"{self.folder}/capture",
            },
            resumes_from=resumes,
            gpu_hours=hours_of(time) * ranks.world_size if time and self.device == "gpu" else None,
            allowed=allowed,
            created=self.created,
            extra={
                "device": self.device,
                "launcher": self._launcher(),
                "worker": None if self.worker is None else self.worker.name,
                "arithmetic": list(ranks.lines),
                "steps": steps,
                "settings": self.settings,
                "findings": summary,
                "warnings": self.warnings,
                "notes": self.notes,
                "time": time,
            },
        )


_SEVERITIES: Final = ("error", "corruption", "warning", "info")
_CONFIG_FILES: Final = ("run.json", "config.yaml", "overrides.json")


def _device(options: LaunchOptions) -> Device:
    """Return what the run is on: GPUs when they are asked for or there are some, else this machine's CPU."""
    asked = options.gpu or options.ranks_per_node or options.container_image or options.engine == "slurm"
    return "gpu" if asked or has_gpus() else "cpu"


def has_gpus() -> bool:
    """Tell whether this machine has NVIDIA GPUs."""
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
