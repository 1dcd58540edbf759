"""A migration as text: what was changed and why, what is left to a person, and the verdict on the result."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from skill_run.recipe.migrate.model import Change, Difference, Manual, Migration
from skill_run.report.safe import printable


def render_migration(migration: Migration) -> str:
    """Return the list of changes, the manual items and the verdict, one per line."""
    head = f"{migration.source}: {migration.from_version} -> {migration.to_version} ({migration.because})"
    lines = [head, *map(_change, migration.changes)]
    lines += [line for item in migration.manual for line in _manual(item)]
    for difference in _surprising(migration):
        told = difference.why or "no step explains this"
        lines.append(f"  differs  {difference.field}: {difference.before} before, {difference.after} now; {told}")
    if migration.note:
        lines.append(f"note: {migration.note}")
    return "\n".join(printable(line) for line in [*lines, _verdict(migration)])


def _surprising(migration: Migration) -> list[Difference]:
    """Return the differences that no listed change tells already."""
    told = {change.why for change in migration.changes}
    by_itself = ("only ", "the dataset has another class")
    return [d for d in migration.differences if d.why not in told and not d.why.startswith(by_itself)]


def _line(number: int | None) -> str:
    return "" if number is None else f"line {number}: "


def _change(change: Change) -> str:
    return f"  changed  {_line(change.line)}{change.what}; {change.why}"


def _manual(item: Manual) -> list[str]:
    return [f"  by hand  {_line(item.line)}{item.what}: {item.reason}", f"           {item.do}"]


def _verdict(migration: Migration) -> str:
    done = f"{len(migration.changes)} changed, {len(migration.manual)} by hand"
    if migration.report is None:
        return f"{done}; not judged for {migration.to_version}"
    errors = migration.report.at_least("error")
    told = "no errors" if not errors else ", ".join(dict.fromkeys(f"{f.severity} {f.rule}" for f in errors))
    return f"{done}; validated for {migration.to_version}: {told}"


def render_diff(before: str, migration: Migration) -> str:
    """Return a unified diff between the input's text and the result; empty when nothing changed."""
    text = migration.text if not isinstance(migration.text, Mapping) else ""
    lines = difflib.unified_diff(
        before.splitlines(),
        text.splitlines(),
        f"{migration.source} ({migration.from_version})",
        f"{migration.source} ({migration.to_version})",
        lineterm="",
    )
    return "\n".join(lines)
