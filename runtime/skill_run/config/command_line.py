"""A launch line, or a batch script that holds one, to a Source: flags, overrides, ranks and environment.

What a flag means differs between releases; the tables are data (bridge/data/flags.json). The line is never run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from packaging.version import Version

from skill_run.bridge.recipes import Recipe, find_recipe
from skill_run.bridge.release import newest_release, read_data
from skill_run.config.launch import (
    LAUNCHER,
    Launch,
    find_launch,
    gpus_per_node,
    slurm_options,
    slurm_remarks,
    world_size,
)
from skill_run.config.model import Assignment, Form, Location, Plain, Remark, Source, Unknown
from skill_run.config.overrides import parse_override, shorten
from skill_run.config.shell import MARK, Script, Word, readable, unknown_name, unknown_reason
from skill_run.errors import InputError

Kind = Literal["int", "float", "str", "bool", "flag", "recipe", "model", "mode", "dataset", "ignored"]
FlagTables = Mapping[str, Mapping[str, "FlagRule"]]

_SEQUENCE_LENGTH: Final = "{seq_length}"
_MODEL_TASKS: Final = {"pretrain": "pretrain", "sft": "sft", "lora": "peft", "dora": "peft"}
# argparse of the older launchers takes any unique beginning of a long flag; 0.6 switched that off.
_NO_ABBREVIATIONS: Final = Version("0.6")
_NUMBER = re.compile(r"-[0-9.]")
_SECTION_KEY = re.compile(r"[+~]{0,2}[a-z_]+(?:\.[A-Za-z_][A-Za-z0-9_]*)+=")


@dataclass(frozen=True, slots=True)
class FlagRule:
    """What one launcher flag does in one release.

    fields: dotted names the value is assigned to. kind: how the value is read; `flag` takes none, `ignored` takes one
    that sets no field. choices: the values allowed; for a dataset, what each one makes of the dataset section. recipes:
    recipe functions that take the flag as an argument of their own.
    """

    fields: tuple[str, ...] = ()
    kind: Kind = "ignored"
    note: str = ""
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipes: frozenset[str] = frozenset()


@cache
def load_flags() -> dict[str, dict[str, FlagRule]]:
    """Return the launcher flags of every recorded release: release -> flag as written -> rule."""
    return {
        version: {
            flag: FlagRule(
                fields=tuple(raw.get("fields", ())),
                kind=raw["kind"],
                note=raw.get("note", ""),
                choices=raw.get("choices", {}),
                recipes=frozenset(raw.get("recipes", ())),
            )
            for flag, raw in table.items()
        }
        for version, table in read_data("flags.json").items()
    }


@dataclass(frozen=True, slots=True)
class _Given:
    """One flag as given: its full name, the word it stands in and its value (None when it takes none)."""

    flag: str
    word: Word
    position: int
    value: str | None


def read_command(
    text: str, *, name: str = "command", flags_by_version: FlagTables, version: str | None = None
) -> Source:
    """Read one launch line, such as `torchrun --nproc_per_node 8 run_recipe.py --recipe NAME -cp 2 a.b=c`.

    version: recorded release whose flags apply; None takes the newest one that knows every flag. The column of a
    location is the position of the word in the line. Raises InputError when the text starts no Python script, when a
    quote is not closed, or when a value or an override cannot be read.
    """
    return _Reader("command", text, name, flags_by_version, version).read(None)


def read_sbatch(text: str, *, name: str = "sbatch", flags_by_version: FlagTables, version: str | None = None) -> Source:
    """Read a batch or shell script that starts a training; see read_command. Locations are lines of the script.

    Variables set to constants are substituted; one that is not set in the script makes what depends on it unknown.
    """
    return _Reader("sbatch", text, name, flags_by_version, version).read(_directives(text))


def _directives(text: str) -> dict[str, str]:
    """Return the options of the `#SBATCH` lines by long name without dashes."""
    words: list[str] = []
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            words += line.removeprefix("#SBATCH").partition(" #")[0].split()
    return slurm_options(words)


def _slurm_variables(job: Mapping[str, str]) -> dict[str, str]:
    """Return the SLURM_* variables that the options of a job decide."""
    found: dict[str, str] = {}
    nodes = job.get("nodes", "1")
    if nodes.isdigit():
        found |= {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    per_node = job.get("ntasks-per-node")
    if per_node is not None and per_node.isdigit():
        found |= {"SLURM_NTASKS_PER_NODE": per_node, "SLURM_TASKS_PER_NODE": per_node}
        if nodes.isdigit():
            found["SLURM_NTASKS"] = job.get("ntasks", str(int(per_node[:9]) * int(nodes[:9])))
    elif "ntasks" in job:
        found["SLURM_NTASKS"] = job["ntasks"]
    gpus = gpus_per_node(job)
    if gpus is not None:
        found |= {"SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS_ON_NODE": gpus}
    return found


class _Reader:
    """Reads one text; one instance per call."""

    def __init__(self, form: Form, text: str, name: str, tables: FlagTables, version: str | None) -> None:
        self.form = form
        self.name = name
        self.tables = tables
        self.version = version
        self.text = text
        self.source = Source(form, name, text)
        self.positions: dict[Word, int] = {}

    def read(self, job: Mapping[str, str] | None) -> Source:
        if MARK in self.text:
            raise InputError(f"{self.name}: holds a NUL character, so it is not a shell text")
        script = Script(self.text, self.name, _slurm_variables(job) if job is not None else None)
        launch = find_launch(script, self.name)
        if launch is None:
            raise InputError(
                f"{self.name}: no command that starts a training was found; expected torchrun or python with a script"
            )
        source = self.source
        source.script = LAUNCHER if launch.submitter is not None else readable(launch.script.text)
        source.world_size = world_size(launch, job)
        environment = {**script.environment(), **launch.environment}
        for variable in _slurm_variables(job or {}):
            environment.pop(variable, None)
        source.env = environment or None
        source.remarks += slurm_remarks(launch, job, self.place(launch.place, 1))
        if launch.submitter is not None:
            self.source.bridge_hints.append((">=0.6.dev0", "train.sh is there from 0.6 on"))
        if launch.submitter is not None or launch.script.text.rpartition("/")[2] == LAUNCHER:
            self.launcher(launch)
        else:
            self.own_script(launch)
        if source.base_unknown is not None:
            source.recipe = None
        return source

    def place(self, word: Word, position: int) -> Location:
        if self.form == "sbatch":
            return Location(self.name, word.line, word.column)
        return Location(None, None, position)

    def own_script(self, launch: Launch) -> None:
        """A script of the user's own: the config is built there; only `section.field=value` words are overrides."""
        script = launch.script.text.rpartition("/")[2]
        self.source.base_unknown = f"{readable(script)[:80]} builds the config; validate that file too"
        offset = len(launch.words) - len(launch.arguments)
        for index, word in enumerate(launch.arguments, start=offset + 1):
            if _SECTION_KEY.match(word.text):
                self.override(word, index)

    def launcher(self, launch: Launch) -> None:
        arguments = list(launch.arguments)
        places = {id(word): position for position, word in enumerate(launch.words, start=1)}
        positions = [places[id(word)] for word in arguments]
        version = self.version if self.version in self.tables else None
        version = version or self.fitting(arguments)
        table = self.tables[version]
        given, overrides = self.sort_out(arguments, positions, table, version)
        self.select_recipe(given, table)
        self.apply_flags(given, overrides, table, version)
        for word, position in overrides:
            self.override(word, position)

    def fitting(self, arguments: Sequence[Word]) -> str:
        """Return the release whose table knows most of the flags, the newest published one first."""
        published = newest_release()
        order = sorted(self.tables, key=lambda version: (version == published, Version(version)), reverse=True)
        return max(order, key=lambda version: (-self.misfits(arguments, version), -order.index(version)))

    def misfits(self, arguments: Sequence[Word], version: str) -> int:
        table = self.tables[version]
        wrong = 0
        for index, word in enumerate(arguments):
            if not _is_flag(word.text):
                continue
            flag, equal, value = word.text.partition("=")
            full = _full_name(flag, table, version)
            if full is None:
                wrong += 1
            elif table[full].choices:
                chosen = value if equal else arguments[index + 1].text if index + 1 < len(arguments) else ""
                wrong += chosen not in table[full].choices and unknown_name(chosen) is None
        return wrong

    def sort_out(
        self, arguments: Sequence[Word], positions: Sequence[int], table: Mapping[str, FlagRule], version: str
    ) -> tuple[list[_Given], list[tuple[Word, int]]]:
        """Split the arguments into flags and overrides; what nobody can tell makes the base unknown."""
        given: list[_Given] = []
        overrides: list[tuple[Word, int]] = []
        index = 0
        while index < len(arguments):
            word = arguments[index]
            position = positions[index]
            index += 1
            if not _is_flag(word.text):
                if unknown_name(word.text.partition("=")[0]) is not None:
                    self.source.base_unknown = f"{readable(word.text)[:60]} may hold any flag or override"
                elif word.text:
                    overrides.append((word, position))
                continue
            flag, equal, inline = word.text.partition("=")
            full = _full_name(flag, table, version)
            takes_value = full is not None and table[full].kind != "flag"
            value: str | None = inline if equal else None
            following = arguments[index].text if index < len(arguments) else None
            bare = following is not None and not _is_flag(following) and "=" not in following
            if not equal and ((takes_value and following is not None) or (full is None and bare)):
                value = following
                index += 1
            self.hint(full or flag, value if takes_value else None)
            if full is None:
                self.ignored(flag, word, position, version)
                continue
            if takes_value and value is None:
                raise InputError(f"{self.where(word, position)}{flag} needs a value")
            given.append(_Given(full, word, position, value if takes_value else None))
        return given, overrides

    def where(self, word: Word, position: int) -> str:
        return f"{self.name}:{word.line}: " if self.form == "sbatch" else f"{self.name}: word {position}: "

    def ignored(self, flag: str, word: Word, position: int, version: str) -> None:
        known = [other for other, table in self.tables.items() if _full_name(flag, table, other) is not None]
        told = f"; releases that do: {', '.join(known)}" if known else ""
        self.source.remarks.append(
            Remark(
                "unknown-flag",
                f"The launcher of Megatron-Bridge {version} does not know {readable(flag)[:60]}{told}. It sets "
                "nothing, and the launcher stops at it.",
                location=self.place(word, position),
            )
        )

    def hint(self, flag: str, value: str | None) -> None:
        """Say which releases know a flag with its value, where that tells releases apart."""
        fits = []
        shown = flag
        for version, table in self.tables.items():
            full = _full_name(flag, table, version)
            choices = table[full].choices if full is not None else {}
            fits.append(full is not None and (not choices or value is None or value in choices or MARK in value))
            if choices and value is not None:
                shown = f"{flag} {shorten(readable(value), 40)}"
        span = _span(list(self.tables), fits)
        if span is not None:
            self.source.bridge_hints.append((span[0], f"flag {shown} is known {span[1]}"))

    def select_recipe(self, given: Sequence[_Given], table: Mapping[str, FlagRule]) -> None:
        mode = next((item.value for item in given if table[item.flag].kind == "mode"), None)
        for item in given:
            kind = table[item.flag].kind
            if kind not in ("recipe", "model") or item.value is None:
                continue
            reason = unknown_reason(item.value)
            self.source.recipe_location = self.place(item.word, item.position)
            if reason is not None:
                self.source.base_unknown = f"{item.flag} {reason}"
            elif kind == "recipe":
                self.source.recipe = item.value
            elif mode in _MODEL_TASKS:
                self.source.recipe = f"{item.value}_{_MODEL_TASKS[mode]}_config"
            else:
                self.source.base_unknown = f"{item.flag} {shorten(item.value, 60)} needs --mode to select a recipe"
        if self.source.recipe is None and self.source.base_unknown is None:
            self.source.base_unknown = "the launch line names no recipe"

    def apply_flags(
        self,
        given: Sequence[_Given],
        overrides: list[tuple[Word, int]],
        table: Mapping[str, FlagRule],
        version: str,
    ) -> None:
        """Apply the flags in the launcher's own order: dataset, then the fields; overrides come after."""
        dataset = next((item for item in reversed(given) if table[item.flag].kind == "dataset"), None)
        packing = next((item for item in given if item.flag == "--packed_sequence"), None)
        # Before 0.6 the sequence length is an argument of the recipe or of the dataset, not an override.
        argument = "-sl" not in table
        length = next((item for item in given if item.flag in ("-sl", "--seq_length")), None)
        self.packing_flag(packing, dataset, table)
        if dataset is not None:
            self.dataset_flag(dataset, packing, length, overrides, table, version)
        for item in given:
            rule = table[item.flag]
            if item is length and argument and dataset is None and self.source.recipe not in rule.recipes:
                if self.source.base_unknown is None:
                    self.source.remarks.append(self.no_effect("ignored-flag", item, rule))
                continue
            for path in rule.fields if rule.kind != "dataset" else ():
                self.assign(path, self.value(item, rule), item)

    def no_effect(self, rule_id: str, item: _Given, rule: FlagRule, fields: tuple[str, ...] = ()) -> Remark:
        where = self.place(item.word, item.position)
        return Remark(rule_id, f"{item.flag} has no effect here: it {rule.note}.", fields, where)

    def packing_flag(self, packing: _Given | None, dataset: _Given | None, table: Mapping[str, FlagRule]) -> None:
        if packing is None:
            return
        rule = table[packing.flag]
        if self.source.recipe in rule.recipes:
            self.source.base_unknown = f"{packing.flag} is passed to {self.source.recipe}, which builds its own dataset"
            return
        choice = table[dataset.flag].choices.get(dataset.value or "", {}) if dataset is not None else {}
        if "packed" not in choice and self.source.base_unknown is None:
            self.source.remarks.append(
                self.no_effect("packing-flag-had-no-effect", packing, rule, ("dataset.packed_sequence_specs",))
            )

    def dataset_flag(
        self,
        dataset: _Given,
        packing: _Given | None,
        length: _Given | None,
        overrides: list[tuple[Word, int]],
        table: Mapping[str, FlagRule],
        version: str,
    ) -> None:
        """Emit what the chosen preset makes of the dataset section."""
        name = dataset.value or ""
        reason = unknown_reason(name)
        if reason is not None:
            self.assign("dataset", Unknown(f"--dataset {reason}"), dataset)
            return
        choices = table[dataset.flag].choices
        if name not in choices:
            raise InputError(
                f"{self.where(dataset.word, dataset.position)}{dataset.flag} {shorten(name, 40)} is not a dataset of "
                f"Megatron-Bridge {version}; it has {', '.join(sorted(choices))}"
            )
        choice = choices[name]
        if "unknown" in choice:
            self.assign("dataset", Unknown(choice["unknown"]), dataset)
            return
        if "replaces" in choice:
            self.assign("dataset", {"_target_": choice["replaces"]}, dataset)
        asked = packing is not None and "packed" in choice
        implied = {**choice.get("sets", {}), **choice.get("packed" if asked else "unpacked", {})}
        if "packed" in choice:
            implied["dataset.dataset_name"] = self.preset_name(overrides)
        recipe = find_recipe(self.source.recipe, version) if self.source.recipe is not None else None
        for path, value in implied.items():
            self.assign(path, self.length_of(length, recipe, table) if value == _SEQUENCE_LENGTH else value, dataset)
        if not asked and "unpacked" in choice:
            self.drops_packing(dataset, packing, recipe, overrides, choice)

    def preset_name(self, overrides: list[tuple[Word, int]]) -> Plain | Unknown:
        """Take the `dataset.dataset_name=` override, which the launcher uses up to choose the preset."""
        for item in overrides:
            key, _, value = item[0].text.partition("=")
            if key == "dataset.dataset_name":
                overrides.remove(item)
                reason = unknown_reason(value)
                return Unknown(reason) if reason is not None else value
        return "squad"

    def length_of(self, length: _Given | None, recipe: Recipe | None, table: Mapping[str, FlagRule]) -> Plain | Unknown:
        if length is not None:
            return self.value(length, table[length.flag])
        if recipe is not None and "model.seq_length" in recipe.values:
            return recipe.values["model.seq_length"]
        return Unknown("is the recipe's model.seq_length")

    def drops_packing(
        self,
        dataset: _Given,
        packing: _Given | None,
        recipe: Recipe | None,
        overrides: Sequence[tuple[Word, int]],
        choice: Mapping[str, Any],
    ) -> None:
        """Remark that the preset switches the recipe's packing off, unless an override asks for packing."""
        switch = "dataset.enable_offline_packing"
        specs = next(path for path in choice["unpacked"] if path.endswith("_specs"))
        asked = any(word.text.lstrip("+").startswith((switch, specs)) for word, _ in overrides)
        packs = recipe is None or recipe.values.get(switch) is True
        if packing is not None or asked or not packs:
            return
        new = switch in choice["unpacked"]
        how = f"{switch}=true" if new else "--packed_sequence" if "packed" in choice else f"overrides of {specs}"
        self.source.remarks.append(
            Remark(
                "dataset-flag-drops-packing",
                f"--dataset {dataset.value} builds a new dataset with packing off, whatever the recipe had; "
                f"add {how} to pack.",
                (switch if new else specs,),
                self.place(dataset.word, dataset.position),
                {switch: True} if new else {},
            )
        )

    def value(self, item: _Given, rule: FlagRule) -> Plain | Unknown:
        if rule.kind == "flag":
            return True
        text = item.value or ""
        reason = unknown_reason(text)
        if reason is not None:
            return Unknown(reason)
        try:
            if rule.kind == "int":
                return int(text)
            if rule.kind == "float":
                return float(text)
        except ValueError:
            wanted = "a whole number" if rule.kind == "int" else "a number"
            where = self.where(item.word, item.position)
            raise InputError(f"{where}{item.flag} needs {wanted}, not '{shorten(text, 40)}'") from None
        if rule.kind == "bool":
            return text.lower() in ("1", "true", "yes")
        return text

    def assign(self, path: str, value: Plain | Unknown, item: _Given) -> None:
        self.source.assignments.append(Assignment(path, value, self.place(item.word, item.position)))

    def override(self, word: Word, position: int) -> None:
        """Parse one override word; one that depends on an unknown variable sets its field to unknown."""
        text = word.text
        where = self.place(word, position)
        self.source.override_tokens.append(readable(text))
        reason = unknown_reason(text)
        if reason is None:
            try:
                self.source.assignments += parse_override(text, where)
            except InputError as error:
                raise InputError(f"{self.where(word, position)}{error}") from None
            return
        found = parse_override(text.partition("=")[0] + "=0", where)
        self.source.assignments += [Assignment(item.path, Unknown(reason), where, item.operation) for item in found]


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NUMBER.match(text)


def _full_name(flag: str, table: Mapping[str, FlagRule], version: str) -> str | None:
    """Return the flag's name in the table, also for a unique beginning where the release takes that."""
    if flag in table:
        return flag
    if not flag.startswith("--") or len(flag) < 4 or Version(version) >= _NO_ABBREVIATIONS:
        return None
    starting = [name for name in table if name.startswith(flag)]
    return starting[0] if len(starting) == 1 else None


def _span(versions: Sequence[str], fits: Sequence[bool]) -> tuple[str, str] | None:
    """Return a specifier and words for one unbroken run of fitting releases, None when it tells nothing."""
    if all(fits) or not any(fits):
        return None
    first = fits.index(True)
    last = len(fits) - 1 - list(reversed(fits)).index(True)
    if not all(fits[first : last + 1]):
        return None
    series = [".".join(version.split(".")[:2]) for version in versions]
    if last + 1 == len(versions):
        return f">={series[first]}", f"from {series[first]} on"
    if first == 0:
        return f"<{series[last + 1]}", f"only before {series[last + 1]}"
    return f">={series[first]},<{series[last + 1]}", f"only from {series[first]} to {series[last]}"
