"""What the real validate() said, beside our verdict, as lines of the text report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skill_run.report.finding import Finding
from skill_run.report.layout import INDENT, Line, words
from skill_run.report.safe import flow

_PHASES = {"construct": "while the config was built", "validate": "in validate()"}


def upstream_lines(upstream: Mapping[str, Any], findings: Iterable[Finding], verbose: bool) -> Iterator[Line]:
    """Yield the answer of `ask_upstream`, the rules of ours that say the same, and whether the two agree."""
    yield Line(words(f"Asked Megatron-Bridge {flow(upstream['bridge'])} itself: {_verdict(upstream)}"), hang=INDENT)
    rules = [f.rule for f in findings if f.severity == "error" and f.fires in ("construct", "validate")]
    if upstream["outcome"] == "raises" and rules:
        yield Line(words(f"Rules that say so here: {', '.join(flow(rule) for rule in rules)}."), INDENT, INDENT)
    if upstream["agrees"] is False:
        yield Line(words("The two verdicts disagree, which is a fault of skill-run: please report it."), INDENT, INDENT)
    if upstream["assumed"]:
        assumed = ", ".join(flow(item) for item in upstream["assumed"])
        yield Line(words(f"Assumed, as nothing here sets it: {assumed}."), INDENT, INDENT)
    if upstream["dropped"]:
        dropped = ", ".join(flow(item) for item in upstream["dropped"])
        yield Line(words(f"Left out, as this release does not have it: {dropped}."), INDENT, INDENT)
    for warning in upstream["warnings"] if verbose else ():
        yield Line(words(f"It warned: {flow(warning)}"), INDENT, INDENT)
    if verbose and upstream["changed"]:
        changed = ", ".join(f"{flow(name)} {old} -> {new}" for name, (old, new) in upstream["changed"].items())
        yield Line(words(f"It set: {flow(changed)}"), INDENT, INDENT)


def _verdict(upstream: Mapping[str, Any]) -> str:
    message = flow(upstream["message"] or "no message")
    if upstream["outcome"] == "passes":
        return "validate() passes."
    if upstream["outcome"] == "raises":
        where = f" ({flow(upstream['where'])})" if upstream["where"] else ""
        return f"it raises {flow(upstream['error'])} {_PHASES.get(upstream['phase'], 'there')}{where}: {message}"
    if upstream["outcome"] == "cannot-build":
        return f"the config cannot be built there: {message}"
    return flow(upstream["note"] or "it was not asked.")
