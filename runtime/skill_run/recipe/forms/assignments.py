"""The settings of a draft as Python assignments on `cfg`, with the imports that they need.

A part that the recipe has is changed attribute by attribute; one that is null in the recipe, or whose class the draft
names, is made anew with keywords.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from skill_run.bridge import names
from skill_run.bridge.release import Release, load_release
from skill_run.config.model import Plain
from skill_run.errors import InputError
from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.literals import comment, literal, quoted
from skill_run.recipe.forms.names import REQUIRED, Symbol, home_of, implied_class, processor_symbol

_SWITCH: Final = "dataset.enable_offline_packing"
_SPECS: Final = "dataset.offline_packing_specs"
_PRECISION: Final = "mixed_precision"
_ORDER: Final = ("model", "dataset", "train", "validation", "optimizer", "scheduler", "ddp", "dist", "checkpoint")
_DTYPES: Final = frozenset({"bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "uint8"})
_SHORT: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_TORCH: Final = Symbol("torch", "")


@dataclass(slots=True)
class Part:
    """A setting, or an object with settings. path: its written name; canonical: the name that comments go by."""

    path: str
    canonical: str
    value: Plain = None
    parts: dict[str, Part] = field(default_factory=dict)
    is_object: bool = False

    @property
    def cls(self) -> str | None:
        """The class that the draft names for an object."""
        named = self.parts.get("type")
        return named.value if named is not None and isinstance(named.value, str) else None

    def settings(self) -> Iterator[tuple[str, Part]]:
        """Yield the parts by name, without the class."""
        return ((name, part) for name, part in self.parts.items() if name != "type")


def dataset_type(draft: Draft) -> str | None:
    """Return the class of the data set that a draft ends with."""
    named = draft.settings.get("dataset.type", draft.recipe.values.get("dataset.type"))
    return named if isinstance(named, str) else None


def tree_of(draft: Draft) -> dict[str, Part]:
    """Return the settings of a draft by section, in written names; sections that matter most come first."""
    root = Part("", "", is_object=True)
    for canonical, value in _spelled(draft).items():
        written = names.to_written(canonical, draft.bridge, dataset_type(draft))
        held = root
        canonical_parts = canonical.split(".")
        *parents, leaf = written.split(".")
        for depth, name in enumerate(parents, 1):
            path = ".".join(parents[:depth])
            held = held.parts.setdefault(name, Part(path, ".".join(canonical_parts[:depth])))
            held.is_object = True
        held.parts.setdefault(leaf, Part(written, canonical)).value = value
    ranked = sorted(root.parts, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return {name: root.parts[name] for name in ranked}


def _spelled(draft: Draft) -> dict[str, Plain]:
    """Return the settings as the release can say them: before 0.6 the packing specs themselves are the switch."""
    settings = dict(draft.settings)
    if names.exists(_SWITCH, draft.bridge) or _SWITCH not in settings:
        return settings
    if settings.pop(_SWITCH):
        return settings
    kept = {name: value for name, value in settings.items() if name != _SPECS and not name.startswith(_SPECS + ".")}
    replaced = "dataset.type" in settings or not _has_specs(draft)
    return kept if replaced else {**kept, _SPECS: None}


def _has_specs(draft: Draft) -> bool:
    return any(name.startswith(_SPECS + ".") for name in draft.recipe.values)


class Writer:
    """Writes the assignments of one draft. `symbols` are the imports that they need."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.release: Release = load_release(draft.bridge)
        self.symbols: set[Symbol] = set()
        self.explained: set[str] = set()
        self.lines: list[str] = []

    def write(self, indent: int) -> list[str]:
        """Return the lines of all sections, each with its comments, separated by blank lines."""
        for section in tree_of(self.draft).values():
            self.lines.append("")
            self.assign(section, f"cfg.{section.path}", indent)
        return self.lines

    def assign(self, part: Part, target: str, indent: int) -> None:
        """Add the statements that give `target` the settings of a part."""
        if not part.is_object:
            self.put(part, f"{target} = {self.value(part, indent, len(target) + 3)}", indent)
        elif self.is_mapping(part):
            self.assign_mapping(part, target, indent)
        elif part.path == _PRECISION and isinstance(self.precision(part), str):
            self.assign_precision(part, target, indent)
        elif self.is_made(part):
            self.put(part, f"{target} = {self.built(part, indent)}", indent)
        else:
            for name, inner in part.settings():
                self.assign(inner, f"{target}.{name}", indent)

    def assign_mapping(self, part: Part, target: str, indent: int) -> None:
        if not self.in_recipe(part.canonical) and part.path != "env_vars":
            self.put(part, f"{target} = {self.value(part, indent, len(target) + 3)}", indent)
            return
        for name, inner in part.parts.items():
            item = f"{target}[{quoted(name)}]"
            self.put(inner, f"{item} = {self.value(inner, indent, len(item) + 3)}", indent)

    def precision(self, part: Part) -> Plain:
        """Return the name of the precision recipe that the settings change, None when there is none."""
        return part.value if part.value is not None else self.draft.recipe.values.get(part.path)

    def assign_precision(self, part: Part, target: str, indent: int) -> None:
        """Make the object that a name stands for, since a name has no fields to set."""
        maker = home_of("get_mixed_precision_config", self.draft.bridge)
        self.symbols.add(maker)
        self.put(part, f"{target} = {maker.name}({literal(self.precision(part))})", indent)
        for name, inner in part.settings():
            self.assign(inner, f"{target}.{name}", indent)

    def put(self, part: Part, statement: str, indent: int) -> None:
        self.lines += self.comments(part, indent)
        self.lines.append("    " * indent + statement)

    def comments(self, part: Part, indent: int) -> list[str]:
        """Return the comment of a part, of its class, or of a mapping's items; nothing is said twice in a row."""
        named = [part.canonical]
        if part.is_object:
            named.append(f"{part.canonical}.type")
        if part.path.endswith("packed_sequence_specs"):
            named.append(_SWITCH)
        if part.is_object and self.is_mapping(part):
            named += [inner.canonical for inner in part.parts.values()]
        found = dict.fromkeys(self.draft.comments[name] for name in named if name in self.draft.comments)
        new = [text for text in found if text not in self.explained]
        self.explained.update(new)
        return [line for text in new for line in comment(text, indent)]

    def in_recipe(self, canonical: str) -> bool:
        values = self.draft.recipe.values
        return any(name == canonical or name.startswith(canonical + ".") for name in values) and not (
            canonical.startswith("dataset.") and "dataset.type" in self.draft.settings
        )

    def is_mapping(self, part: Part) -> bool:
        """Tell whether a part is a plain mapping and not an object of a class."""
        if names.is_free_form(part.path):
            return True
        spec = self.release.field(part.path, dataset_type(self.draft))
        return spec is not None and spec.kind == "map" and part.cls is None

    def is_made(self, part: Part) -> bool:
        """Tell whether a part is made anew: the draft names its class, or it is null in the recipe."""
        if part.cls is not None:
            return part.path == "dataset" or part.cls != self.draft.recipe.values.get(f"{part.canonical}.type")
        null_at_first = implied_class(part.path) is not None or part.path in self.release.optional_sections
        return null_at_first and not self.in_recipe(part.canonical)

    def built(self, part: Part, indent: int) -> str:
        """Return the call that makes an object with its settings as keywords."""
        cls = part.cls or implied_class(part.path)
        if cls is None:
            raise InputError(f"{part.path} has settings, but its class is not named; name it with {part.path}.type")
        self.symbols.add(home_of(cls, self.draft.bridge))
        lines: list[str] = []
        for name, inner in part.settings():
            lines += self.comments(inner, indent + 1)
            made = inner.is_object and not self.is_mapping(inner)
            text = self.built(inner, indent + 1) if made else self.value(inner, indent + 1, len(name) + 2)
            lines.append("    " * (indent + 1) + f"{name}={text},")
        for name, value in REQUIRED.get(cls, {}).items():
            if name not in part.parts:
                lines.append("    " * (indent + 1) + f"{name}={literal(value)},")
        return f"{cls}()" if not lines else f"{cls}(\n" + "\n".join(lines) + "\n" + "    " * indent + ")"

    def value(self, part: Part, indent: int, used: int) -> str:
        """Return the value of a setting as source: a literal, or the dtype or backend that a name stands for."""
        plain = _plain(part)
        spec = self.release.field(part.path, dataset_type(self.draft))
        if isinstance(plain, str) and spec is not None and spec.kind == "dtype":
            return self.dtype(part.path, plain)
        if isinstance(plain, str) and part.path == "model.attention_backend":
            return self.backend(plain)
        if part.path.endswith(".process_example_fn") and isinstance(plain, str):
            return self.processor(plain)
        return literal(plain, indent=indent, used=used)

    def dtype(self, path: str, name: str) -> str:
        short = name.removeprefix("torch.")
        known = _SHORT.get(short, short)
        if known not in _DTYPES:
            raise InputError(f"{path} is {name[:60]!r}, which is no dtype of torch")
        self.symbols.add(_TORCH)
        return f"torch.{known}"

    def backend(self, name: str) -> str:
        if name not in ("flash", "fused", "unfused", "local", "auto"):
            raise InputError(
                f"model.attention_backend is {name[:60]!r}, but it is flash, fused, unfused, local or auto"
            )
        self.symbols.add(home_of("AttnBackend", self.draft.bridge))
        return f"AttnBackend.{name}"

    def processor(self, name: str) -> str:
        symbol = processor_symbol(name, self.draft.bridge)
        self.symbols.add(symbol)
        return symbol.name


def _plain(part: Part) -> Plain:
    """Return a part as plain data; an object without a class is a mapping."""
    if not part.is_object:
        return part.value
    return {name: _plain(inner) for name, inner in part.parts.items()}
