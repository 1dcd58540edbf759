"""`explain`: everything the bundle knows about one rule, or about one field of a config."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from skill_run.bridge.names import canonical_field, to_canonical, to_written
from skill_run.bridge.release import (
    NO_DEFAULT,
    FieldSpec,
    default_of,
    index,
    known_releases,
    load_release,
    matches,
    newest_release,
)
from skill_run.bridge.version import normalise, recorded_for
from skill_run.bundle.load import load_rules
from skill_run.bundle.rule import Rule
from skill_run.config.model import Plain
from skill_run.errors import SkillRunError
from skill_run.report.safe import clip, flow, printable, show_value, strict
from skill_run.rules.derived import DERIVED
from skill_run.rules.environment import variables_in
from skill_run.rules.evaluate import _PLACEHOLDER, expressions_of

_MAX_NAME: Final = 120
_NAMED: Final = 5
_TYPES: Final = {
    "ints": "list of int",
    "strs": "list of str",
    "dtype": "dtype name",
    "map": "mapping",
    "specs": "packing specs",
    "any": "any value",
}
_INPUT_MEANINGS: Final = {
    "world_size": "Number of ranks (GPUs) of the run.",
    "te": "Transformer Engine version of the run.",
    "gpu": "GPU type of the run, such as h100.",
    "gpu_memory_gib": "Memory of one GPU in GiB, when it is not that of the GPU type.",
    "tokens_per_rank": "Tokens of one micro batch on one rank, when they do not follow from the config.",
    "max_tokens_per_rank": "Most tokens of one micro batch that fit on one rank, as measured by the user.",
    "dataset.type": "Class of the dataset config.",
    "model.type": "Class of the model provider.",
    "peft.type": "Class of the PEFT config.",
}
_VARIABLE: Final = re.compile(r"env\.\w+")


@dataclass(frozen=True, slots=True)
class RuleInRelease:
    """What a rule says for one recorded release. `fires` is the phase in which upstream itself notices."""

    release: str
    severity: str
    fires: str

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
        return {"release": self.release, "severity": self.severity, "fires": self.fires}


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """One rule in full.

    releases: the recorded releases it applies to. when, require: CEL over canonical names, both empty for a rule that
    the runtime computes. terms: meaning of the computed values that its expressions use. fix: field in the spelling of
    the release asked for, with a literal or a CEL expression. fails, passes: settings of one example each.
    """

    id: str
    skill: str
    title: str
    bridge: str
    releases: tuple[RuleInRelease, ...]
    when: str
    require: str
    terms: Mapping[str, str]
    fields: tuple[str, ...]
    message: str
    fix: Mapping[str, Plain]
    fix_is_semantic: bool
    advice: str
    explanation: str
    evidence: tuple[Mapping[str, str], ...]
    fails: Mapping[str, Plain] | None
    passes: Mapping[str, Plain] | None
    file: str

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as JSON-ready data."""
        return {
            "id": self.id,
            "skill": self.skill,
            "title": self.title,
            "bridge": self.bridge,
            "releases": [entry.to_dict() for entry in self.releases],
            "when": self.when,
            "require": self.require,
            "terms": dict(self.terms),
            "fields": list(self.fields),
            "message": self.message,
            "fix": dict(self.fix),
            "fix_is_semantic": self.fix_is_semantic,
            "advice": self.advice,
            "explanation": self.explanation,
            "evidence": [dict(item) for item in self.evidence],
            "fails": None if self.fails is None else dict(self.fails),
            "passes": None if self.passes is None else dict(self.passes),
            "file": self.file,
        }


@dataclass(frozen=True, slots=True)
class FieldInRelease:
    """How one recorded release spells and types a field.

    name: None when the release does not have it. classes: dataset classes that have it in this form; empty for a field
    of another section. some_models: only some model providers have it. has_default: False when it must be given.
    """

    release: str
    name: str | None
    type: str = ""
    has_default: bool = False
    default: Plain = None
    classes: tuple[str, ...] = ()
    some_models: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
        return {
            "release": self.release,
            "name": self.name,
            "type": self.type,
            "has_default": self.has_default,
            "default": self.default,
            "classes": list(self.classes),
            "some_models": self.some_models,
        }


@dataclass(frozen=True, slots=True)
class RuleReference:
    """A rule that mentions a field, with its severity in the release asked for or the newest it applies to."""

    id: str
    title: str
    severity: str

    def to_dict(self) -> dict[str, Any]:
        """Return the reference as JSON-ready data."""
        return {"id": self.id, "title": self.title, "severity": self.severity}


@dataclass(frozen=True, slots=True)
class FieldExplanation:
    """One field by its canonical name, over the recorded releases, or a value that rules compute.

    meaning: what a computed value or an input of the run stands for; empty for a plain field.
    """

    name: str
    meaning: str
    releases: tuple[FieldInRelease, ...]
    rules: tuple[RuleReference, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the field as JSON-ready data."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "releases": [entry.to_dict() for entry in self.releases],
            "rules": [reference.to_dict() for reference in self.rules],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to `explain`: exactly one of `rule` and `field` is given."""

    name: str
    kind: Literal["rule", "field"]
    rule: RuleExplanation | None = None
    field: FieldExplanation | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready data; a number that JSON lacks becomes text (`NaN`, `Infinity`)."""
        data: dict[str, Any] = strict(
            {
                "name": self.name,
                "kind": self.kind,
                "rule": None if self.rule is None else self.rule.to_dict(),
                "field": None if self.field is None else self.field.to_dict(),
            }
        )
        return data

    def render_text(self, width: int = 80) -> str:
        """Return the explanation for a terminal of `width` columns, without a final newline."""
        lines = _rule_lines(self.rule) if self.rule else _field_lines(self.field) if self.field else ()
        return "\n".join(_wrapped(indent, text, width) for indent, text in lines)


def explain(name: str, *, bridge: str | None = None, house: Sequence[Rule] = ()) -> Explanation:
    """Explain a rule by its id, or a field by its canonical name, any release's name, or an unambiguous last part.

    bridge: speak of this Megatron-Bridge version only; of every recorded release without it. house: a team's own
    rules, which are explained like the bundle's. Raises SkillRunError with the nearest names when there is none, and
    InputError when `bridge` is not a version.
    """
    version = normalise(bridge) if bridge is not None else None
    rules = (*load_rules(), *house)
    asked = name.strip()
    rule = next((rule for rule in rules if rule.id == asked), None)
    if rule is not None:
        return Explanation(rule.id, "rule", rule=_explain_rule(rule, version))
    found = _canonical_for(asked, version)
    if len(found) > 1:
        shown = printable(clip(asked, _MAX_NAME))
        raise SkillRunError(f"'{shown}' is the last part of {len(found)} names; give one in full: {_some(found)}")
    if not found:
        raise SkillRunError(_unknown(asked, rules))
    return Explanation(found[0], "field", field=_explain_field(found[0], rules, version))


def _releases(version: str | None) -> tuple[str, ...]:
    return known_releases() if version is None else (recorded_for(version)[0],)


def _explain_rule(rule: Rule, version: str | None) -> RuleExplanation:
    release = _releases(version)[0] if version is not None else newest_release()
    versions = known_releases() if version is None else (version,)
    return RuleExplanation(
        id=rule.id,
        skill=rule.skill,
        title=rule.title,
        bridge=rule.bridge,
        releases=tuple(
            RuleInRelease(entry, rule.severity_for(entry), rule.fires_for(entry))
            for entry in versions
            if matches(rule.bridge, entry)
        ),
        when="" if rule.computed else rule.when,
        require="" if rule.computed else rule.require,
        terms=_terms(expressions_of(rule)),
        fields=tuple(to_written(field, release) for field in _rule_fields(rule)),
        message=_named(rule.message, release),
        fix={to_written(field, release): value for field, value in rule.fix.items()},
        fix_is_semantic=rule.semantic_fix,
        advice=_named(rule.advice, release),
        explanation=rule.explanation,
        evidence=_evidence(rule, version),
        fails=_example(rule.fails, version),
        passes=_example(rule.passes, version),
        file=rule.file,
    )


def _named(text: str, release: str) -> str:
    """Return a message with `{name:field}` replaced by the field's name; other placeholders stay as written."""

    def replace(found: str) -> str:
        if found.startswith("name:"):
            return to_written(found.removeprefix("name:").strip(), release)
        return "{" + found + "}"

    return _PLACEHOLDER.sub(lambda match: replace(match.group(1)), text)


def _terms(expressions: Iterable[str]) -> dict[str, str]:
    used = (name for text in expressions for name in variables_in(text) if name in DERIVED)
    return {name: _meaning(name) for name in used}


def _meaning(name: str) -> str:
    return " ".join((DERIVED[name][1].__doc__ or "").split())


def _evidence(rule: Rule, version: str | None) -> tuple[dict[str, str], ...]:
    entries = [{key: str(value) for key, value in item.items()} for item in rule.evidence]
    own = [item for item in entries if version is not None and item.get("bridge") in (version, *_releases(version))]
    return tuple(own or entries)


def _example(examples: Sequence[Mapping[str, Any]], version: str | None) -> dict[str, Plain] | None:
    """Return the first example for the version, else the first that names no version, else the first."""
    if not examples:
        return None

    def rank(example: Mapping[str, Any]) -> int:
        given = example.get("bridge")
        if given is not None and version is not None:
            return 0 if str(given) in (version, *_releases(version)) else 2
        return 1 if given is None else 2

    best: Mapping[str, Any] = min(examples, key=rank)
    return dict(best)


def _rule_fields(rule: Rule) -> list[str]:
    """Return the canonical fields a rule mentions anywhere."""
    used = [name for text in expressions_of(rule) for name in variables_in(text)]
    names = [*rule.fields, *rule.fix, *(name.removeprefix("given.") for name in used)]
    return [name for name in dict.fromkeys(names) if name not in DERIVED]


@dataclass(frozen=True, slots=True)
class _Place:
    """A field as one class of one release has it."""

    written: str
    spec: FieldSpec
    owner: str = ""


@cache
def _fields() -> dict[str, dict[str, list[_Place]]]:
    """Return every field of the recorded releases: canonical name -> release -> places."""
    found: dict[str, dict[str, list[_Place]]] = {}
    for version in known_releases():
        for owner, written, spec in _written_fields(version):
            name = to_canonical(written, version, owner or None)
            found.setdefault(name, {}).setdefault(version, []).append(_Place(written, spec, owner))
    return found


def _written_fields(version: str) -> Iterator[tuple[str, str, FieldSpec]]:
    release = load_release(version)
    for written, spec in release.fields.items():
        yield "", written, spec
    for leaf, spec in release.specs.items():
        yield "", f"dataset.{release.specs_field}.{leaf}", spec
    for owner, table in release.datasets.items():
        for leaf, spec in table.items():
            yield owner, f"dataset.{leaf}", spec
    for section in release.sections:
        spec_of_section = canonical_field(section)
        if section not in release.fields and spec_of_section is not None:
            yield "", section, spec_of_section
    for name in index()["kwargs"]:
        spec_of_key = canonical_field(name)
        if spec_of_key is not None and not name.startswith("hf."):
            yield "", name, spec_of_key


@cache
def _aliases() -> dict[str, str]:
    """Return every written name of any release with its canonical name; the newest release's reading wins."""
    return {
        place.written: name
        for name, by_release in _fields().items()
        for places in by_release.values()
        for place in places
    }


def _computed_names() -> list[str]:
    return [*DERIVED, *_INPUT_MEANINGS, *(name for name in index()["kwargs"] if name.startswith("hf."))]


def _is_computed(name: str) -> bool:
    return name in _computed_names() or _VARIABLE.fullmatch(name) is not None


def _canonical_for(asked: str, version: str | None) -> list[str]:
    """Return the canonical names that `asked` can mean: one when it is a full name, else those it is the end of."""
    if version is not None:
        translated = to_canonical(asked, recorded_for(version)[0])
        if translated in _fields():
            return [translated]
    if asked in _fields() or _is_computed(asked):
        return [asked]
    if asked in _aliases():
        return [_aliases()[asked]]
    if not asked or asked.startswith("."):
        return []
    end = "." + asked
    found = [name for name in (*_fields(), *_computed_names()) if name.endswith(end)]
    found += [name for written, name in _aliases().items() if written.endswith(end)]
    return sorted(set(found))


def _explain_field(name: str, rules: Sequence[Rule], version: str | None) -> FieldExplanation:
    releases = () if _is_computed(name) else tuple(_in_releases(name, version))
    return FieldExplanation(name, _meaning_of(name), releases, tuple(_mentions(name, rules, version)))


def _meaning_of(name: str) -> str:
    if name in DERIVED:
        return _meaning(name)
    if name.startswith("hf."):
        return f"`{name.removeprefix('hf.')}` of the model's config.json."
    if name.startswith("env."):
        return f"Environment variable {name.removeprefix('env.')} of the run."
    return _INPUT_MEANINGS.get(name, "")


def _in_releases(name: str, version: str | None) -> Iterator[FieldInRelease]:
    by_release = _fields()[name]
    for release in _releases(version):
        forms: dict[tuple[str, str], list[_Place]] = {}
        for place in by_release.get(release, ()):
            forms.setdefault((place.written, repr(place.spec)), []).append(place)
        if not forms:
            yield FieldInRelease(release, None)
        for places in forms.values():
            yield _form(release, places[0], tuple(sorted(place.owner for place in places if place.owner)))


def _form(release: str, place: _Place, classes: tuple[str, ...]) -> FieldInRelease:
    spec = place.spec
    kind = _TYPES.get(spec.kind, spec.kind)
    given = spec.default is not NO_DEFAULT
    return FieldInRelease(
        release=release,
        name=place.written,
        type=f"{kind} or null" if spec.nullable else kind,
        has_default=given,
        default=default_of(spec) if given else None,
        classes=classes,
        some_models=spec.foreign,
    )


def _mentions(name: str, rules: Sequence[Rule], version: str | None) -> Iterator[RuleReference]:
    for rule in rules:
        if version is not None and not matches(rule.bridge, version):
            continue
        used = {used.removeprefix("given.") for text in expressions_of(rule) for used in variables_in(text)}
        if name in used or name in rule.fix or name in rule.fields:
            applied = version or next(
                (v for v in reversed(known_releases()) if matches(rule.bridge, v)), newest_release()
            )
            yield RuleReference(rule.id, rule.title, rule.severity_for(applied))


def _unknown(asked: str, rules: Sequence[Rule]) -> str:
    shown = printable(clip(asked, _MAX_NAME))
    near = _nearest(asked[:_MAX_NAME], rules)
    hint = f"did you mean {_some(near, ' or ')}?" if near else "`skill-run skills show NAME` lists the rules of a skill"
    return f"there is no rule and no field '{shown}'; {hint}"


def _nearest(asked: str, rules: Sequence[Rule]) -> list[str]:
    """Return the closest rule ids and full names, and the fields whose last part is close."""
    full = [*(rule.id for rule in rules), *_fields(), *_computed_names()]
    found = difflib.get_close_matches(asked, full, n=3, cutoff=0.75)
    leaves: dict[str, list[str]] = {}
    for name in (*_fields(), *DERIVED):
        leaves.setdefault(name.rpartition(".")[2], []).append(name)
    for leaf in difflib.get_close_matches(asked.rpartition(".")[2], leaves, n=2, cutoff=0.75):
        found += leaves[leaf]
    return list(dict.fromkeys(found))[:3]


def _some(names: Sequence[str], joint: str = ", ") -> str:
    rest = len(names) - _NAMED
    return joint.join(names[:_NAMED]) + (f", and {rest} more" if rest > 0 else "")


_Line = tuple[int, str]


def _wrapped(indent: int, text: str, width: int) -> str:
    lead = " " * indent
    hang = lead + ("  " if text.startswith("- ") else "")
    if not text:
        return ""
    return textwrap.fill(
        text,
        max(width, 20),
        initial_indent=lead,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _block(title: str, *texts: str) -> Iterator[_Line]:
    if any(texts):
        yield 0, ""
        yield 0, title
        yield from ((2, text) for text in texts if text)


def _rule_lines(rule: RuleExplanation) -> Iterator[_Line]:
    yield 0, flow(f"{rule.id}: {rule.title}")
    yield 0, flow(f"(skill {rule.skill}; Megatron-Bridge {rule.bridge})")
    yield from _block("Severity", *_severities(rule.releases))
    yield from _block("Applies when", "" if rule.when == "true" else printable(rule.when))
    yield from _block("Must hold", printable(rule.require))
    yield from _block("Words used", *(f"- {name}: {flow(text)}" for name, text in rule.terms.items()))
    yield from _block("Message", "" if rule.message == "{detail}" else flow(rule.message))
    mark = " (changes training)" if rule.fix_is_semantic else ""
    yield from _block("Fix", *(f"{name} = {_shown_fix(value)}{mark}" for name, value in rule.fix.items()))
    yield from _block("Advice", flow(rule.advice))
    yield from _block("Why", flow(rule.explanation))
    yield from _block("Evidence", *(f"- {_source(item)}" for item in rule.evidence))
    yield from _block("Example that fails", *_settings(rule.fails))
    yield from _block("Example that passes", *_settings(rule.passes))


def _severities(entries: Sequence[RuleInRelease]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        groups.setdefault((entry.severity, entry.fires), []).append(entry.release)
    for (severity, fires), releases in groups.items():
        notice = "never notices" if fires == "never" else f"notices at {fires}"
        yield f"{severity}; upstream {notice} ({', '.join(releases)})"
    if not entries:
        yield "the rule does not apply to this version"


def _shown_fix(value: Plain) -> str:
    """A fix given as text is an expression, anything else a literal."""
    return printable(value) if isinstance(value, str) else show_value(value)


def _source(item: Mapping[str, str]) -> str:
    versions = [
        f"{name} {item[key]}" for key, name in (("bridge", "Bridge"), ("core", "Core"), ("te", "TE")) if key in item
    ]
    places = [item[key] for key in ("file", "symbol", "url") if key in item]
    where = ", ".join([*versions, *places])
    return flow(f"{where}: {item['says']}" if where else item["says"])


def _settings(example: Mapping[str, Plain] | None) -> Iterator[str]:
    return (f"{name}: {show_value(value)}" for name, value in (example or {}).items())


def _field_lines(field: FieldExplanation) -> Iterator[_Line]:
    yield 0, field.name
    if field.meaning:
        yield 0, flow(field.meaning)
    yield from _block("Releases", *(_release_line(entry) for entry in field.releases))
    lines = [f"- {rule.severity} {rule.id}: {flow(rule.title)}" for rule in field.rules]
    yield from _block("Rules", *(lines or ["none mentions it"]))


def _release_line(entry: FieldInRelease) -> str:
    if entry.name is None:
        return f"- {entry.release}: absent"
    default = f"default {show_value(entry.default)}" if entry.has_default else "no default"
    where = f" in {', '.join(entry.classes)}" if entry.classes else ""
    where += " (some model providers only)" if entry.some_models else ""
    return clip(f"- {entry.release}: {entry.name}, {entry.type}, {default}{where}")
