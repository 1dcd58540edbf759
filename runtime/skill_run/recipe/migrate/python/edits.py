"""Carry out planned edits on the arguments of a call or the keys of a mapping, keeping their layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import libcst as cst

from skill_run.recipe.migrate.python.plans import Edits
from skill_run.recipe.migrate.python.syntax import added, expression, keyword, literal, removed


def edit_call(node: cst.Call, edits: Edits) -> cst.Call:
    """Return a call with its keywords renamed, removed and added."""
    args = _edited(
        list(node.args),
        edits,
        name_of=lambda arg: arg.keyword.value if arg.keyword is not None else None,
        renamed=lambda arg, new: arg.with_changes(keyword=cst.Name(new)),
        made=lambda name, code: keyword(name, expression(code)),
        start=node.whitespace_before_args,
        ends_before=lambda arg: arg.star == "**",
    )
    return node.with_changes(args=args)


def edit_mapping_node(node: cst.Dict, edits: Edits) -> cst.Dict:
    """Return a mapping with its keys renamed, removed and added."""

    def name_of(element: Any) -> str | None:
        key = literal(element.key) if isinstance(element, cst.DictElement) else None
        return key if isinstance(key, str) else None

    elements = _edited(
        list(node.elements),
        edits,
        name_of=name_of,
        renamed=lambda item, new: item.with_changes(key=_quoted(item.key, new)),
        made=lambda name, code: cst.DictElement(cst.SimpleString(f'"{name}"'), expression(code)),
        start=node.lbrace.whitespace_after,
        ends_before=lambda _: False,
    )
    return node.with_changes(elements=elements)


def _quoted(old: cst.BaseExpression, new: str) -> cst.SimpleString:
    quote = old.value[0] if isinstance(old, cst.SimpleString) and old.value[0] in "'\"" else '"'
    return cst.SimpleString(f"{quote}{new}{quote}")


def _edited(
    items: list[Any],
    edits: Edits,
    *,
    name_of: Callable[[Any], str | None],
    renamed: Callable[[Any, str], Any],
    made: Callable[[str, str], Any],
    start: cst.BaseParenthesizableWhitespace,
    ends_before: Callable[[Any], bool],
) -> list[Any]:
    """Return items edited; a value that is put stands behind the item that it belongs to, else last before `**`."""
    names = [name_of(item) for item in items]
    for name, code, beside in edits.puts:
        if name in names and name not in edits.drops:
            continue
        at = names.index(beside) + 1 if beside in names else len(items)
        while beside not in names and at > 0 and ends_before(items[at - 1]):
            at -= 1
        while beside in names and at < len(names) and str(names[at]).startswith("+"):
            at += 1
        items = added(items, at, made(name, code), start)
        names.insert(at, f"+{name}")
    gone = {place for place, name in enumerate(names) if name in edits.drops}
    changed = [
        renamed(item, edits.renames[name]) if name in edits.renames else item
        for item, name in zip(items, names, strict=True)
    ]
    return removed(changed, gone)
