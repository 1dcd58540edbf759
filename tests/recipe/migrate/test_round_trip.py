"""Over drawn configs of each form: migrating twice changes nothing more, and there and back gives the same values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skill_run.bridge.release import known_releases
from skill_run.config.model import State
from skill_run.config.overrides import render_override
from skill_run.recipe.migrate import Migration, migrate_config
from skill_run.rules.validate import build_config, read_sources

RELEASES = known_releases()
FAST = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

powers = st.sampled_from([1, 2, 4, 8])
specs = st.fixed_dictionaries(
    {"packed_sequence_size": st.sampled_from([1024, 4096])},
    optional={"pad_seq_to_mult": powers, "pad_cu_seqlens": st.booleans()},
)
local = st.fixed_dictionaries(
    {"seq_length": st.sampled_from([1024, 4096])},
    optional={
        "dataset_root": st.just("/data/sft"),
        "packed_sequence_specs": specs,
        "do_test": st.booleans(),
        "seed": st.integers(0, 99),
        "dataset_kwargs": st.just({"pad_to_max_length": True}),
    },
)
hub = st.fixed_dictionaries(
    {
        "_target_": st.just("megatron.bridge.data.builders.hf_dataset.HFDatasetConfig"),
        "dataset_name": st.just("rajpurkar/squad"),
        "process_example_fn": st.just(
            {"_target_": "megatron.bridge.data.hf_processors.squad.process_squad_example", "_call_": False}
        ),
        "seq_length": st.just(2048),
        "val_proportion": st.sampled_from([0.1, 0.25]),
        "do_test": st.booleans(),
        "rewrite": st.booleans(),
    },
    optional={"packed_sequence_specs": specs},
)
others = st.fixed_dictionaries(
    {},
    optional={
        "model": st.fixed_dictionaries(
            {},
            optional={
                "tensor_model_parallel_size": powers,
                "expert_model_parallel_size": powers,
                "context_parallel_size": powers,
                "expert_tensor_parallel_size": st.one_of(st.none(), powers),
                "cuda_graph_scope": st.just(["attn"]),
            },
        ),
        "train": st.fixed_dictionaries(
            {},
            optional={"eval_iters": st.integers(1, 9), "micro_batch_size": powers, "skip_train": st.booleans()},
        ),
        "dist": st.fixed_dictionaries({"lazy_init": st.booleans()}),
    },
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a config in the names of 0.3.1."""
    tree: dict[str, Any] = {name: section for name, section in draw(others).items() if section}
    tree["dataset"] = draw(st.one_of(local, hub))
    return tree


pairs = st.tuples(st.sampled_from(RELEASES), st.sampled_from(RELEASES)).filter(lambda pair: pair[0] != pair[1])


def as_text(tree: Mapping[str, Any], form: str) -> str:
    return json.dumps(tree, indent=2) + "\n" if form == "json" else yaml.safe_dump(dict(tree), sort_keys=False)


def values(text: Any, version: str, form: str) -> dict[str, Any]:
    """Return the canonical values that a config sets, without those that say nothing."""
    options: dict[str, Any] = {"form": form} if isinstance(text, str) else {}
    config = build_config(read_sources(text, **options), bridge=version)
    return {name: held.value for name, held in config.values.items() if held.state is State.SET}


def moved(tree: dict[str, Any], form: str, before: str, after: str) -> tuple[Any, Migration]:
    """Return a drawn config in the names of `before`, and its migration to `after`."""
    source: Any = tree if form == "mapping" else as_text(tree, form)
    options: dict[str, Any] = {} if form == "mapping" else {"form": form}
    if before != RELEASES[0]:
        source = migrate_config(source, to=before, bridge=RELEASES[0], **options).text
    return source, migrate_config(source, to=after, bridge=before, **options)


@pytest.mark.parametrize("form", ["mapping", "yaml", "json"])
@FAST
@given(tree=configs(), pair=pairs)
def test_migrating_again_changes_nothing(form: str, tree: dict[str, Any], pair: tuple[str, str]) -> None:
    _, first = moved(tree, form, *pair)
    options: dict[str, Any] = {} if form == "mapping" else {"form": form}
    assert migrate_config(first.text, to=pair[1], bridge=pair[1], **options).text == first.text
    assert migrate_config(first.text, to=pair[1], bridge=pair[0], **options).text == first.text


@pytest.mark.parametrize("form", ["mapping", "yaml", "json"])
@FAST
@given(tree=configs(), pair=pairs)
def test_there_and_back_gives_the_same_values(form: str, tree: dict[str, Any], pair: tuple[str, str]) -> None:
    source, first = moved(tree, form, *pair)
    options: dict[str, Any] = {} if form == "mapping" else {"form": form}
    back = migrate_config(first.text, to=pair[0], bridge=pair[1], **options)
    assert not first.manual
    assert not back.manual
    assert [difference for difference in first.differences if not difference.why] == []
    before, after = values(source, pair[0], form), values(back.text, pair[0], form)
    pinned = {change.what.partition(" = ")[0] for change in (*first.changes, *back.changes)}
    assert {name: value for name, value in before.items() if value is not None} == {
        name: value
        for name, value in after.items()
        if value is not None and (before.get(name) is not None or name not in pinned)
    }


@FAST
@given(tree=configs(), pair=pairs)
def test_overrides_go_there_and_back_token_by_token(tree: dict[str, Any], pair: tuple[str, str]) -> None:
    tree["dataset"] = {key: value for key, value in tree["dataset"].items() if key in ("seq_length", "seed")}
    tokens = [
        render_override(f"{section}.{name}", value, "force")
        for section, fields in tree.items()
        for name, value in fields.items()
    ]
    there = migrate_config(None, overrides=tokens, to=pair[0], bridge=RELEASES[0]).text
    assert isinstance(there, str)
    first = migrate_config(None, overrides=there.splitlines(), to=pair[1], bridge=pair[0]).text
    assert isinstance(first, str)
    back = migrate_config(None, overrides=first.splitlines(), to=pair[0], bridge=pair[1]).text
    assert isinstance(back, str)
    again = migrate_config(None, overrides=first.splitlines(), to=pair[1], bridge=pair[0]).text
    assert again == first
    # A pinned expert tensor parallel size stays pinned.
    lines = [line for line in back.splitlines() if "expert_tensor" not in line]
    assert lines == [line for line in there.splitlines() if "expert_tensor" not in line]
