"""What a worker is asked to rehearse: the base of the config, what is laid over it, and files on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from skill_run.bridge import recipes
from skill_run.bridge.models import hub_snapshot, model_config
from skill_run.bridge.release import index, load_release, read_data
from skill_run.config.model import Assignment, Source, Unknown
from skill_run.config.resolve import PSEUDO_FIELDS
from skill_run.config.tree import parse_tree, to_plain
from skill_run.errors import InputError

# Keys of a file that say how it is run and are no section of the config.
_ABOUT_THE_RUN: Final = frozenset({"recipe", "env", "bridge", *PSEUDO_FIELDS})
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(slots=True)
class Request:
    """The parts of a request that come from the config, and sentences for the user about them."""

    base: dict[str, Any]
    steps: list[dict[str, Any]]
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokenizer: str | None = None
    gpus: int | None = None
    notes: list[str] = field(default_factory=list)


def make_request(
    sources: Sequence[Source],
    *,
    release: str,
    recipe: str | None,
    model: str | None,
    tokenizer: str | None,
    original: Mapping[str, Any] | None,
) -> Request:
    """Return the request for sources that are read already, for the worker's release of Megatron-Bridge.

    model, tokenizer: the user's folders. original: the input, when it was a mapping. Raises InputError for a recipe
    that the release lacks, a model whose shape is not known, and a folder without tokenizer files.
    """
    name = recipe or next((source.recipe for source in sources if source.recipe), None)
    found = _recipe(name, release) if name is not None else None
    request = Request(base={}, steps=[])
    for source in sources:
        if found is None and source.form == "container":
            request.base = {"container": _container(source, original)}
        else:
            request.steps += _steps(source, release, request.notes)
    if found is not None:
        request.base = {"recipe": _function(found.name, release), "module": found.module}
        request.gpus = found.gpus
        if found.hf_model is not None:
            request.models[found.hf_model] = model_config(found.hf_model, model)
    elif not request.base:
        request.notes.append(
            "the config names no recipe and is no whole ConfigContainer, so a small GPT stands for what it leaves out"
        )
    _find_tokenizer(request, sources, found, tokenizer)
    return request


def _recipe(name: str, release: str) -> recipes.Recipe:
    found = recipes.find_recipe(name, release)
    if found is not None:
        return found
    near = recipes.nearest_recipe(name, release)
    hint = f"; the nearest is {near}" if near is not None else ""
    raise InputError(f"Megatron-Bridge {release} has no recipe {name[:200]}{hint}")


def _function(name: str, release: str) -> str:
    """Return the name of the function in the recipe's module, which may have other names elsewhere."""
    table: dict[str, Any] = read_data(f"recipes-{release}.json")
    return next((real for real, entry in table.items() if name in entry.get("aliases", ())), name)


def _container(source: Source, original: Mapping[str, Any] | None) -> Any:
    if source.text:
        return to_plain(parse_tree(source.text, source.name))
    return dict(original or {})


def _steps(source: Source, release: str, notes: list[str]) -> list[dict[str, Any]]:
    """Return what one source lays over the base: values of a file or of code, then override tokens."""
    steps: list[dict[str, Any]] = []
    plain = [a for a in source.assignments if a.operation == "set" and not _about_the_run(a)]
    unknown = [a for a in plain if isinstance(a.value, Unknown)]
    for assignment in unknown[:5]:
        assert isinstance(assignment.value, Unknown)
        notes.append(f"{assignment.path} is left as the base has it: its value {assignment.value.reason}")
    values = nested([a for a in plain if not isinstance(a.value, Unknown)], release)
    if values:
        kind = "code" if source.form in ("python", "command", "sbatch") else "yaml"
        steps.append({"kind": kind, "values": values})
    if source.override_tokens:
        steps.append({"kind": "overrides", "values": list(source.override_tokens)})
    return steps


def _about_the_run(assignment: Assignment) -> bool:
    head = assignment.path.partition(".")[0]
    return head in _ABOUT_THE_RUN or head in index()["run_input_names"]


def nested(assignments: Sequence[Assignment], release: str) -> dict[str, Any]:
    """Return assignments as nested mappings; classes named without a module get the release's module."""
    imports = load_release(release).imports
    root: dict[str, Any] = {}
    for assignment in assignments:
        *parents, leaf = assignment.path.split(".")
        value: Any = assignment.value
        if leaf == "type" and parents in (["dataset"], ["model"], ["peft"]):
            leaf = "_target_"
        if leaf == "_target_" and isinstance(value, str) and "." not in value:
            value = imports.get(value, value)
        owner = root
        for name in parents:
            held = owner.get(name)
            if not isinstance(held, dict):
                held = owner[name] = {}
            owner = held
        owner[leaf] = value
    return root


def _find_tokenizer(
    request: Request, sources: Sequence[Source], recipe: recipes.Recipe | None, given: str | None
) -> None:
    if given is not None:
        if not _has_tokenizer(Path(given)):
            raise InputError(f"{given[:200]} holds no tokenizer: there is none of {', '.join(_TOKENIZER_FILES)} in it")
        request.tokenizer = str(Path(given).absolute())
        return
    named = [a.value for s in sources for a in s.assignments if a.path == "tokenizer.tokenizer_model"]
    name = next((value for value in reversed(named) if isinstance(value, str)), recipe.hf_model if recipe else None)
    if name is None:
        return
    local = Path(name).expanduser()
    snapshot = (
        local if _has_tokenizer(local) else next(filter(None, (hub_snapshot(name, f) for f in _TOKENIZER_FILES)), None)
    )
    if snapshot is not None:
        request.tokenizer = str(snapshot.absolute())
        return
    request.notes.append(
        f"the tokenizer {name} is not on this machine, so lengths are those of a stand-in; --tokenizer DIR takes a "
        "folder with its tokenizer.json"
    )


def _has_tokenizer(folder: Path) -> bool:
    try:
        return any((folder / name).is_file() for name in _TOKENIZER_FILES)
    except (OSError, ValueError):
        return False
