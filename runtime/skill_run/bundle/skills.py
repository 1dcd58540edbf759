"""The skills of the bundle: what each one says of itself, and what one holds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skill_run.bundle.load import load_rules, read_yaml, rule_files
from skill_run.bundle.locate import bundle_root
from skill_run.config.text import read_text
from skill_run.config.tree import parse_tree, to_plain
from skill_run.errors import BundleError, InputError, SkillRunError
from skill_run.report.safe import clip, printable

SKILL_FILE: Final = "SKILL.md"
CARD_FILE: Final = "card.yaml"
REFERENCES: Final = "references"
MAX_SKILL_BYTES: Final = 256 * 1024

_FENCE: Final = "---"


@dataclass(frozen=True, slots=True)
class SkillSummary:
    """One skill in a listing. Texts are empty when the skill's card or SKILL.md does not give them."""

    name: str
    description: str
    title: str
    validated_on: str
    rule_count: int
    path: Path

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-ready data."""
        return {
            "name": self.name,
            "description": self.description,
            "title": self.title,
            "validated_on": self.validated_on,
            "rule_count": self.rule_count,
            "path": str(self.path),
        }


@dataclass(frozen=True, slots=True)
class RuleLine:
    """One rule of a skill; `severity` is that of the newest recorded release the rule applies to."""

    id: str
    title: str
    severity: str

    def to_dict(self) -> dict[str, str]:
        """Return the line as JSON-ready data."""
        return {"id": self.id, "title": self.title, "severity": self.severity}


@dataclass(frozen=True, slots=True)
class SkillDetails:
    """One skill in full. `text` is SKILL.md as written, `card` is {} without a card, `references` are file names."""

    summary: SkillSummary
    text: str
    card: Mapping[str, Any]
    rules: tuple[RuleLine, ...]
    references: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the details as JSON-ready data."""
        return {
            **self.summary.to_dict(),
            "text": self.text,
            "card": dict(self.card),
            "rules": [line.to_dict() for line in self.rules],
            "references": list(self.references),
        }

    def render_text(self, width: int = 100) -> str:
        """Return the skill for a terminal of `width` columns: SKILL.md, then its references and rules."""
        lines = [self.text.rstrip() or f"{self.summary.name} has no {SKILL_FILE}"]
        if self.references:
            lines += ["", f"References ({self.summary.path / REFERENCES}):", *(f"  {name}" for name in self.references)]
        lines += ["", f"Rules ({self.summary.rule_count}):"]
        for line in self.rules:
            told = f"{line.severity} {line.id}: {line.title}"
            lines.append(
                textwrap.fill(told, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
            )
        return "\n".join(lines)


def list_skills(root: Path | None = None) -> list[SkillSummary]:
    """Return the skills of the bundle at `root` (the installed one by default), by name.

    Raises BundleError when a card or a frontmatter is not YAML.
    """
    root = root or bundle_root()
    counts: dict[str, int] = {}
    for path in rule_files(root):
        counts[path.parts[-3]] = counts.get(path.parts[-3], 0) + 1
    return [_summary(folder, counts.get(folder.name, 0)) for folder in skill_folders(root)]


def show_skill(name: str, root: Path | None = None) -> SkillDetails:
    """Return one skill in full; SkillRunError that names the nearest skill when there is no such one."""
    root = root or bundle_root()
    found = {summary.name: summary for summary in list_skills(root)}
    if name not in found:
        raise SkillRunError(_no_such_skill(name, list(found)))
    summary = found[name]
    return SkillDetails(
        summary=summary,
        text=_text(summary.path),
        card=_card(summary.path),
        rules=_rules(name, root),
        references=tuple(path.name for path in reference_files(summary.path)),
    )


def skill_folders(root: Path) -> list[Path]:
    """Return the folders of the skills, by name: those that hold a SKILL.md, a card or rules."""
    return sorted(
        folder
        for folder in (root / "skills").glob("*")
        if folder.is_dir() and any((folder / part).exists() for part in (SKILL_FILE, CARD_FILE, "rules"))
    )


def reference_files(folder: Path) -> list[Path]:
    """Return the files for longer reading of a skill, by name."""
    return sorted(path for path in (folder / REFERENCES).glob("*") if path.is_file())


def read_frontmatter(text: str, name: str) -> dict[str, Any]:
    """Return the YAML mapping between the first two `---` lines of a SKILL.md; {} when it starts without one.

    name: the file, for messages. Raises BundleError when the frontmatter does not end or is not a YAML mapping.
    """
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        return {}
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == _FENCE), None)
    if end is None:
        raise BundleError(f"{name}:1: the frontmatter has no closing {_FENCE} line")
    try:
        # The opening fence is kept as a document start, so that lines in messages are those of the file.
        data = to_plain(parse_tree("\n".join(lines[:end]), name))
    except InputError as error:
        raise BundleError(str(error)) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise BundleError(f"{name}:2: the frontmatter must be a mapping")
    return data


def _summary(folder: Path, rules: int) -> SkillSummary:
    card = _card(folder)
    front = read_frontmatter(_text(folder), str(folder / SKILL_FILE))
    return SkillSummary(
        name=folder.name,
        description=_line(front.get("description")),
        title=_line(card.get("title")),
        validated_on=_validated_on(card.get("validated_on")),
        rule_count=rules,
        path=folder,
    )


def _line(value: object) -> str:
    """Return a text of a card or a frontmatter on one line."""
    return "" if value is None else " ".join(str(value).split())


def _validated_on(value: object) -> str:
    """Return `2026-11-30, Megatron-Bridge 0.5.1, 0.6.2` for a card's date and releases."""
    if not isinstance(value, dict):
        return _line(value)
    releases = value.get("releases")
    entries = releases if isinstance(releases, list) else []
    versions = [_line(entry.get("bridge") if isinstance(entry, dict) else entry) for entry in entries]
    told = f"Megatron-Bridge {', '.join(versions)}" if versions else ""
    return ", ".join(filter(None, (_line(value.get("date")), told)))


def _text(folder: Path) -> str:
    path = folder / SKILL_FILE
    if not path.exists():
        return ""
    try:
        return read_text(path, MAX_SKILL_BYTES)
    except InputError as error:
        raise BundleError(str(error)) from error


def _card(folder: Path) -> dict[str, Any]:
    path = folder / CARD_FILE
    data = read_yaml(path) if path.exists() else None
    if data is not None and not isinstance(data, dict):
        raise BundleError(f"{path}:1: a card must be a mapping")
    return data or {}


def _rules(name: str, root: Path) -> tuple[RuleLine, ...]:
    from skill_run.bundle.check import example_version

    own = [rule for rule in load_rules(root) if rule.skill == name]
    return tuple(RuleLine(rule.id, rule.title, rule.severity_for(example_version(rule) or "0")) for rule in own)


def _no_such_skill(name: str, known: list[str]) -> str:
    import difflib

    shown = printable(clip(name, 80))
    near = difflib.get_close_matches(name[:80], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}"
    return f"there is no skill '{shown}'; {hint}"
