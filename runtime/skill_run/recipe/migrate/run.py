"""`migrate_config`: read a config, plan what changes between two releases, write it back, and judge the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from skill_run.bridge.recipes import Recipe, find_recipe
from skill_run.bridge.version import implied, made_for, normalise, recorded_for
from skill_run.config.model import Form, Source
from skill_run.config.read import read_config_text, read_mapping
from skill_run.errors import InputError
from skill_run.recipe.migrate.compare import compare
from skill_run.recipe.migrate.fields import Setting, plan_fields
from skill_run.recipe.migrate.model import Change, Difference, Manual, Migration, Notes
from skill_run.recipe.migrate.steps import recipe_after
from skill_run.recipe.migrate.tokens import migrate_tokens
from skill_run.recipe.migrate.tree import write_tree
from skill_run.report.finding import BridgeChoice, ValidationReport
from skill_run.rules.validate import (
    ConfigSource,
    build_config,
    bundle_rules,
    evidence_of,
    judge_sources,
    read_sources,
)

_TREES: Final = ("yaml", "json", "container", "mapping")


def migrate_config(
    source: ConfigSource | None,
    *,
    to: str,
    bridge: str | None = None,
    form: Form | None = None,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    pin_recipe: bool = False,
) -> Migration:
    """Move a config to another Megatron-Bridge release, in the form that it came in.

    source: path, text or mapping of any supported form; None when only overrides are given. to: the release it is to
    be for ("0.6.2", "main"); bridge: the one it is for now, found in the input when it is not given. form: what
    `source` is, when it is text. recipe: name of the recipe function that the input is laid over. overrides: override
    tokens to migrate, when there is no source. pin_recipe: also write down what the recipe of the old release set and
    the one of the new release sets to something else.

    What cannot be moved safely is left as it is and listed. Raises InputError when the input cannot be read,
    MissingError when a Python file is given and libcst is not installed.
    """
    after, _ = recorded_for(made_for(to))
    if source is None and not overrides:
        raise InputError("nothing to migrate: give a config file or overrides")
    if overrides and source is not None:
        raise InputError("give either a config or overrides; the overrides of a launch belong to its command line")
    sources, unread = _read(source, bridge, recipe, overrides, form)
    choice = _from(sources, bridge, recipe, after)
    first = sources[-1]
    base = _Base(first, choice, after, made_for(to), recipe, source if isinstance(source, Mapping) else None)
    if choice.release == after:
        return base.nothing_to_do(unread)
    base.migrate(sources, pin_recipe, unread)
    return base.finished()


def _read(
    source: ConfigSource | None, bridge: str | None, recipe: str | None, overrides: Sequence[str], form: Form | None
) -> tuple[list[Source], str]:
    """Return the sources, and why a Python file holds no config that can be followed (its text is migrated anyway)."""
    try:
        return read_sources(source, bridge=bridge, recipe=recipe, overrides=overrides, form=form), ""
    except InputError as error:
        text, name = _python_text(source, form)
        if text is None:
            raise
        from skill_run.config.python.reader import imports_of

        return [Source(form="python", name=name, text=text, imports=imports_of(text, name))], str(error)


def _python_text(source: ConfigSource | None, form: Form | None) -> tuple[str | None, str]:
    from skill_run.config.read import form_of_file, form_of_text
    from skill_run.config.text import read_text
    from skill_run.config.tree import MAX_BYTES

    if isinstance(source, str) and ("\n" in source or form is not None):
        return (source, "<text>") if (form or form_of_text(source)) == "python" else (None, "")
    if isinstance(source, str | Path) and Path(source).is_file():
        text = read_text(Path(source), MAX_BYTES)
        return (text, str(source)) if form_of_file(Path(source), text) == "python" else (None, "")
    return None, ""


def _from(sources: Sequence[Source], bridge: str | None, recipe: str | None, after: str) -> BridgeChoice:
    if bridge is not None:
        version = normalise(bridge)
        release, note = recorded_for(version)
        return BridgeChoice(version, release, note or "asked for")
    name = recipe or next((source.recipe for source in sources if source.recipe), None)
    return implied(evidence_of(sources, name), after)


@dataclass(slots=True)
class _Base:
    """One migration while it is made."""

    source: Source
    choice: BridgeChoice
    after: str
    asked: str
    recipe: str | None
    original: Mapping[str, Any] | None
    text: str | dict[str, Any] = ""
    notes: Notes = field(default_factory=Notes)
    differences: list[Difference] = field(default_factory=list)
    report: ValidationReport | None = None
    note: str = ""

    def unchanged(self) -> str | dict[str, Any]:
        """Return the input as it came."""
        if self.original is not None:
            return dict(self.original)
        return self.source.text or "".join(token + "\n" for token in self.source.override_tokens)

    def nothing_to_do(self, unread: str) -> Migration:
        """Return the migration of an input that is for the target release already."""
        self.text = self.unchanged()
        told = "" if self.choice.because == "asked for" else f" ({self.choice.because})"
        self.note = f"nothing to do: the input is for {self.choice.version}{told}"
        if self.choice.because.endswith("as it stands"):
            self.note += "; say which release it was written for if that is another one, since defaults changed"
        if not unread:
            self.judge(None)
        return self.finished()

    def migrate(self, sources: list[Source], pin_recipe: bool, unread: str) -> None:
        """Plan, write back, judge and compare."""
        name = self.recipe or next((source.recipe for source in sources if source.recipe), None)
        recipes = self.recipes(name)
        config = None
        if not unread:
            try:
                config = build_config(sources, bridge=self.choice.release, recipe=self.recipe)
            except InputError as error:
                # The text of a script can be moved without its values.
                if self.source.form != "python":
                    raise
                unread = str(error)
        if self.source.form == "python":
            from skill_run.recipe.migrate.python.rewrite import migrate_python

            self.text, self.notes = migrate_python(
                self.source, config, self.choice.release, self.after, recipes if pin_recipe else (None, None)
            )
        else:
            assert config is not None
            setting = Setting(config, self.choice.release, self.after, True, pin_recipe, recipes)
            self.write(setting)
        if unread:
            self.note = f"the result is not judged: {unread}"
            return
        self.judge(config, recipes)

    def write(self, setting: Setting) -> None:
        """Carry out the plan in the form of the input."""
        if self.source.form in ("command", "sbatch"):
            from skill_run.recipe.migrate.command import migrate_command

            self.text, self.notes = migrate_command(self.source, setting)
            return
        if self.source.form not in _TREES:
            setting = Setting(setting.config, setting.before, setting.after, False, setting.pin_recipe, setting.recipes)
            plan = plan_fields(self.source, setting)
            self.text = "".join(token + "\n" for token in migrate_tokens(self.source.override_tokens, plan))
            self.notes = plan.notes
            return
        plan = plan_fields(self.source, setting)
        self.text = write_tree(self.source, plan, self.original)
        self.notes = plan.notes

    def recipes(self, name: str | None) -> tuple[Recipe | None, Recipe | None]:
        """Return the recipe of the input in both releases; note one that the target does not have."""
        if name is None:
            return None, None
        there = recipe_after(name, self.choice.release, self.after)
        return find_recipe(name, self.choice.release), find_recipe(there[0], self.after) if there else None

    def result(self) -> list[Source]:
        """Return the result as it reads."""
        if isinstance(self.text, dict):
            return [read_mapping(self.text, self.source.name)]
        if self.source.form in ("overrides", "recipe"):
            return read_sources(None, bridge=self.after, recipe=self.recipe, overrides=self.text.splitlines())
        form: Form = "yaml" if self.source.form == "container" else self.source.form
        return [read_config_text(self.text, name=self.source.name, form=form, bridge=self.after)]

    def judge(self, before: Any, recipes: tuple[Recipe | None, Recipe | None] = (None, None)) -> None:
        """Judge the result by the rules of the target release, and compare it with the input."""
        name = recipes[1].name if recipes[1] is not None and self.recipe is not None else self.recipe
        try:
            sources = self.result()
            self.report = judge_sources(sources, bundle_rules(), bridge=self.asked, recipe=name)
            if before is not None:
                after = build_config(sources, bridge=self.after, recipe=name)
                self.differences = compare(before, after, self.notes.changes, recipes)
        except InputError as error:
            self.note = f"the result is not judged: {error}"

    def finished(self) -> Migration:
        """Return what was made."""
        return Migration(
            text=self.text,
            form=self.source.form,
            source=self.source.name,
            from_version=self.choice.version,
            to_version=self.asked,
            because=self.choice.because,
            changes=tuple(sorted(self.notes.changes, key=_by_line)),
            manual=tuple(sorted(self.notes.manual, key=_by_line)),
            differences=tuple(self.differences),
            report=self.report,
            note=self.note,
        )


def _by_line(item: Change | Manual) -> tuple[bool, int]:
    return item.line is None, item.line or 0
