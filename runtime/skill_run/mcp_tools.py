"""The tools of the MCP server: arguments in, pages of bounded size out. Heavy imports wait for the first call."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from skill_run import mcp_models as models
from skill_run.errors import InputError

if TYPE_CHECKING:
    from skill_run.bundle.rule import Rule
    from skill_run.config.model import Form
    from skill_run.report.finding import Finding, NotChecked, ValidationReport
    from skill_run.roots import Roots
    from skill_run.rules.evaluate import RuleSet

MAX_FINDINGS: Final = 50
MAX_NEEDS: Final = 10
MAX_LISTED: Final = 100
MAX_EVIDENCE: Final = 2
MAX_NAMES: Final = 8
MAX_MENTIONS: Final = 60
NAME_LIMIT: Final = 160
MESSAGE_LIMIT: Final = 700
FIX_LIMIT: Final = 500
REMEMBERED: Final = 16

TextForm = Literal["yaml", "json", "python", "overrides", "command", "sbatch"]

# How the reader names text that has no file.
_TEXT: Final = "<text>"
_OVERRIDE: Final = re.compile(r"(?:\+\+?)?[A-Za-z_][\w.]*=\S.*|~[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class _Input:
    """A config to judge: text of a known form with the name to show for it; without text when there are only overrides.

    file: real path of the text, None when it came with the call.
    """

    text: str | None
    form: Form | None
    shown: str
    overrides: tuple[str, ...]
    file: Path | None = None

    def digest(self) -> str:
        """Return a digest of everything that decides the report."""
        parts = (self.text, self.form, self.shown, self.overrides)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


class Tools:
    """The tools of one server. Every method is called in a worker thread, several at a time."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self._lock = threading.Lock()
        self._reports: OrderedDict[tuple[object, ...], ValidationReport] = OrderedDict()
        self._house: tuple[str, RuleSet] | None = None

    def validate_config(
        self,
        config_text: Annotated[
            str,
            Field(description="The config itself: YAML, JSON, Python, overrides, a launch command or a Slurm script."),
        ] = "",
        config_path: Annotated[
            str, Field(description="Config file in a folder the server may read. Give this or config_text, not both.")
        ] = "",
        form: Annotated[
            TextForm | None,
            Field(description="What config_text holds; only needed when it cannot be told from the text."),
        ] = None,
        recipe: Annotated[
            str, Field(description="Recipe function that the config or the overrides are laid over.")
        ] = "",
        overrides: Annotated[
            list[str] | None,
            Field(description="Hydra-style `section.field=value`, laid over the config or the recipe."),
        ] = None,
        bridge: Annotated[str, Field(description="Megatron-Bridge version, such as 0.6.2 or main.")] = "",
        world_size: Annotated[int | None, Field(ge=1, description="Number of ranks (GPUs) of the run.")] = None,
        model: Annotated[
            str, Field(description="Hugging Face model id, or a folder with config.json that the server may read.")
        ] = "",
        env: Annotated[dict[str, str | int] | None, Field(description="Environment variables of the run.")] = None,
        te: Annotated[str, Field(description="Transformer Engine version on the GPU machine.")] = "",
        gpu: Annotated[str, Field(description="GPU type, such as h100 or b200.")] = "",
        min_severity: Annotated[
            models.Severity, Field(description="Leave out findings that are less severe.")
        ] = "info",
        offset: Annotated[int, Field(ge=0, description="Findings to skip: next_offset of the page before.")] = 0,
        max_findings: Annotated[int, Field(ge=1, le=MAX_FINDINGS, description="Most findings on one page.")] = 20,
        list_not_checked: Annotated[bool, Field(description="Also list the rules that could not be decided.")] = False,
    ) -> models.ConfigReport:
        """Find every problem of a Megatron-Bridge training config at once, also those that upstream never notices.

        Give config_text or config_path, or only a recipe with overrides. Nothing is executed or changed. Every fact you
        add (bridge, world_size, model, env, te, gpu) decides more rules; `needs` in the result says which would help.
        Findings come worst first: corruption means that the run finishes with wrong training. A `fix` can be applied as
        it stands, but ask the user first when fix_is_semantic is true; then validate again.
        """
        given = self._input(config_text, config_path, form, tuple(overrides or ()))
        if given.text is None and not given.overrides and not recipe:
            raise InputError("nothing to validate: give config_text, config_path, or a recipe or overrides")
        run: dict[str, Any] = {
            "bridge": bridge or None,
            "world_size": world_size,
            "recipe": recipe or None,
            "model": self.roots.find_model(model) if model else None,
            "env": {name: str(value) for name, value in env.items()} if env else None,
            "te": te or None,
            "gpu": gpu or None,
        }
        report = self._report(given, run)
        return _page(report, report.at_least(min_severity), offset, max_findings, list_not_checked)

    def explain_rule(
        self,
        name: Annotated[
            str,
            Field(
                description="Rule id, or a config field: canonical, in any release's spelling, or its unique last part."
            ),
        ],
        bridge: Annotated[str, Field(description="Speak of this Megatron-Bridge version only.")] = "",
    ) -> models.RuleExplanation:
        """Explain the rule of a finding (cause, conditions, fix, evidence, examples), or a config field.

        For a field: its name, type and default in each Megatron-Bridge release, and the rules that mention it.
        """
        from skill_run.report.safe import strict
        from skill_run.rules.explain import explain

        found = strict(explain(name, bridge=bridge or None, house=self._house_rules()).to_dict())
        if found["field"] is not None:
            mentions = found["field"]["rules"]
            found["field"] |= {"rules": mentions[:MAX_MENTIONS], "rules_total": len(mentions)}
        return models.RuleExplanation.model_validate(found)

    def list_skills(self) -> models.SkillList:
        """List the skills: guides for packing, long context and parallel training on Megatron-Bridge.

        Read the resource of the one that fits the task before you advise on a config or change it.
        """
        from skill_run.bundle.skills import SKILL_FILE, list_skills

        return models.SkillList(
            skills=[
                models.Skill(
                    name=skill.name,
                    title=skill.title,
                    description=skill.description,
                    validated_on=skill.validated_on,
                    rule_count=skill.rule_count,
                    resource=f"skill://{skill.name}/{SKILL_FILE}" if (skill.path / SKILL_FILE).is_file() else "",
                )
                for skill in list_skills()
            ]
        )

    def _input(self, text: str, path: str, form: TextForm | None, overrides: tuple[str, ...]) -> _Input:
        from skill_run.config.read import form_of_file, form_of_text
        from skill_run.config.text import read_text
        from skill_run.config.tree import MAX_BYTES

        if text and path:
            raise InputError("give config_text or config_path, not both")
        if path:
            if form is not None:
                raise InputError("form is for config_text; the form of a file is told from its name and text")
            real = self.roots.find(path)
            try:
                held = read_text(real, MAX_BYTES)
            except InputError as error:
                raise InputError(str(error).replace(str(real), path)) from error
            return _Input(held, form_of_file(real, held), path, overrides, real)
        if not text.strip():
            return _Input(None, None, "overrides", overrides)
        if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise InputError(f"config_text is larger than {MAX_BYTES // 1024} KiB, which no config is")
        told = form or form_of_text(text)
        if told == "overrides" or (form is None and told == "yaml" and only_overrides(text)):
            return _Input(None, None, "overrides", (*override_tokens(text), *overrides))
        return _Input(text, told, "config_text", overrides)

    def _report(self, given: _Input, run: dict[str, Any]) -> ValidationReport:
        """Judge the input, or return the report of the same input again: an assistant asks for it page by page."""
        signature, rules = self._rules(self.roots.house_folder(given.file))
        key = (given.digest(), signature, repr(run))
        with self._lock:
            if key in self._reports:
                self._reports.move_to_end(key)
                return self._reports[key]
        report = _judge(given, rules, run)
        if run["model"] is None or not Path(run["model"]).exists():
            with self._lock:
                self._reports[key] = report
                while len(self._reports) > REMEMBERED:
                    self._reports.popitem(last=False)
        return report

    def _rules(self, folder: Path | None) -> tuple[str, RuleSet]:
        """Return the rules to judge by and a signature of the house rules among them, compiled once per content."""
        from skill_run.bundle.load import MAX_RULE_BYTES
        from skill_run.config.text import read_text
        from skill_run.rules.validate import bundle_rules, rule_set

        if folder is None:
            return "", bundle_rules()
        digest = hashlib.sha256(str(folder).encode())
        for path in sorted(folder.glob("*.y*ml")):
            digest.update(f"\0{path.name}\0{read_text(path, MAX_RULE_BYTES)}".encode())
        signature = digest.hexdigest()
        kept = self._house
        if kept is None or kept[0] != signature:
            kept = (signature, rule_set(None, folder))
            self._house = kept
        return kept

    def _house_rules(self) -> tuple[Rule, ...]:
        """Return the house rules of the roots, for explanations."""
        rules = self._rules(self.roots.house_folder(None))[1].rules
        return tuple(rule for rule in rules if rule.skill == "house")


def _judge(given: _Input, rules: RuleSet, run: dict[str, Any]) -> ValidationReport:
    from skill_run.rules.validate import judge

    try:
        report = judge(given.text, form=given.form, overrides=given.overrides, rules=rules, **run)
    except InputError as error:
        raise InputError(str(error).replace(_TEXT, given.shown)) from error
    findings = tuple(_named(finding, given) for finding in report.findings)
    return replace(report, source=given.shown if given.text is not None else report.source, findings=findings)


def _named(finding: Finding, given: _Input) -> Finding:
    """Return a finding that speaks of the file as it was named in the call."""
    where = finding.location
    if where is not None and where.file == _TEXT:
        where = replace(where, file=given.shown if given.file is not None else None)
    return replace(finding, location=where, message=finding.message.replace(_TEXT, given.shown))


def only_overrides(text: str) -> bool:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return all(_OVERRIDE.fullmatch(line) for line in lines)


def override_tokens(text: str) -> list[str]:
    """Return one override per line, or the words of a single line as a shell splits them."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        return lines
    try:
        return shlex.split(lines[0])
    except ValueError as error:
        raise InputError(f"the overrides cannot be split into words: {error}") from error


def _page(
    report: ValidationReport, found: Sequence[Finding], offset: int, most: int, list_not_checked: bool
) -> models.ConfigReport:
    from skill_run.report.safe import flow
    from skill_run.report.wording import totals, upstream_verdict

    end = offset + most
    choice = report.bridge
    return models.ConfigReport(
        verdict=f"{totals(report)}. {upstream_verdict(report)}",
        summary=models.Summary(**report.summary),
        upstream_validate=report.upstream_validate,
        bridge=models.Bridge(version=name_of(choice.version), release=choice.release, because=flow(choice.because)),
        source=name_of(report.source),
        world_size=report.world_size,
        base=flow(report.base),
        rules_checked=report.rules_checked,
        total=len(found),
        offset=offset,
        next_offset=end if end < len(found) else None,
        findings=[_finding(finding) for finding in found[offset:end]],
        needs=_needs(report.not_checked),
        not_checked=[_not_checked(entry) for entry in report.not_checked[:MAX_LISTED]] if list_not_checked else [],
    )


def _finding(finding: Finding) -> models.Finding:
    from skill_run.report.safe import clip, flow, strict

    fix = {name_of(name): strict(value) for name, value in finding.fix.items()}
    long = [name for name, value in fix.items() if len(json.dumps(value)) > FIX_LIMIT]
    where = finding.location
    return models.Finding(
        rule=finding.rule,
        severity=finding.severity,
        title=finding.title,
        message=flow(clip(finding.message, MESSAGE_LIMIT)),
        fields=names_of(finding.fields),
        location=None if where is None else models.Place(file=where.file, line=where.line, column=where.column),
        fix={name: value for name, value in fix.items() if name not in long},
        fix_left_out=long,
        fix_is_semantic=finding.fix_is_semantic,
        fires=finding.fires,
        skill=finding.skill,
        evidence=[evidence_of(item) for item in finding.evidence[:MAX_EVIDENCE]],
        docs=finding.docs,
    )


def evidence_of(item: dict[str, str]) -> dict[str, str]:
    from skill_run.report.safe import clip, flow

    return {key: flow(clip(text, MESSAGE_LIMIT)) for key, text in item.items()}


def _needs(entries: Iterable[NotChecked]) -> list[models.Need]:
    """Return the missing inputs with the number of rules that each would help to decide, the most useful first."""
    counts = Counter(need for entry in entries for need in entry.needs)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [models.Need(need=name_of(need), rules=number) for need, number in ranked[:MAX_NEEDS]]


def _not_checked(entry: NotChecked) -> models.NotCheckedRule:
    return models.NotCheckedRule(
        rule=entry.rule, title=entry.title, severity=entry.severity, needs=names_of(entry.needs)
    )


def names_of(names: Sequence[str]) -> list[str]:
    rest = len(names) - MAX_NAMES
    return [name_of(name) for name in names[:MAX_NAMES]] + ([f"and {rest} more"] if rest > 0 else [])


def name_of(text: str) -> str:
    from skill_run.report.safe import clip, printable

    return printable(clip(text, NAME_LIMIT))
