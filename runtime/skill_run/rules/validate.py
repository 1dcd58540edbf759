"""`validate_config`: one call from any form of config to a report of every problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from skill_run.bridge import recipes
from skill_run.bridge.families import architecture_of
from skill_run.bridge.release import known_releases, load_release, matches
from skill_run.bridge.version import Evidence, choose
from skill_run.bundle.load import house_folder, load_house_rules, load_rules
from skill_run.config.config import Config
from skill_run.config.hf import read_model
from skill_run.config.model import Assignment, Form, Import, Location, Remark, Source
from skill_run.config.read import read_source, read_started_script
from skill_run.config.repair import apply_launcher_repairs
from skill_run.config.resolve import evidence_names, resolve
from skill_run.config.typing import INT64, shown
from skill_run.errors import InputError
from skill_run.report.finding import BridgeChoice, ValidationReport
from skill_run.rules.evaluate import Evaluation, RuleSet, order, upstream_verdict

RENAMED: Final = "renamed-field"

ConfigSource = str | Path | Mapping[str, Any]


@cache
def bundle_rules() -> RuleSet:
    """Return the bundle's own rules, compiled once per process."""
    return RuleSet(load_rules())


def rule_set(source: ConfigSource | None, rules: str | Path | None) -> RuleSet:
    """Return the bundle's rules plus a team's own: those in `rules`, else those near the config."""
    folder = Path(rules) if rules is not None else house_folder(_path_of(source))
    own = bundle_rules()
    if folder is None:
        return own
    return RuleSet([*own.rules, *load_house_rules(folder, own.by_id)])


def _path_of(source: ConfigSource | None) -> Path | None:
    if isinstance(source, Path):
        return source
    if isinstance(source, str) and "\n" not in source and len(source) < 4096:
        path = Path(source)
        try:
            return path if path.is_file() else None
        except (OSError, ValueError):
            return None
    return None


def validate_config(
    source: ConfigSource | None,
    *,
    bridge: str | None = None,
    world_size: int | None = None,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    model: str | None = None,
    env: Mapping[str, str] | None = None,
    rules: str | Path | None = None,
    te: str | None = None,
    gpu: str | None = None,
    form: Form | None = None,
) -> ValidationReport:
    """Judge a config by every rule of the bundle and of the team.

    source: path, text or mapping of any supported form; None when only a recipe and overrides are given.
    bridge: Megatron-Bridge version ("0.6.2", "main"); without it the installed, implied or newest one.
    world_size: number of ranks (GPUs). recipe: name of a recipe function that the rest is laid over. overrides:
    Hydra-style `section.field=value` tokens. model: Hugging Face folder, config.json or id. env: environment of the
    run. rules: folder of house rules. te: Transformer Engine version. gpu: GPU type such as "h100". form: what `source`
    is, when it is text.

    Raises InputError when the input cannot be read or used, BundleError when a house rule is wrong.
    """
    return judge(
        source,
        rules=rule_set(source, rules),
        bridge=bridge,
        world_size=world_size,
        recipe=recipe,
        overrides=overrides,
        model=model,
        env=env,
        te=te,
        gpu=gpu,
        form=form,
    )


def judge(
    source: ConfigSource | None,
    *,
    rules: RuleSet,
    bridge: str | None = None,
    world_size: int | None = None,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    model: str | None = None,
    env: Mapping[str, str] | None = None,
    te: str | None = None,
    gpu: str | None = None,
    form: Form | None = None,
) -> ValidationReport:
    """Judge a config by an explicit rule set; see validate_config."""
    sources = read_sources(source, bridge=bridge, recipe=recipe, overrides=overrides, form=form)
    return judge_sources(
        sources, rules, bridge=bridge, recipe=recipe, model=model, world_size=world_size, env=env, te=te, gpu=gpu
    )


def judge_sources(sources: Sequence[Source], rules: RuleSet, **settings: Any) -> ValidationReport:
    """Judge sources that are read already; settings as in build_config.

    Names of another generation are dropped by upstream, and what they meant to set is judged too, as if they were
    renamed, so that one call tells every problem.
    """
    config = build_config(sources, **settings)
    report = report_on(config, rules, sources[0].name)
    renamed = [finding for finding in report.findings if finding.rule == RENAMED and finding.fix]
    if not renamed:
        return report
    gone = {path for finding in renamed for path in finding.fields}
    kept = [replace(s, assignments=[a for a in s.assignments if a.path not in gone], remarks=[]) for s in sources]
    moved = [Assignment(path, value) for finding in renamed for path, value in finding.fix.items()]
    settings = {**settings, "bridge": settings.get("bridge") or config.choice.version}
    renamed_source = Source(form="overrides", name="renamed", assignments=moved)
    try:
        after = report_on(build_config([*kept, renamed_source], **settings), rules, report.source)
    except InputError:
        # A value that fits no field: the name comes first, and the value is told once it has the right name.
        return report
    known = {finding.rule for finding in report.findings}
    better = {path: value for f in after.findings if not f.fix_is_semantic for path, value in f.fix.items()}
    findings = [
        replace(f, fix={path: better.get(path, value) for path, value in f.fix.items()}) if f.rule == RENAMED else f
        for f in report.findings
    ]
    findings += [finding for finding in after.findings if finding.rule not in known]
    return replace(report, findings=tuple(sorted(findings, key=order)))


def read_sources(
    source: ConfigSource | None,
    *,
    bridge: str | None = None,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    form: Form | None = None,
    folder: Path | None = None,
) -> list[Source]:
    """Read the input and the overrides laid over it, in the order in which they apply.

    folder: where the script of a launch line is looked for when the line comes as text; a launch file is followed to
    the script beside it anyway.
    """
    found: list[Source] = []
    if recipe is not None and not recipe.strip():
        raise InputError("the recipe name is empty")
    if source is not None:
        found.append(read_source(source, bridge=bridge, form=form))
        path = _path_of(source)
        script = read_started_script(found[0], path.parent if path is not None else folder)
        if script is not None:
            # The script builds the config; the launch file adds ranks, environment and overrides.
            script.name = found[0].name
            found[0].base_unknown = None
            found.insert(0, script)
    if overrides:
        from skill_run.config.overrides import read_overrides

        found.append(read_overrides(list(overrides), name="overrides"))
    if not found:
        if recipe is None:
            raise InputError("nothing to validate: give a config file, a recipe name or overrides")
        found.append(Source(form="recipe", name=recipe))
    return found


def build_config(
    sources: Sequence[Source],
    *,
    bridge: str | None = None,
    recipe: str | None = None,
    model: str | None = None,
    world_size: int | None = None,
    env: Mapping[str, str] | None = None,
    te: str | None = None,
    gpu: str | None = None,
) -> Config:
    """Choose the release and resolve the sources over their recipe."""
    if world_size is not None:
        _check_world_size(world_size)
    name = recipe or next((source.recipe for source in sources if source.recipe), None)
    choice = choose(bridge, evidence_of(sources, name))
    found = recipes.find_recipe(name, choice.release) if name else None
    config = resolve(
        sources,
        choice,
        recipe=found,
        recipe_name=name,
        model=model,
        model_facts={
            **architecture_of(model or (found.hf_model if found else None)),
            **(read_model(model) if model else {}),
        },
    )
    if name is not None and found is None:
        where = next((source.recipe_location for source in sources if source.recipe == name), None)
        config.remarks += _recipe_remarks(name, choice, where)
    config.remarks += _import_remarks(sources, choice)
    if config.base == "unknown":
        near = recipes.nearest_recipe(name, choice.release) if name is not None and found is None else None
        message = (
            f"The starting point is not known: {config.base_text}{f' (nearest there: {near})' if near else ''}. "
            "What the input does not set could not be checked."
        )
        config.remarks.append(Remark("base-config-unknown", message, (), sources[0].recipe_location))
    _take_run(config, found, world_size, env, te, gpu)
    apply_launcher_repairs(config, sources)
    return config


def _check_world_size(world_size: object) -> None:
    whole = isinstance(world_size, int) and not isinstance(world_size, bool)
    if not whole or not 1 <= world_size <= INT64:  # type: ignore[operator]
        raise InputError(
            f"the world size must be a whole number of at least 1 and below 2**63, not {shown(world_size)}"
        )


def report_on(config: Config, rules: RuleSet, name: str) -> ValidationReport:
    """Evaluate a resolved config and collect the report."""
    findings, undecided, applied = Evaluation(config, rules).run()
    return ValidationReport(
        source=name,
        bridge=config.choice,
        world_size=config.world_size,
        base=config.base_text,
        upstream_validate=upstream_verdict(findings, undecided, rules, config),
        findings=tuple(findings),
        not_checked=tuple(undecided),
        rules_checked=applied - len(undecided),
    )


def evidence_of(sources: Sequence[Source], recipe: str | None) -> Evidence:
    """Return what sources tell about the release that they are written for."""
    names, dataset_type = evidence_names(sources)
    hints = [hint for source in sources for hint in source.bridge_hints]
    if recipe is not None:
        having = recipes.releases_with(recipe)
        if having and len(having) < len(known_releases()):
            hints.append((_span(having), f"recipe {recipe}"))
    hints += [hint for source in sources for item in source.imports for hint in _import_hints(item.module, item.symbol)]
    complete = sources[0].form == "container" and len(sources[0].assignments) >= 200
    return Evidence(names, dataset_type, hints, complete)


def _span(versions: Sequence[str]) -> str:
    """Return a specifier for recorded releases, in their order, that leaves out the ones between them."""
    known = known_releases()
    between = known[known.index(versions[0]) : known.index(versions[-1])]
    without = [f"!={version}" for version in between if version not in versions]
    return ",".join([f">={versions[0]}", f"<={versions[-1]}", *without])


def _moved(module: str, symbol: str | None) -> Iterable[dict[str, Any]]:
    from skill_run.bridge.release import index

    for entry in index()["moved_classes"]:
        if symbol == entry["symbol"] and module in (entry["old"], entry["new"]):
            yield entry
            return
    for entry in index()["moved_modules"]:
        for key in ("old", "new"):
            path = entry[key]
            if path is not None and (module == path or module.startswith(path + ".")):
                yield entry
                return


def _fits(module: str, entry: Mapping[str, Any], version: str) -> bool:
    """Tell whether a module of a moved-import entry exists in a release."""
    inside = matches(entry["bridge"], version)
    old, new = entry["old"], entry["new"]
    if old is not None and (module == old or module.startswith(old + ".")):
        return not inside
    if old is None:
        return not inside
    return inside or new == old


def _import_hints(module: str, symbol: str | None) -> Iterable[tuple[str, str]]:
    for entry in _moved(module, symbol):
        having = [version for version in known_releases() if _fits(module, entry, version)]
        if having and len(having) < len(known_releases()):
            yield _span(having), f"import of {module}"


def _import_remarks(sources: Sequence[Source], choice: BridgeChoice) -> list[Remark]:
    found: list[Remark] = []
    for source in sources:
        for item in source.imports:
            for entry in _moved(item.module, item.symbol):
                if _fits(item.module, entry, choice.version) or _has_alternative(item, source, choice.version):
                    continue
                instead = entry.get("instead") or (
                    entry["new"] if matches(entry["bridge"], choice.version) else entry["old"]
                )
                found.append(
                    Remark(
                        "wrong-import",
                        f"{item.module} does not exist in Megatron-Bridge {choice.version}, so the import raises "
                        f"ModuleNotFoundError; use {instead}.",
                        (),
                        item.location,
                    )
                )
    return found


def _has_alternative(item: Import, source: Source, version: str) -> bool:
    """Tell whether the file also imports the same name from where this release has it, as in `try ... except`."""
    others = [o for o in source.imports if o.symbol == item.symbol is not None and o.module != item.module]
    return any(
        entry is not None and _fits(other.module, entry, version)
        for other in others
        for entry in [next(iter(_moved(other.module, other.symbol)), None)]
    )


def _recipe_remarks(name: str, choice: BridgeChoice, where: Location | None) -> list[Remark]:
    if not recipes.is_recorded_in_full(name):
        return []
    location = where or Location()
    having = recipes.releases_with(name)
    near = recipes.nearest_recipe(name, choice.release)
    if having:
        told = f"Recipe {name} exists in Megatron-Bridge {', '.join(having)}, not in {choice.release}."
        return [Remark("unknown-recipe", told + (f" Nearest here: {near}." if near else ""), (), location)]
    if near is not None:
        return [
            Remark(
                "unknown-recipe",
                f"Megatron-Bridge {choice.release} has no recipe {name}; did you mean {near}?",
                (),
                location,
            )
        ]
    return []


def _take_run(
    config: Config,
    recipe: recipes.Recipe | None,
    world_size: int | None,
    env: Mapping[str, str] | None,
    te: str | None,
    gpu: str | None,
) -> None:
    if world_size is not None:
        config.world_size = world_size
    if env is not None:
        config.env_complete = True
    config.env = {**(recipe.env if recipe else {}), **(config.env or {}), **(env or {})}
    config.te = _te_version(te or config.te)
    config.gpu = (gpu or config.gpu or "").lower() or None


def _te_version(told: str | None) -> str | None:
    if told is None:
        return None
    try:
        return str(Version(told))
    except (ValueError, TypeError) as error:
        raise InputError(f"{shown(told)} is not a Transformer Engine version such as 2.10") from error


def release_of(config: Config) -> str:
    """Return the paired Megatron Core release of a config's Bridge release."""
    return load_release(config.choice.release).core
