"""A resolved config: canonical fields that are set, unset with a default, or unknown with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from skill_run.bridge import names
from skill_run.bridge.families import provider_sets
from skill_run.bridge.release import NO_DEFAULT, Release, default_of, index
from skill_run.config.model import Remark, State, Value
from skill_run.report.finding import BridgeChoice

BaseKind = Literal["complete", "defaults", "recipe", "unknown"]


@dataclass(slots=True)
class Config:
    """A config that rules can ask for canonical fields.

    values: what was set or is unknown, by canonical name. unknown_prefixes: sections that code may have changed in a
    way nobody can tell. final: the input is a whole launch, so that what it leaves out stays out.
    """

    choice: BridgeChoice
    release: Release
    base: BaseKind
    base_text: str
    final: bool
    dataset_type: str | None = None
    model_type: str | None = None
    family: str = ""
    model_named: bool = False
    values: dict[str, Value] = field(default_factory=dict)
    unknown_prefixes: dict[str, str] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    world_size: int | None = None
    env: dict[str, str] | None = None
    env_complete: bool = False
    te: str | None = None
    gpu: str | None = None
    gpu_memory_gib: int | None = None
    tokens_per_rank: int | None = None
    max_tokens_per_rank: int | None = None
    dataset_replaced: bool = False
    _parents: tuple[int, frozenset[str]] | None = None

    @property
    def version(self) -> str:
        """The version rules are selected by."""
        return self.choice.version

    def written(self, canonical: str) -> str:
        """Return the field's name in the user's release."""
        return names.to_written(canonical, self.release.version, self.dataset_type)

    def get(self, canonical: str) -> Value:
        """Return a field: set, unset with the release's default, or unknown with a reason."""
        found = self.values.get(canonical)
        if found is not None:
            return found
        for prefix, reason in self.unknown_prefixes.items():
            if canonical.startswith(prefix + ".") or canonical == prefix:
                return Value(State.UNKNOWN, reason=reason)
        parent = canonical.rpartition(".")[0]
        while "." in parent:
            held = self.values.get(parent)
            if held is not None:
                return Value(held.state, None, held.location, held.written, held.reason)
            parent = parent.rpartition(".")[0]
        section = self.values.get(canonical.partition(".")[0])
        if section is not None and section.state is State.SET and section.value is None:
            return Value(State.SET, None, section.location, section.written)
        return self._default(canonical)

    def is_given(self, canonical: str) -> bool | None:
        """Tell whether a field or section has a non-null value; None when that is unknown."""
        found = self.get(canonical) if canonical in self.values else None
        if found is not None:
            return None if found.state is State.UNKNOWN else found.value is not None
        if canonical in self.parents_given():
            return True
        value = self.get(canonical)
        return None if value.state is State.UNKNOWN else value.value is not None

    def parents_given(self) -> frozenset[str]:
        """Return every section or field below which something was set."""
        if self._parents is None or self._parents[0] != len(self.values):
            parents = {name.rpartition(".")[0] for name in self.values}
            parents |= {name.rpartition(".")[0] for name in parents}
            self._parents = (len(self.values), frozenset(parents))
        return self._parents[1]

    def _default(self, canonical: str) -> Value:
        if self.base == "unknown" and not (self.dataset_replaced and canonical.startswith("dataset.")):
            return Value(State.UNKNOWN, reason=self.base_text)
        data = index()
        if self.base != "complete":
            if canonical in data["architecture_fields"]:
                return Value(State.UNKNOWN, reason="comes from the model's provider or Hugging Face config")
            if canonical in provider_sets(self.family):
                return Value(State.UNKNOWN, reason=f"is set by the {self.family} provider or recipe")
            if canonical in data["recipe_fields"] and (self.base == "recipe" or not self.final):
                return Value(State.UNKNOWN, reason="may be set by the recipe")
            if canonical in data["launch_fields"] and not self.final:
                return Value(State.UNKNOWN, reason="is given when the run is launched")
        if canonical in data["second_names"]:
            return Value(State.UNSET, value=None)
        if canonical in ("dataset.type", "model.type", "peft.type"):
            return Value(State.UNKNOWN if canonical != "peft.type" else State.UNSET, reason="the class is not named")
        if canonical == "dataset.enable_offline_packing" and not names.exists(canonical, self.release.version):
            return Value(State.UNSET, value=None)
        spec = self.release.field(self.written(canonical), self.dataset_type)
        if spec is None:
            return Value(State.UNSET, value=None)
        if canonical.startswith("dataset.offline_packing_specs.") and not self.is_given(
            "dataset.offline_packing_specs"
        ):
            return Value(State.UNSET, value=None)
        if canonical.startswith("dataset.") and self.dataset_type is None and canonical in data["launch_fields"]:
            return Value(State.UNKNOWN, reason="the dataset class is not named")
        if spec.default is NO_DEFAULT:
            return Value(State.UNKNOWN, reason="has no default and is not set")
        return Value(State.UNSET, value=default_of(spec))
