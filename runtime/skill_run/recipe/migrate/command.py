"""Migrate a launch line, or the one in a batch script: recipe, launcher flags and overrides, each word in its place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from skill_run.bridge import names
from skill_run.bridge.release import load_release, matches
from skill_run.config.command_line import FlagRule, load_flags
from skill_run.config.model import Source
from skill_run.config.overrides import render_override
from skill_run.errors import InputError
from skill_run.recipe.migrate.fields import FieldPlan, Setting, plan_fields
from skill_run.recipe.migrate.model import Notes
from skill_run.recipe.migrate.steps import data, is_lost_recipe, recipe_after
from skill_run.recipe.migrate.tokens import migrated_token

_WORD: Final = re.compile(r"(?:[^\s'\"\\]|\\\S|'[^']*'|\"(?:[^\"\\]|\\.)*\")+", re.DOTALL)
_LAUNCHERS: Final = ("run_recipe.py", "train.sh", "setup_experiment.py")
# Ends a command: an operator, or a line break that no backslash continues.
_END: Final = re.compile(r"[|&;<>#]|(?<!\\)\n")
_NO_ABBREVIATIONS: Final = ">=0.6.dev0"
# From this release on run_recipe.py aligns packs and sets the loss flags of context parallelism (config/repair.py).
_REPAIRS: Final = ">=0.6.dev0"


@dataclass(slots=True)
class _Word:
    """One word of the launch line: where it stands, what it says, and its new text (None: it goes)."""

    start: int
    end: int
    text: str
    new: str | None


def migrate_command(source: Source, setting: Setting) -> tuple[str, Notes]:
    """Return the text with its launch line migrated, and what was done and left."""
    plan = plan_fields(_only_overrides(source), _without_objects(setting))
    line = _Line(source, setting, plan)
    line.flags()
    line.overrides()
    line.repairs()
    return line.written(), plan.notes


def _without_objects(setting: Setting) -> Setting:
    return Setting(setting.config, setting.before, setting.after, False, setting.pin_recipe, setting.recipes)


def _only_overrides(source: Source) -> Source:
    """Return a source with the assignments of its override words alone; what flags set moves with the flags."""
    keys = {token.lstrip("+~").partition("=")[0] for token in source.override_tokens}
    kept = [a for a in source.assignments if any(a.path == key or a.path.startswith(key + ".") for key in keys)]
    return Source(source.form, source.name, source.text, kept, override_tokens=source.override_tokens)


class _Line:
    """The words of one launch line while they are changed."""

    def __init__(self, source: Source, setting: Setting, plan: FieldPlan) -> None:
        self.source, self.setting, self.plan = source, setting, plan
        self.before, self.after = setting.before, setting.after
        self.text = source.text
        self.words = _launch_words(self.text)
        self.added: list[str] = []
        self.old, self.new = load_flags()[self.before], load_flags()[self.after]

    def line_of(self, word: _Word) -> int:
        return self.text.count("\n", 0, word.start) + 1

    def change(self, word: _Word, new: str | None, why: str) -> None:
        """Give a word another text, or take it away."""
        word.new = None if new is None else shlex.quote(new) if shlex.split(new) != [new] else new
        told = f"{word.text} -> {new}" if new is not None else f"{word.text} removed"
        self.plan.notes.changed(told, why, self.line_of(word))

    # -- flags -----------------------------------------------------------------------------------------------------

    def flags(self) -> None:
        """Migrate the launcher's own flags, with the word behind each one that takes a value."""
        at = 0
        while at < len(self.words):
            word = self.words[at]
            at += 1
            if not word.text.startswith("-") or re.match(r"-[0-9.]", word.text):
                continue
            flag, equal, inline = word.text.partition("=")
            full = self.full(flag)
            rule = self.old.get(full)
            if rule is None:
                continue
            value = None
            if rule.kind != "flag" and not equal and at < len(self.words):
                value = self.words[at]
                at += 1
            self.flag(word, full, rule, inline if equal else value.text if value else None, value)

    def full(self, flag: str) -> str:
        """Return a flag's full name; before 0.6 any unique beginning of a long one does."""
        starting = [name for name in self.old if name.startswith(flag)]
        if flag in self.old or not flag.startswith("--") or len(flag) < 4 or matches(_NO_ABBREVIATIONS, self.before):
            return flag
        return starting[0] if len(starting) == 1 else flag

    def flag(self, word: _Word, full: str, rule: FlagRule, value: str | None, behind: _Word | None) -> None:
        if rule.kind in ("recipe", "model") and value is not None:
            self.recipe(word, value, behind, full)
            return
        if full == "--packed_sequence":
            self.packed(word)
            return
        if rule.kind == "dataset" and value is not None:
            self.dataset(word, value, behind)
            return
        # Before 0.6 the length is an argument that most recipes do not take; from 0.6 on it sets the fields.
        back = full == "--seq_length" and "-sl" in self.old and "-sl" not in self.new
        if back or full not in self.new or (self.new[full].choices and value not in self.new[full].choices):
            self.lost(word, full, rule, value, behind)
            return
        if full == "--seq_length" and self.had_no_effect(full):
            self.remove(word, behind, f"it had no effect in {self.before}, and has one in {self.after}")
            return
        if full != word.text.partition("=")[0]:
            self.change(
                word, full + word.text[len(word.text.partition("=")[0]) :], f"{self.after} takes no short forms"
            )

    def had_no_effect(self, flag: str) -> bool:
        return any(r.rule == "ignored-flag" and r.message.startswith(flag) for r in self.source.remarks)

    def remove(self, word: _Word, behind: _Word | None, why: str) -> None:
        self.change(word, None, why)
        if behind is not None:
            behind.new = None

    def recipe(self, word: _Word, value: str, behind: _Word | None, full: str) -> None:
        found = recipe_after(value, self.before, self.after) if full == "--recipe" else None
        if full not in self.new:
            name = self.source.recipe
            there = recipe_after(name, self.before, self.after) if name else None
            if there is None or behind is None:
                self.by_hand(word, f"{self.after} has no {full}", "name the recipe function with --recipe")
                return
            self.change(word, "--recipe", f"{self.after} has no {full}")
            self.change(behind, there[0], f"the recipe's name in {self.after}")
            return
        if found is not None and found[0] != value and behind is not None:
            self.change(behind, found[0], f"the recipe is called {found[0]} in {self.after}")
        elif found is None and is_lost_recipe(value, self.before, self.after):
            self.by_hand(
                word, f"{self.after} has no recipe {value}", "choose one that it has, and compare its settings"
            )

    def packed(self, word: _Word) -> None:
        """`--packed_sequence` acted through --dataset alone; from 0.6 on a field does it."""
        if "--packed_sequence" in self.new:
            return
        if any(r.rule == "packing-flag-had-no-effect" for r in self.source.remarks):
            self.change(word, None, f"it had no effect in {self.before}, and {self.after} does not have it")
        elif self.source.base_unknown:
            self.by_hand(word, f"{self.after} has no such flag", "set packing in the recipe's dataset")
        else:
            self.change(word, None, f"{self.after} has no such flag; an override switches packing on")
            self.add("dataset.enable_offline_packing", True)

    def dataset(self, word: _Word, value: str, behind: _Word | None) -> None:
        """A preset of --dataset has another name, and picks its data in another way."""
        row = next((r for r in data()["launcher_datasets"] if self._preset(r, value)), None)
        if "--dataset" in self.new and value in self.new["--dataset"].choices:
            return
        if row is None or behind is None or "--dataset" not in self.new:
            do = "leave the recipe's own dataset, or set the dataset in Python"
            self.by_hand(word, f"{self.after} has no --dataset {value}", do)
            return
        new = row["new"] if matches(row["bridge"], self.after) else row["old"]
        if row["old"] == "llm-finetune" and matches(row["bridge"], self.after):
            new = self.squad_or(new)
        if new is not None:
            self.change(behind, new, f"the preset is called {new} in {self.after}")
        if row.get("do"):
            self.by_hand(word, f"--dataset {value} took its data in another way", row["do"])

    def _preset(self, row: Mapping[str, Any], value: str) -> bool:
        return matches(row["bridge"], self.before) != matches(row["bridge"], self.after) and value == (
            row["old"] if matches(row["bridge"], self.after) else row["new"]
        )

    def squad_or(self, usual: str) -> str:
        """Return the preset that `dataset.dataset_name=` chose, and take that override away."""
        chosen = next((w for w in self.words if w.text.lstrip("+").startswith("dataset.dataset_name=")), None)
        if chosen is None:
            return usual
        self.change(chosen, None, "from 0.6 on --dataset itself names the preset")
        return chosen.text.partition("=")[2].strip("'\"")

    def lost(self, word: _Word, full: str, rule: FlagRule, value: str | None, behind: _Word | None) -> None:
        """Replace a flag that the target release does not have by the overrides of its fields."""
        if rule.fields and (value is not None or rule.kind == "flag"):
            given = True if value is None else _typed(value, rule.kind)
            self.remove(word, behind, f"{self.after} has no {full}; overrides set its fields")
            for canonical in dict.fromkeys(rule.fields):
                self.add(names.to_written(names.to_canonical(canonical, self.before), self.after), given)
        elif rule.kind == "mode":
            self.remove(word, behind, f"{self.after} tells the mode by the recipe's name")
        elif full.replace("-", "_") in {name.replace("-", "_") for name in self.new}:
            same = next(name for name in self.new if name.replace("-", "_") == full.replace("-", "_"))
            self.change(word, same + word.text[len(full) :], f"{self.after} spells it {same}")
        else:
            do = data()["launcher_flags"].get(full, "leave it out, and set what it did in the recipe or by overrides")
            self.by_hand(word, f"the launcher of {self.after} has no {full}", do)

    def by_hand(self, word: _Word, reason: str, do: str) -> None:
        self.plan.notes.by_hand(word.text, reason, do, self.line_of(word))

    def add(self, path: str, value: Any) -> None:
        """Add an override behind the last word of the line."""
        given = [word.text for word in self.words] + self.added
        if not any(token.lstrip("+").partition("=")[0] == path for token in given):
            self.added.append(render_override(path, value, "force"))

    # -- overrides -------------------------------------------------------------------------------------------------

    def overrides(self) -> None:
        """Migrate the override words, and add what the plan sets."""
        for word in self.words:
            key = word.text.lstrip("+~").partition("=")[0]
            if "=" not in word.text or word.text.startswith("-") or "." not in key:
                continue
            if key in self.plan.removes:
                word.new = None
                continue
            try:
                new = migrated_token(word.text, self.plan)
            except InputError as error:
                self.by_hand(word, str(error), "write it as single overrides")
                continue
            new = self.value_set(new)
            if new != word.text:
                word.new = _requoted(self.text[word.start : word.end], word.text, new)
        for path, value in self.plan.sets.items():
            self.add(path, value)

    def value_set(self, token: str) -> str:
        """Return a token with the value that the plan sets, and in a form that a dataset without specs takes."""
        operation = token[: len(token) - len(token.lstrip("+~"))]
        key = token[len(operation) :].partition("=")[0]
        if key in self.plan.sets:
            return operation + render_override(key, self.plan.sets[key], "set")
        rebuilt = any(word.text.partition("=")[0] == "--dataset" for word in self.words)
        specs = load_release(self.after).specs_field
        return f"++{token}" if rebuilt and not operation and key.startswith(f"dataset.{specs}.") else token

    def repairs(self) -> None:
        """Write down what run_recipe.py of the source release repairs by itself and the target's does not."""
        if not matches(_REPAIRS, self.before) or matches(_REPAIRS, self.after):
            return
        for canonical, held in self.setting.config.values.items():
            there = self.setting.recipes[1]
            same = there is not None and there.values.get(canonical) == held.value
            if held.reason == "run_recipe.py" and canonical != "model.seq_length" and not same:
                path = names.to_written(canonical, self.after, self.setting.config.dataset_type)
                self.add(path, held.value)
                why = f"run_recipe.py of {self.before} sets it by itself, that of {self.after} does not"
                self.plan.notes.changed(f"{path} = {held.value}", why)

    def written(self) -> str:
        """Return the text with every word changed in place, and the new overrides behind the last one."""
        if self.added and not self.words:
            for token in self.added:
                self.plan.notes.by_hand(token, "the launch line was not found in the text", "add it to the launch")
            return self.text
        text = self.text
        for number in range(len(self.words) - 1, -1, -1):
            word = self.words[number]
            if number == len(self.words) - 1 and self.added:
                tail = "".join(" " + shlex.quote(token) for token in self.added)
                text = text[: word.end] + tail + text[word.end :]
            old = text[word.start : word.end]
            if word.new is None:
                start = self.words[number - 1].end if number else word.start
                gap = text[start : word.start]
                start = (
                    word.start - len(gap) if gap.strip(" \t") == "" or not _ends_line(text, word.end) else word.start
                )
                text = text[:start] + text[word.end :]
            elif word.new != old:
                text = text[: word.start] + word.new + text[word.end :]
        return text


def _typed(value: str, kind: str) -> Any:
    """Return a flag's value as what it sets; text that is no such value stays text, which the launcher refuses too."""
    try:
        return int(value) if kind == "int" else float(value) if kind == "float" else value
    except ValueError:
        return value


def _ends_line(text: str, at: int) -> bool:
    return text[at:].lstrip(" \t")[:1] in ("", "\n")


def _requoted(raw: str, old: str, new: str) -> str:
    """Return a word with its text changed, in the quotes that it had where that is possible."""
    shared = 0
    while shared < min(len(old), len(new)) and old[-1 - shared] == new[-1 - shared]:
        shared += 1
    head, changed = old[: len(old) - shared], new[: len(new) - shared]
    if head and raw.count(head) == 1:
        return raw.replace(head, changed)
    return shlex.quote(new)


def _launch_words(text: str) -> list[_Word]:
    """Return the words behind the training script of the launch line: flags, their values and overrides."""
    words = list(_WORD.finditer(text))
    best: list[_Word] = []
    for number, match in enumerate(words):
        said = _said(match.group())
        if not said.endswith((*_LAUNCHERS, ".py")):
            continue
        found: list[_Word] = []
        for place in range(number + 1, len(words)):
            gap = text[words[place - 1].end() : words[place].start()]
            if _END.search(gap) or _END.match(words[place].group()):
                break
            inner = words[place]
            found.append(_Word(inner.start(), inner.end(), _said(inner.group()), inner.group()))
        if not best or said.endswith(_LAUNCHERS) or len(found) > len(best):
            best = found
    return best


def _said(word: str) -> str:
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word
