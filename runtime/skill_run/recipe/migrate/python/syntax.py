"""Small tools on libcst nodes: dotted names, literal values, and keywords added and removed with their layout."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import libcst as cst

from skill_run.recipe.migrate.model import Opaque

_EMPTY = cst.Module([])


def code_of(node: cst.CSTNode) -> str:
    """Return a node as source text."""
    return _EMPTY.code_for_node(node)


def dotted(node: cst.CSTNode) -> str | None:
    """Return `a.b.c` of a name or a chain of attributes, None for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    return ".".join([node.value, *reversed(parts)])


def literal(node: cst.BaseExpression) -> Any:
    """Return the value of a literal, Opaque with its text for anything that only running the code can tell."""
    text = code_of(node)
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return Opaque(text)


def expression(text: str) -> cst.BaseExpression:
    """Return source text as an expression."""
    return cst.parse_expression(text)


def name_node(path: str) -> cst.Name | cst.Attribute:
    """Return a dotted path as a name or a chain of attributes."""
    node = cst.parse_expression(path)
    assert isinstance(node, cst.Name | cst.Attribute)
    return node


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """Return `name=value` in the usual layout of a keyword argument."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value=value, keyword=cst.Name(name), equal=equal)


def added(items: Sequence[Any], at: int, new: Any, before_first: cst.BaseParenthesizableWhitespace) -> list[Any]:
    """Return arguments or elements with `new` at position `at`, laid out like its neighbours.

    before_first: the white space between the opening bracket and the first item, which tells whether items stand on
    lines of their own.
    """
    result = list(items)
    if not result:
        return [new]
    between = _between(result, before_first)
    if at >= len(result):
        last = result[-1]
        end = last.comma
        if isinstance(end, cst.Comma):
            result[-1] = last.with_changes(comma=_with_comment(between, end))
            return [*result, new.with_changes(comma=_without_comment(end))]
        behind = getattr(last, "whitespace_after_arg", None)
        if isinstance(behind, cst.ParenthesizedWhitespace) and isinstance(
            between.whitespace_after, cst.ParenthesizedWhitespace
        ):
            # Without a comma, the line break and the comment before the bracket belong to the last argument.
            after = between.whitespace_after.with_changes(first_line=behind.first_line)
            plain = behind.with_changes(first_line=cst.TrailingWhitespace(newline=behind.first_line.newline))
            result[-1] = last.with_changes(
                comma=between.with_changes(whitespace_after=after), whitespace_after_arg=cst.SimpleWhitespace("")
            )
            return [*result, new.with_changes(whitespace_after_arg=plain)]
        result[-1] = last.with_changes(comma=between)
        return [*result, new]
    result.insert(at, new.with_changes(comma=between))
    return result


def _between(items: Sequence[Any], before_first: cst.BaseParenthesizableWhitespace) -> cst.Comma:
    if isinstance(before_first, cst.ParenthesizedWhitespace):
        plain = before_first.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
        return cst.Comma(whitespace_after=plain)
    if len(items) > 1 and isinstance(items[0].comma, cst.Comma):
        return _without_comment(items[0].comma)
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _without_comment(comma: cst.Comma) -> cst.Comma:
    space = comma.whitespace_after
    if isinstance(space, cst.ParenthesizedWhitespace):
        space = space.with_changes(first_line=cst.TrailingWhitespace(newline=space.first_line.newline), empty_lines=[])
    return comma.with_changes(whitespace_after=space)


def _with_comment(between: cst.Comma, end: cst.Comma) -> cst.Comma:
    """Return the comma between two items with the comment that stood behind the former last one."""
    one, other = between.whitespace_after, end.whitespace_after
    if isinstance(one, cst.ParenthesizedWhitespace) and isinstance(other, cst.ParenthesizedWhitespace):
        return between.with_changes(whitespace_after=one.with_changes(first_line=other.first_line))
    return between


def removed(items: Sequence[Any], gone: set[int]) -> list[Any]:
    """Return arguments or elements without those at the given positions; the last one keeps the closing layout."""
    kept = [item for place, item in enumerate(items) if place not in gone]
    if kept and gone and len(items) - 1 in gone:
        kept[-1] = kept[-1].with_changes(comma=items[-1].comma)
        if isinstance(items[-1], cst.Arg):
            kept[-1] = kept[-1].with_changes(whitespace_after_arg=items[-1].whitespace_after_arg)
    return kept
