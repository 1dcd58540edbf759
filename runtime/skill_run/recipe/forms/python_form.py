"""A draft as a Python snippet: imports, the recipe call and the settings as assignments."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import groupby

from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.assignments import Writer
from skill_run.recipe.forms.literals import WIDTH, comment, one_line
from skill_run.recipe.forms.names import Symbol, recipe_symbol


def render_python(draft: Draft) -> str:
    """Return a snippet that makes `cfg` for a draft, to be pasted into a script.

    Raises InputError for a setting that names a class or function which the release does not have.
    """
    recipe = recipe_symbol(draft.recipe, draft.bridge)
    writer = Writer(draft)
    body = writer.write(0)
    head = comment(f"{draft.title} (Megatron-Bridge {draft.bridge})")
    used = imports({*writer.symbols, recipe})
    lines = [*head, *environment(draft), "", *used, "", f"cfg = {recipe.name}()", *body]
    return "\n".join(lines) + "\n"


def imports(symbols: Iterable[Symbol]) -> list[str]:
    """Return the import lines of symbols, sorted; a symbol without a name is its module."""
    whole = sorted({symbol.module for symbol in symbols if not symbol.name})
    lines = [f"import {module}" for module in whole]
    named = sorted({(symbol.module, symbol.name) for symbol in symbols if symbol.name})
    if whole and named:
        lines.append("")
    for module, group in groupby(named, key=lambda item: item[0]):
        found = [name for _, name in group]
        line = f"from {module} import {', '.join(found)}"
        if len(line) <= WIDTH:
            lines.append(line)
        else:
            lines += [f"from {module} import (", *(f"    {name}," for name in found), ")"]
    return lines


def environment(draft: Draft) -> list[str]:
    """Return the environment variables of a draft as comment lines with the reason for each."""
    if not draft.env:
        return []
    lines = ["# Set before the start, on every node:"]
    for name, value in draft.env.items():
        reason = draft.comments.get(f"env.{name}") or draft.comments.get(f"env_vars.{name}")
        lines += comment(reason) if reason else []
        lines.append(f"#   export {one_line(f'{name}={shlex.quote(value)}')}")
    return lines
