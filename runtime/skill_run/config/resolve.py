"""Sources in written names to one Config in canonical names, for one Megatron-Bridge release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from skill_run.bridge import names
from skill_run.bridge.families import family_of
from skill_run.bridge.recipes import Recipe
from skill_run.bridge.release import by_version, index, load_release, matches
from skill_run.config.config import BaseKind, Config
from skill_run.config.model import CONDITION, NOWHERE, Assignment, Plain, Remark, Source, State, Unknown, Value
from skill_run.config.typing import INT64, check_value, shown
from skill_run.config.unknown import unknown_remarks
from skill_run.errors import InputError
from skill_run.report.finding import BridgeChoice

RUN_COUNTS = ("world_size", "gpu_memory_gib", "tokens_per_rank", "max_tokens_per_rank")
PSEUDO_FIELDS = frozenset({*RUN_COUNTS, "te", "gpu", "mcore_version"})
_SECTION_TYPES = {"dataset", "model", "peft"}
_GPT_MODEL_TYPES = {None, "GPTModelProvider"}
_NULL_AT_FIRST = {"dataset.offline_packing_specs", "comm_overlap", "peft"}


def evidence_names(sources: Iterable[Source]) -> tuple[list[str], str | None]:
    """Return the written field names of the sources, and the dataset class they name."""
    found: list[str] = []
    dataset_type: str | None = None
    for source in sources:
        for assignment in source.assignments:
            if assignment.path in ("dataset._target_", "dataset.type"):
                dataset_type = _class_name(assignment.value) or dataset_type
            elif assignment.path == "dataset" and isinstance(assignment.value, dict):
                dataset_type = _class_name(assignment.value.get("_target_")) or dataset_type
            elif "." in assignment.path and not assignment.path.endswith("._target_") and not conditional(assignment):
                found.append(assignment.path)
    return found, dataset_type


def conditional(assignment: Assignment) -> bool:
    """Tell whether only some path of the user's code makes this assignment."""
    return isinstance(assignment.value, Unknown) and assignment.value.reason.startswith(CONDITION)


def resolve(
    sources: Sequence[Source],
    choice: BridgeChoice,
    *,
    recipe: Recipe | None,
    recipe_name: str | None,
    model: str | None = None,
    model_facts: Mapping[str, Plain] | None = None,
) -> Config:
    """Resolve sources, in order (later wins), over a recipe or the release's defaults.

    model_facts: canonical architecture fields read from a model's config.json. Raises InputError when values have the
    wrong type or are out of range; names that the release does not have become remarks.
    """
    release = load_release(choice.release)
    primary = sources[0]
    leaves = sum(len(source.assignments) for source in sources)
    complete = primary.form == "container" and leaves >= 200
    base: BaseKind = "defaults"
    text = f"dataclass defaults of {release.version} for what the input does not set"
    reasons = [source.base_unknown for source in sources if source.base_unknown]
    if recipe is not None and recipe.values:
        base, text = "recipe", f"recipe {recipe.name} of {release.version}"
    elif recipe is not None:
        base, text = "unknown", f"what recipe {recipe.name} of {release.version} sets is not recorded"
    elif reasons:
        base, text = "unknown", reasons[0]
    elif recipe_name is not None:
        base, text = "unknown", f"recipe {recipe_name} is not in the catalogue of {release.version}"
    elif complete:
        base, text = "complete", "the input is a full config"
    config = Config(
        choice=choice,
        release=release,
        base=base,
        base_text=text,
        final=complete or primary.form in ("python", "command", "sbatch", "container"),
    )
    if recipe is not None:
        for name, value in recipe.values.items():
            config.values[name] = Value(State.SET, value, primary.recipe_location, reason="recipe")
    for name, value in (model_facts or {}).items():
        config.values.setdefault(name, Value(State.SET, value, reason="model"))
    _Resolver(config, sources, recipe, model).run()
    return config


def _class_name(value: object) -> str | None:
    return value.rpartition(".")[2] if isinstance(value, str) and value else None


class _Resolver:
    """Applies assignments in order; one instance per resolve call."""

    def __init__(self, config: Config, sources: Sequence[Source], recipe: Recipe | None, model: str | None) -> None:
        self.config = config
        self.release = config.release
        self.sources = sources
        self.recipe = recipe
        self.model = model
        self.problems: list[str] = []
        self.unknown: dict[str, list[Assignment]] = {}
        self.seen: dict[str, Assignment] = {}

    def run(self) -> None:
        config = self.config
        _, explicit = evidence_names(self.sources)
        recipe_type = self.recipe.values.get("dataset.type") if self.recipe else None
        config.dataset_type = explicit or (str(recipe_type) if recipe_type else None) or self.hinted_type()
        if self.recipe is not None:
            config.model_type = self.recipe.provider
        for source in self.sources:
            self.take_environment(source)
            for assignment in source.assignments:
                if assignment.value == {} and source.form == "python":
                    # In code a mapping is replaced, in a file it is merged.
                    self.forget(self.canonical(assignment.path))
                self.apply(assignment)
            config.remarks.extend(source.remarks)
        if config.dataset_type is not None and "dataset.type" not in config.values:
            config.values["dataset.type"] = Value(State.UNSET, config.dataset_type)
        if config.model_type is not None:
            config.values.setdefault("model.type", Value(State.SET, config.model_type))
        config.remarks += unknown_remarks(self.unknown, config, frozenset(self.seen))
        if self.problems:
            more = f" (and {len(self.problems) - 1} more such values)" if len(self.problems) > 1 else ""
            raise InputError(self.problems[0] + more)
        model_type = config.values.get("hf.model_type")
        config.model_named = bool(config.model_type or self.model or (self.recipe and self.recipe.hf_model))
        config.family = family_of(
            recipe=self.recipe.name if self.recipe else next((s.recipe for s in self.sources if s.recipe), None),
            provider=config.model_type,
            model=self.model or (self.recipe.hf_model if self.recipe else None),
            model_type=str(model_type.value) if model_type and model_type.value else None,
        )

    def hinted_type(self) -> str | None:
        given = [a.path for source in self.sources for a in source.assignments]
        canonical = {names.to_canonical(path, version) for path in given for version in (self.release.version, "0.5.1")}
        for hint in index()["dataset_hints"]:
            if any(name == hint["field"] or name.startswith(hint["field"] + ".") for name in canonical):
                return str(by_version(hint["class"], self.release.version))
        return None

    def take_environment(self, source: Source) -> None:
        config = self.config
        if isinstance(source.world_size, int):
            config.world_size = source.world_size
        if source.env is not None:
            config.env = {**(config.env or {}), **source.env}
            config.env_complete = True

    def apply(self, assignment: Assignment) -> None:
        path, value = assignment.path, assignment.value
        path = index()["run_input_names"].get(path, path)
        if path.startswith(("env.", "env_vars.")) and value is not None:
            self.take_variable(path.partition(".")[2], value)
            if path.startswith("env."):
                return
        if path in PSEUDO_FIELDS:
            self.take_pseudo(path, value)
            return
        if assignment.operation == "delete":
            self.remark(
                "override-has-no-effect",
                f"`~{path}` removes the key from the override dictionary only; the config keeps its old value.",
                assignment,
            )
            return
        section = path.partition(".")[0]
        if path.endswith("._target_") or (
            path.endswith(".type") and section in _SECTION_TYPES and path.count(".") == 1
        ):
            self.take_class(path.rpartition(".")[0], assignment)
            return
        if isinstance(value, dict) and "_target_" in value:
            self.replace(path, assignment)
            return
        if isinstance(value, dict) and value and not names.is_free_form(path):
            for key, inner in value.items():
                self.apply(Assignment(f"{path}.{key}", inner, assignment.location, assignment.operation))
            return
        if path == section or self.canonical(path) == "dataset.offline_packing_specs":
            self.take_whole(path, assignment)
            return
        self.take_field(assignment)

    def canonical(self, path: str) -> str:
        return names.to_canonical(path, self.release.version, self.config.dataset_type)

    def take_variable(self, name: str, value: Plain | Unknown) -> None:
        """An environment variable that the config itself sets; what the shell sets wins."""
        if isinstance(value, str | int | float):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self.config.env = {name: text, **(self.config.env or {})}

    def take_pseudo(self, path: str, value: Plain | Unknown) -> None:
        config = self.config
        if isinstance(value, Unknown) or value is None:
            return
        if path in RUN_COUNTS:
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= INT64:
                self.problems.append(f"{path} must be a whole number of at least 1 and below 2**63, not {shown(value)}")
                return
            setattr(config, path, value)
        elif not isinstance(value, str):
            self.problems.append(f"{path} must be text in quotes, not {shown(value)}")
        elif path == "te":
            config.te = value
        elif path == "gpu":
            config.gpu = value.lower()

    def take_class(self, path: str, assignment: Assignment) -> None:
        cls = _class_name(assignment.value)
        if isinstance(assignment.value, Unknown) or cls is None:
            return
        if path == "dataset":
            self.config.dataset_type = cls
            self.config.values["dataset.type"] = Value(State.SET, cls, assignment.location, "dataset")
        elif path == "model":
            self.config.model_type = cls
            self.config.values["model.type"] = Value(State.SET, cls, assignment.location, "model")
        else:
            canonical = self.canonical(path)
            self.config.values[f"{canonical}.type"] = Value(State.SET, cls, assignment.location, path)
            self.drop_null_parent(canonical + ".type")

    def replace(self, path: str, assignment: Assignment) -> None:
        value = assignment.value
        assert isinstance(value, dict)
        canonical = self.canonical(path)
        self.forget(canonical)
        self.config.unknown_prefixes.pop(canonical, None)
        if path == "dataset":
            self.config.dataset_replaced = True
        self.take_class(path, Assignment(path, value["_target_"], assignment.location))
        for key, inner in value.items():
            if not key.startswith("_"):
                self.apply(Assignment(f"{path}.{key}", inner, assignment.location))

    def forget(self, canonical: str) -> None:
        for name in [n for n in self.config.values if n == canonical or n.startswith(canonical + ".")]:
            del self.config.values[name]

    def take_whole(self, path: str, assignment: Assignment) -> None:
        """A section or the packing specs assigned as one value: null, a name, or something unknown."""
        canonical = self.canonical(path)
        if isinstance(assignment.value, Unknown):
            self.forget(canonical)
            self.config.unknown_prefixes[canonical] = assignment.value.reason
            return
        known = path in self.release.sections or canonical == "dataset.offline_packing_specs"
        if not known or (canonical == "dataset.offline_packing_specs" and self.field_missing(path)):
            self.unknown.setdefault(path, []).append(assignment)
            return
        if assignment.value == {}:
            return
        by_name = path in self.release.optional_sections
        if assignment.value is not None and not (by_name and isinstance(assignment.value, str)):
            wanted = "a name or a mapping" if by_name else "a mapping"
            self.problems.append(
                f"{self.prefix(assignment)}{path} is {shown(assignment.value)}, but it must be {wanted}"
            )
            return
        self.forget(canonical)
        self.config.values[canonical] = Value(State.SET, assignment.value, assignment.location, path)

    def field_missing(self, path: str) -> bool:
        return self.release.field(path, self.config.dataset_type) is None and not names.is_free_form(path)

    def drop_null_parent(self, canonical: str) -> None:
        parent = canonical.rpartition(".")[0]
        while parent:
            held = self.config.values.get(parent)
            if held is not None and held.value is None and held.state is not State.UNKNOWN:
                del self.config.values[parent]
            parent = parent.rpartition(".")[0]

    def take_field(self, assignment: Assignment) -> None:
        path = assignment.path
        canonical = self.canonical(path)
        spec = self.release.field(path, self.config.dataset_type)
        if spec is None and not self.has_own_type(path):
            if self.tolerated(path):
                self.check_override(assignment, canonical)
                self.config.values[path] = self.value_of(assignment)
                return
            if conditional(assignment):
                # A branch for another release: nothing says that it runs on this one.
                return
            if path not in self.names_read_on_any_dataset():
                self.unknown.setdefault(path, []).append(assignment)
                return
        if spec is None:
            spec = names.canonical_field(canonical)
        self.check_override(assignment, canonical)
        held = self.value_of(assignment)
        if assignment.operation != "set" and spec is not None and spec.kind == "dtype" and isinstance(held.value, str):
            self.remark(
                "dtype-given-as-text",
                f"{path} is a torch.dtype, but an override gives the text '{held.value}', which stays text unless "
                "the launcher maps it; set the dtype in Python and check the resolved config.",
                assignment,
            )
        if held.state is State.SET and spec is not None:
            value, problem = check_value(canonical, held.value, spec)
            if problem is not None:
                self.problems.append(f"{self.prefix(assignment)}{path} {problem}")
                return
            held = Value(State.SET, value, held.location, path, as_list=isinstance(held.value, list))
        if canonical == "model.cuda_graph_modules" and path != canonical and held.value is None:
            return
        if path in index()["second_names"]:
            self.config.values[path] = held
            first = self.seen.get(canonical)
            if first is not None and first.path == canonical:
                return
        self.note_duplicate(assignment, canonical)
        self.drop_null_parent(canonical)
        self.config.values[canonical] = held

    def names_read_on_any_dataset(self) -> set[str]:
        """Return, as this release spells them, the fields upstream reads whether or not the dataset class has them."""
        spellings = {
            (names.to_written(canonical, self.release.version, cls), cls)
            for canonical in index()["fields_read_on_any_dataset"]
            for cls in self.release.datasets
        }
        return {path for path, cls in spellings if self.release.field(path, cls) is not None}

    def has_own_type(self, path: str) -> bool:
        section = path.partition(".")[0]
        free_form = names.is_free_form(path) and (section == "hf" or section in self.release.sections)
        return free_form or path in index()["kwargs"] or names.is_alias(path, self.release.version)

    def value_of(self, assignment: Assignment) -> Value:
        if isinstance(assignment.value, Unknown):
            return Value(State.UNKNOWN, None, assignment.location, assignment.path, assignment.value.reason)
        return Value(State.SET, assignment.value, assignment.location, assignment.path)

    def prefix(self, assignment: Assignment) -> str:
        where = assignment.location
        return f"{where}: " if where.file is not None else ""

    def tolerated(self, path: str) -> bool:
        """Tell whether an unlisted name may be a field that only some provider or optional section has."""
        section, _, leaf = path.partition(".")
        if not leaf or section not in self.release.sections:
            return False
        if leaf.startswith("_") or self.inside_known_field(path):
            return True
        if section == "dataset":
            known_class = self.config.dataset_type in self.release.datasets
            return (
                not known_class
                and self.config.dataset_type is not None
                and names.nearest(path, self.release.version) is None
            )
        if not any(name.startswith(section + ".") for name in self.release.fields) or section in (
            "peft",
            "comm_overlap",
        ):
            return True
        provider_known = self.config.model_type is not None or self.config.base in ("defaults", "complete")
        if section == "model" and not (provider_known and self.config.model_type in _GPT_MODEL_TYPES):
            return not names.other_releases(path) and names.nearest(path, self.release.version) is None
        return False

    def inside_known_field(self, path: str) -> bool:
        """Tell whether a path goes into a field that holds an object this tool does not look into."""
        parent = path.rpartition(".")[0]
        while "." in parent:
            spec = self.release.field(parent, self.config.dataset_type)
            if spec is not None and spec.kind in ("any", "map"):
                return True
            parent = parent.rpartition(".")[0]
        return False

    def check_override(self, assignment: Assignment, canonical: str) -> None:
        """Hydra's own refusals (`+key` that exists, a key below null or below a name), and what `++` makes of null."""
        path = assignment.path
        if assignment.operation == "add" and self.holds_value(path, canonical):
            self.remark(
                "override-fails",
                f"`+{path}=` adds a key, but the config already has it, so Hydra refuses; "
                f"write `{path}=` or `++{path}=`.",
                assignment,
            )
        parent = canonical.rpartition(".")[0]
        written = self.config.written(parent)
        held = self.config.values.get(parent)
        if assignment.operation == "override" and held is not None and isinstance(held.value, str):
            self.remark(
                "override-fails",
                f"{written} is the name '{held.value}' in the config that this override is applied to, so Hydra "
                f"refuses `{path}=`; override {written} itself, or set the object in Python.",
                assignment,
            )
        if self.config.base == "unknown" or parent not in _NULL_AT_FIRST or self.config.is_given(parent) is not False:
            return
        certain = parent in self.config.values or self.config.base != "defaults"
        if certain and assignment.operation == "override":
            self.remark(
                "override-fails",
                f"{written} is null in the config that this override is applied to, so Hydra refuses `{path}=`. "
                f"{self.advice_below_null(parent, path)}",
                assignment,
            )
        elif certain and assignment.operation == "force" and not self.becomes_object(parent):
            self.remark(
                "override-makes-plain-dict",
                f"{written} is null in the config that this override is applied to, so `++{path}=` makes it a plain "
                f"mapping, not a config object. {self.advice_below_null(parent, path)}",
                assignment,
            )

    def becomes_object(self, parent: str) -> bool:
        """Tell whether upstream turns a plain mapping here back into its class (run_recipe.py, 0.6 and later)."""
        return parent == "dataset.offline_packing_specs" and matches(">=0.6.dev0", self.config.version)

    def advice_below_null(self, parent: str, path: str) -> str:
        if self.becomes_object(parent):
            return f"Write `++{path}=`."
        return f"Choose a recipe that sets {self.config.written(parent)}, or set it in Python."

    def holds_value(self, path: str, canonical: str) -> bool:
        """Tell whether the config surely has a value here that is not null, which is what `+` stops at."""
        if names.is_free_form(canonical):
            return False
        if canonical not in self.config.values:
            spec = self.release.field(path, self.config.dataset_type)
            section = path.partition(".")[0]
            sure = spec is not None and not spec.foreign and section not in self.release.optional_sections
            if not sure or (section == "dataset" and self.config.dataset_type is None):
                return False
        return self.config.get(canonical).value is not None

    def note_duplicate(self, assignment: Assignment, canonical: str) -> None:
        before = self.seen.get(canonical)
        self.seen[canonical] = assignment
        if before is None or isinstance(before.value, Unknown) or isinstance(assignment.value, Unknown):
            return
        if before.value == assignment.value or before.location == assignment.location != NOWHERE:
            return
        if before.path != assignment.path and canonical == "dataset.seq_length":
            return
        same_form = (before.operation == "set") == (assignment.operation == "set")
        in_code = any(source.form == "python" for source in self.sources)
        if same_form and not in_code:
            self.remark(
                "duplicate-assignment",
                f"{assignment.path} is given twice: {before.value} and then {assignment.value}; the last one wins.",
                assignment,
            )

    def remark(self, rule: str, message: str, assignment: Assignment) -> None:
        self.config.remarks.append(Remark(rule, message, (assignment.path,), assignment.location))
