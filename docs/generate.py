"""Write docs/reference/*.md from the code, the schemas, the rules and the release data, and examples as they run now.

`python docs/generate.py` writes; `--check` writes nothing, names the pages that are stale and exits 1 if there are any.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import itertools
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click
import yaml

import skill_run
from skill_run import errors
from skill_run.bridge.recipes import catalogue
from skill_run.bridge.release import index, known_releases, load_release, matches, newest_release
from skill_run.bundle.check import schema
from skill_run.bundle.load import load_rules
from skill_run.bundle.rule import Rule
from skill_run.cli import cli
from skill_run.report.finding import SEVERITIES
from skill_run.rules.derived import DERIVED
from skill_run.rules.environment import FUNCTIONS, INPUTS, variables_in
from skill_run.rules.evaluate import expressions_of

sys.path.insert(0, str(Path(__file__).parent))
from console import stale_consoles

ROOT: Final = Path(__file__).resolve().parents[1]
REFERENCE: Final = ROOT / "docs" / "reference"
MARK: Final = "<!-- Written by docs/generate.py: change the source named below and run it again. -->"
HELP_WIDTH: Final = 100
CODE_WIDTH: Final = 100

_EXIT_CODES: Final = {
    errors.EXIT_CLEAN: "No finding of the asked level or worse.",
    errors.EXIT_FINDINGS: "Findings of the asked level or worse; `verify`: a check failed.",
    errors.EXIT_INPUT: "Wrong usage, or input that cannot be read.",
    errors.EXIT_MISSING: "Something that the call needs is not installed.",
}
# Code spans as written, placeholders, and names with an underscore, which Markdown would read as emphasis.
_CODE: Final = re.compile(r"`[^`]+`|\{[^{}]+\}|[\w.]*_[\w.]*\w(?:\([^()\s]*\)|=[\w.]*\w)?")


def main(arguments: Sequence[str]) -> int:
    """Write or check the reference; return the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/reference from code and data.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the pages that are stale")
    parser.add_argument("--output", type=Path, default=REFERENCE, metavar="DIR", help="folder of the pages")
    options = parser.parse_args(arguments)
    pages = build()
    stale = stale_pages(options.output, pages)
    consoles = stale_consoles()
    if options.check:
        for name, reason in stale.items():
            print(f"{os.path.relpath(options.output)}/{name} {reason}; run docs/generate.py")
        for path in consoles:
            print(f"{os.path.relpath(path)} shows old output; run docs/generate.py")
        return 1 if stale or consoles else 0
    write(options.output, pages, stale)
    for path, text in consoles.items():
        path.write_text(text, "utf-8")
    print(f"{len(pages)} pages, {len(stale) + len(consoles)} changed")
    return 0


def build() -> dict[str, str]:
    """Return every page of the reference: path under docs/reference -> text."""
    rules = load_rules(ROOT)
    pages = {
        "cli.md": cli_page(),
        "mcp.md": mcp_page(),
        "rules.md": rules_page(rules),
        "report.md": report_page(),
        "parity.md": form_page("Parity report", "parity"),
        "card.md": card_page(),
        "rule.md": rule_form_page(),
        "api.md": api_page(),
        "releases.md": releases_page(),
    }
    pages.update({f"rules/{rule.id}.md": rule_page(rule) for rule in rules})
    return pages


def stale_pages(folder: Path, pages: Mapping[str, str]) -> dict[str, str]:
    """Return the pages of a folder that differ from what they should be: name -> what is wrong."""
    found: dict[str, str] = {}
    for name, text in sorted(pages.items()):
        path = folder / name
        if not path.is_file():
            found[name] = "is missing"
        elif path.read_bytes() != text.encode():
            found[name] = "is stale"
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    found.update(dict.fromkeys(sorted(there - pages.keys()), "is left over"))
    return found


def write(folder: Path, pages: Mapping[str, str], stale: Iterable[str]) -> None:
    """Write the stale pages and remove those that are left over."""
    for name in stale:
        path = folder / name
        if name not in pages:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pages[name].encode())


def page(title: str, source: str, *parts: str) -> str:
    """Return a page; `source` says what it is made from."""
    return "\n\n".join([MARK, f"# {title}", f"Source: {source}.", *(part for part in parts if part)]) + "\n"


def prose(text: str) -> str:
    """Return plain text as Markdown: names as code, and nothing read as emphasis or HTML by accident."""
    text = " ".join(text.split())
    parts: list[str] = []
    end = 0
    for match in _CODE.finditer(text):
        parts += [_escaped(text[end : match.start()]), code(match.group().strip("`"))]
        end = match.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return re.sub(r"([*\[\]_])", r"\\\1", text).replace("<", "&lt;")


def code(text: str) -> str:
    """Return text as a code span."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def fenced(text: str, language: str = "") -> str:
    """Return text as a code block."""
    return f"```{language}\n{text.rstrip()}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown, "" when there are no rows."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


# Command line


def cli_page() -> str:
    """Return the page of the commands: click's own help of each."""
    parts = [f"## {name}\n\n{fenced(text, 'text')}" for name, text in _helps(cli, None, "skill-run")]
    return page("Command line", "`runtime/skill_run/cli.py`", *parts)


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    settings = {**command.context_settings, "terminal_width": HELP_WIDTH, "max_content_width": HELP_WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _helps(found, context, child)


# MCP


def mcp_page() -> str:
    """Return the page of the MCP server, as a client sees it."""
    return asyncio.run(_mcp_page())


async def _mcp_page() -> str:
    from skill_run.mcp_server import create_server

    server = create_server([ROOT])
    tools = [_tool(tool) for tool in sorted(await server.list_tools(), key=lambda tool: tool.name)]
    templates = [
        (code(item.uri_template), prose(item.description or "")) for item in await server.list_resource_templates()
    ]
    listed = sorted(str(item.uri) for item in await server.list_resources())
    prompts = [_prompt(item) for item in sorted(await server.list_prompts(), key=lambda item: item.name)]
    return page(
        "MCP server",
        "`runtime/skill_run/mcp_server.py`; start it with `skill-run mcp`",
        "## Tools",
        *tools,
        "## Resources",
        table(("URI", "what"), sorted(templates)),
        "Listed are every [rule](rules.md), and of the skills",
        "\n".join(f"- {code(uri)}" for uri in listed if not uri.startswith("rule:")),
        "## Prompts",
        *prompts,
    )


def _tool(tool: Any) -> str:
    hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    title = hints.pop("title", None)
    facts = ", ".join(
        f"{name.replace('_hint', '').replace('_', '-')}: {str(hints[name]).lower()}" for name in sorted(hints)
    )
    return "\n\n".join(
        part
        for part in (
            f"### {tool.name}",
            f"*{tool.title or title}*" if tool.title or title else "",
            paragraphs(tool.description or ""),
            facts[:1].upper() + facts[1:] + "." if facts else "",
            "Input",
            schema_table(tool.input_schema) or "None.",
            "Output" if tool.output_schema else "",
            schema_table(tool.output_schema) if tool.output_schema else "",
        )
        if part
    )


def _prompt(item: Any) -> str:
    rows = [
        (code(argument.name), "yes" if argument.required else "no", prose(argument.description or ""))
        for argument in item.arguments or ()
    ]
    return "\n\n".join(
        part
        for part in (
            f"### {item.name}",
            paragraphs(item.description or ""),
            table(("argument", "required", "what"), rows),
        )
        if part
    )


# JSON Schemas


def schema_table(root: Mapping[str, Any]) -> str:
    """Return a table of everything a JSON Schema describes, one row per path (`a.b`, lists `a[]`, mappings `a.*`)."""
    rows = list(_rows(root, root, "", frozenset()))
    return table(("path", "type", "required", "meaning"), rows)


def _resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference filled in; what stands beside the reference wins."""
    found = dict(node)
    while "$ref" in found:
        target: Any = root
        for step in found.pop("$ref").removeprefix("#/").split("/"):
            target = target[step]
        found = {**target, **found}
    return found


def _rows(
    node: Mapping[str, Any], root: Mapping[str, Any], path: str, seen: frozenset[str]
) -> Iterator[tuple[str, str, str, str]]:
    reference = node.get("$ref")
    if reference in seen:
        return
    if reference is not None:
        seen |= {reference}
    node = _resolved(node, root)
    required = set(node.get("required", ()))
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}".lstrip(".")
        full = _resolved(child, root)
        yield (
            code(below),
            schema_type(child, root),
            "yes" if name in required else "no",
            prose(full.get("description", "")) + _limits(full),
        )
        yield from _rows(child, root, below, seen)
    for key in ("anyOf", "oneOf"):
        for branch in node.get(key, ()):
            yield from _rows(branch, root, path, seen)
    if isinstance(node.get("items"), Mapping):
        yield from _rows(node["items"], root, f"{path}[]", seen)
    if isinstance(node.get("additionalProperties"), Mapping):
        yield from _rows(node["additionalProperties"], root, f"{path}.*", seen)


def schema_type(node: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Return the type that a schema asks for, in words."""
    node = _resolved(node, root)
    if "const" in node:
        return code(json.dumps(node["const"]))
    if "enum" in node:
        return " or ".join(code(str(item)) for item in node["enum"])
    for key in ("anyOf", "oneOf"):
        if key in node:
            return " or ".join(dict.fromkeys(schema_type(branch, root) for branch in node[key]))
    kinds = node.get("type", "any value")
    if isinstance(kinds, list):
        return "any value" if len(kinds) > 5 else " or ".join(kinds)
    if kinds == "array":
        items = node.get("items")
        return f"list of {schema_type(items, root)}" if isinstance(items, Mapping) and items else "list"
    if kinds == "object":
        values = node.get("additionalProperties")
        return f"mapping of {schema_type(values, root)}" if isinstance(values, Mapping) and values else "object"
    return str(kinds)


def _limits(node: Mapping[str, Any]) -> str:
    words = {
        "minimum": "at least {}",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "minLength": "{} characters or more",
        "maxLength": "{} characters or fewer",
        "minItems": "{} entries or more",
        "maxItems": "{} entries or fewer",
        "pattern": "matches `{}`",
    }
    found = ["not empty"] if 1 in (node.get("minItems"), node.get("minLength")) else []
    found += [text.format(node[key]) for key, text in words.items() if key in node and not _nonempty(key, node)]
    if node.get("default") is not None:
        found.append(f"default {code(json.dumps(node['default']))}")
    return f" ({'; '.join(found)})" if found else ""


def _nonempty(key: str, node: Mapping[str, Any]) -> bool:
    return key in ("minItems", "minLength") and node[key] == 1


def form_page(title: str, name: str) -> str:
    """Return the page of another report's JSON form."""
    form = _form(name)
    source = f"`runtime/skill_run/report/{name}.schema.json`"
    return page(title, source, prose(form["description"]), "## JSON form", schema_table(form))


def _form(name: str) -> dict[str, Any]:
    form: dict[str, Any] = json.loads((files("skill_run.report") / f"{name}.schema.json").read_text("utf-8"))
    return form


def report_page() -> str:
    """Return the page of the JSON report and the exit codes."""
    form = _form("report")
    return page(
        "Report",
        "`runtime/skill_run/report/report.schema.json`",
        prose(form["description"]),
        "## JSON form",
        schema_table(form),
        "## Example",
        "One finding of a report:",
        fenced(json.dumps(_example_finding(), indent=2), "json"),
        "## Exit codes",
        table(("code", "meaning"), [(str(number), text) for number, text in _EXIT_CODES.items()]),
    )


def _example_finding() -> dict[str, Any]:
    from skill_run.rules.validate import bundle_rules, judge

    rule = next(rule for rule in load_rules(ROOT) if rule.id == "offline-pad-multiple-covers-cp")
    text = yaml.safe_dump(dict(rule.fails[0]), sort_keys=False)
    report = judge(text, rules=bundle_rules(), bridge=newest_release(), form="yaml")
    found: dict[str, Any] = next(item.to_dict() for item in report.findings if item.rule == rule.id)
    return found


def card_page() -> str:
    """Return the page of card.yaml."""
    form = schema("card")
    definitions = form["$defs"]
    parts: list[str] = []
    for title, name in (("Card of a skill", "skill_card"), ("Card of the bundle", "bundle_card")):
        node = {**definitions[name], "$defs": definitions}
        parts += [f"## {title}", prose(node["description"]), schema_table(node)]
    return page("card.yaml", "`runtime/skill_run/bundle/schema/card.schema.json`", prose(form["description"]), *parts)


def rule_form_page() -> str:
    """Return the page of a rule file, with the values that its expressions may use."""
    form = schema("rule")
    terms = [(code(name), DERIVED[name][0], prose(_meaning(name))) for name in sorted(DERIVED)]
    return page(
        "Rule file",
        "`runtime/skill_run/bundle/schema/rule.schema.json` and `runtime/skill_run/rules/derived.py`",
        prose(form["description"]),
        "## Keys",
        schema_table(form),
        "## Expressions",
        "Expressions are CEL. Variables are every config field by its newest name, `given.FIELD` (the field has a "
        f"value), `env.NAME` (an environment variable), {', '.join(map(code, sorted(INPUTS)))} (what is known of the "
        f"run), and the values below. Besides CEL's own functions there are {', '.join(map(code, FUNCTIONS))}.",
        table(("value", "type", "meaning"), terms),
    )


def _meaning(name: str) -> str:
    return " ".join((DERIVED[name][1].__doc__ or "").split())


# Rules


def rules_page(rules: Sequence[Rule]) -> str:
    """Return the index of the rules by skill, worst first."""
    parts = [f"{len(rules)} rules. A finding's `fires` says where upstream itself notices; `never` is silent."]
    for skill in sorted({rule.skill for rule in rules}):
        own = sorted((rule for rule in rules if rule.skill == skill), key=_rank)
        rows = [
            (
                f"[{rule.id}](rules/{rule.id}.md)",
                prose(rule.title),
                spans(rule, rule.severity_for),
                spans(rule, rule.fires_for),
            )
            for rule in own
        ]
        parts += [f"## {skill}", table(("rule", "title", "severity", "upstream notices"), rows)]
    return page("Rules", "`skills/*/rules/*.yaml`", *parts)


def _rank(rule: Rule) -> tuple[int, str]:
    return SEVERITIES.index(rule.severity_for(_applying(rule)[-1])), rule.id


def _applying(rule: Rule) -> list[str]:
    """Return the recorded releases a rule applies to, all of them for one that is about an older release."""
    return [version for version in known_releases() if matches(rule.bridge, version)] or list(known_releases())


def spans(rule: Rule, value: Callable[[str], str]) -> str:
    """Return a value that may differ by release, with the releases where it does."""
    versions = _applying(rule)
    groups = [(found, list(group)) for found, group in itertools.groupby(versions, key=value)]
    if len(groups) == 1:
        return groups[0][0]
    *early, (last, tail) = groups
    told = [f"{found} ({', '.join(group)})" for found, group in early]
    return "; ".join([*told, f"{last} ({'from ' if len(tail) > 1 else ''}{tail[0]})"])


def rule_page(rule: Rule) -> str:
    """Return the page of one rule."""
    rows = [
        (version, rule.severity_for(version), rule.fires_for(version))
        if matches(rule.bridge, version)
        else (version, "does not apply", "")
        for version in known_releases()
    ]
    return page(
        rule.id,
        f"[{rule.file}](../../../{rule.file})",
        f"**{prose(rule.title)}**",
        f"Skill `{rule.skill}`; Megatron-Bridge `{rule.bridge}`. [All rules](../rules.md)",
        table(("release", "severity", "upstream notices"), rows),
        *_condition(rule),
        *_section(
            "Message", prose(rule.message) if rule.message != "{detail}" else "The sentence is made for each case."
        ),
        *_section("What to do", *_remedy(rule)),
        *_section("Why", prose(rule.explanation)),
        *_section("Evidence", "\n".join(f"- {_source(item)}" for item in rule.evidence)),
        *_section("Fails", *(_example(item) for item in rule.fails)),
        *_section("Passes", *(_example(item) for item in rule.passes)),
    )


def _section(title: str, *parts: str) -> list[str]:
    kept = [part for part in parts if part]
    return [f"## {title}", *kept] if kept else []


def _condition(rule: Rule) -> list[str]:
    if rule.computed:
        return _section("Condition", "Found while the config is read; it has no expression.")
    used = [name for text in expressions_of(rule) for name in variables_in(text) if name in DERIVED]
    words = [(code(name), prose(_meaning(name))) for name in dict.fromkeys(used)]
    applies = ["Applies when", fenced(_laid_out(rule.when), "cel")] if rule.when not in ("true", "True") else []
    return _section(
        "Condition", *applies, "Must hold", fenced(_laid_out(rule.require), "cel"), table(("value", "meaning"), words)
    )


def _laid_out(expression: str) -> str:
    """Return an expression with a line break before each `&&` and `||` outside brackets, if it is long."""
    text = " ".join(expression.split())
    if len(text) <= CODE_WIDTH:
        return text
    depth = 0
    lines = [""]
    for word in text.split(" "):
        if word in ("&&", "||") and depth == 0:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
        depth += word.count("(") - word.count(")")
    return "\n".join(lines)


def _remedy(rule: Rule) -> list[str]:
    rows = [
        (code(name), code(" ".join(value.split())) if isinstance(value, str) else code(json.dumps(value)))
        for name, value in rule.fix.items()
    ]
    note = "This changes what is trained, so it is applied only on request." if rule.semantic_fix and rows else ""
    return [table(("field", "value"), rows), note, prose(rule.advice)]


def _source(item: Mapping[str, Any]) -> str:
    names = {"bridge": "Megatron-Bridge", "core": "Megatron Core", "te": "Transformer Engine"}
    where = [f"{names[key]} {item[key]}" for key in names if key in item]
    where += [code(str(item[key])) for key in ("file", "symbol") if key in item]
    where += [f"<{item['url']}>" for key in ("url",) if key in item]
    says = prose(str(item["says"]))
    return f"{', '.join(where)}: {says}" if where else says


class _Dumper(yaml.SafeDumper):
    """YAML with lists on one line."""


_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


def _example(example: Mapping[str, Any]) -> str:
    return fenced(yaml.dump(dict(example), Dumper=_Dumper, sort_keys=False, width=CODE_WIDTH), "yaml")


# Python


def api_page() -> str:
    """Return the page of the public Python functions."""
    names = [name for name in sorted(skill_run.__all__) if not name.startswith("__")]
    functions = {name: getattr(skill_run, name) for name in names}
    results = {
        _result(function).__name__: _result(function)
        for function in functions.values()
        if is_dataclass(_result(function))
    }
    return page(
        "Python",
        "`skill_run.__all__`",
        *(_signature(name, function) for name, function in functions.items()),
        *(_class(name, results[name]) for name in sorted(results)),
        "Errors derive from `skill_run.errors.SkillRunError`; the text of each is one sentence for the user.",
    )


def _result(function: Callable[..., Any]) -> Any:
    return typing.get_type_hints(function).get("return")


def _signature(name: str, function: Callable[..., Any]) -> str:
    found = inspect.signature(function)
    parameters = list(found.parameters.values())
    lines = [_parameter(parameter) for parameter in parameters]
    keyword_only = [parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters]
    if True in keyword_only:
        lines.insert(keyword_only.index(True), "*")
    text = "\n".join([f"{name}(", *(f"    {line}," for line in lines), f") -> {found.return_annotation}"])
    explained = paragraphs(inspect.getdoc(function) or "", list(found.parameters))
    return f"## {name}\n\n{fenced(text, 'python')}\n\n{explained}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {parameter.annotation}"
    return text if parameter.default is inspect.Parameter.empty else f"{text} = {parameter.default!r}"


def _class(name: str, found: Any) -> str:
    members = [
        (
            code(_member(key, member)),
            prose(inspect.getdoc(member.fget if isinstance(member, property) else member) or ""),
        )
        for key, member in vars(found).items()
        if not key.startswith("_") and (isinstance(member, property) or inspect.isfunction(member))
    ]
    fields = list(found.__dataclass_fields__)
    listed = ", ".join(map(code, fields))
    text = f"## {name}\n\n{paragraphs(inspect.getdoc(found) or '', fields)}\n\nFields: {listed}.\n\n"
    return text + table(("member", "what"), members)


def _member(key: str, member: Any) -> str:
    if isinstance(member, property):
        return key
    names = [name for name in inspect.signature(member).parameters if name != "self"]
    return f"{key}({', '.join(names)})"


def paragraphs(text: str, names: Sequence[str] = ()) -> str:
    """Return a docstring as Markdown: its paragraphs, with what is said as `name: ...` of the given names as a list."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", inspect.cleandoc(text))]
    return "\n\n".join(_listed(part, names) for part in parts)


def _listed(text: str, names: Sequence[str]) -> str:
    if not names:
        return prose(text)
    lead, *entries = re.split(rf"(?:^|(?<=[.;] ))({'|'.join(map(re.escape, names))}): ", text)
    items = [f"- {code(name)}: {prose(said)}" for name, said in zip(entries[::2], entries[1::2], strict=True)]
    return "\n\n".join(part for part in (prose(lead), "\n".join(items)) if part)


# Releases


def releases_page() -> str:
    """Return the page of the recorded releases: pairs, sizes, renames and moved imports."""
    data = index()
    releases = [
        (
            version + (" (newest published)" if version == newest_release() else ""),
            load_release(version).core,
            str(len(load_release(version).written_names())),
            str(len(catalogue(version))),
        )
        for version in known_releases()
    ]
    renames = [
        (code(item["old"]), code(item["new"]), code(item["bridge"]), ", ".join(map(code, item.get("datasets", ()))))
        for item in data["renames"]
    ]
    aliases = [
        (code(item["name"]), code(item["of"]), code(item["bridge"]))
        for item in data["aliases"]
        if item["name"] != item["of"]
    ]
    return page(
        "Recorded releases",
        "`runtime/skill_run/bridge/data/`",
        "A release that is not recorded is judged by the one of its minor series, else by the newest one before it.",
        table(("Megatron-Bridge", "Megatron Core", "fields", "recipes with aliases"), releases),
        "## Renamed fields",
        "Rules use the new name everywhere; findings use the name of the user's release.",
        table(("old name", "new name", "old name holds for", "dataset classes"), renames),
        "## Old names that still work",
        table(("name", "stands for", "releases"), aliases),
        "## Moved classes",
        _moved(data["moved_classes"], symbols=True),
        "## Moved modules",
        _moved(data["moved_modules"], symbols=False),
    )


def _moved(entries: Iterable[Mapping[str, Any]], *, symbols: bool) -> str:
    """Return a table of moves. `bridge` of an entry holds where its path, the old one if it has one, does not exist."""
    head = ("module", "exists in", "elsewhere use")
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        there = [version for version in known_releases() if not matches(entry["bridge"], version)]
        instead = prose(entry["instead"]) if "instead" in entry else code(entry["new"])
        row = (code(entry["old"] or entry["new"]), ", ".join(there), instead)
        rows.append((code(entry["symbol"]), *row) if symbols else row)
    return table(("class", *head) if symbols else head, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
