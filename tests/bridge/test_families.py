"""Which model family an input belongs to, and what that family's provider sets by itself."""

from __future__ import annotations

import pytest

from skill_run.bridge.families import family_of, provider_sets
from skill_run.bridge.names import canonical_field
from skill_run.bridge.recipes import catalogue
from skill_run.bridge.release import known_releases, read_data

ENTRIES = read_data("families.json")


@pytest.mark.parametrize(
    ("told", "family"),
    [
        ({"recipe": "qwen3_next_80b_a3b_sft_config"}, "qwen3-next"),
        ({"recipe": "gemma2_27b_sft_config"}, "gemma-2"),
        ({"recipe": "gemma3_vl_4b_sft_config"}, "gemma-3-vl"),
        ({"recipe": "gpt_oss_20b_sft_config"}, "gpt-oss"),
        ({"recipe": "qwen3_vl_8b_sft_config"}, "qwen3-vl"),
        ({"recipe": "llama3_8b_sft_config"}, ""),
        ({"provider": "Gemma2ModelProvider"}, "gemma-2"),
        ({"provider": "Gemma2ModelProvider9B"}, "gemma-2"),
        ({"provider": "Qwen3NextModelProvider"}, "qwen3-next"),
        ({"provider": "GPTOSSProvider20B"}, "gpt-oss"),
        ({"provider": "GPTModelProvider"}, ""),
        ({"model": "google/gemma-2-9b"}, "gemma-2"),
        ({"model": "Google/Gemma-2-9B-it"}, "gemma-2"),
        ({"model": "google/gemma-3-4b-it"}, "gemma-3-vl"),
        ({"model": "Qwen/Qwen3-Next-80B-A3B-Instruct"}, "qwen3-next"),
        ({"model": "openai/gpt-oss-20b"}, "gpt-oss"),
        ({"model": "meta-llama/Llama-3.1-8B"}, ""),
        ({"model_type": "gemma2"}, "gemma-2"),
        ({"model_type": "qwen3_vl_moe"}, "qwen3-vl"),
        ({"model_type": "qwen3_omni_moe"}, "qwen3-omni"),
        ({"model_type": "llama"}, ""),
        ({}, ""),
        ({"recipe": "", "provider": "", "model": "", "model_type": ""}, ""),
    ],
)
def test_the_family_is_told_by_recipe_provider_model_or_type(told: dict[str, str], family: str) -> None:
    assert family_of(**told) == family


@pytest.mark.parametrize(
    "told",
    [
        {"recipe": "my_gemma2_9b_config"},
        {"provider": "MyGemma2ModelProvider"},
        {"model_type": "gemma2_text"},
        {"model": "google/gemma2"},
    ],
)
def test_a_name_that_only_resembles_a_family_is_not_taken_for_it(told: dict[str, str]) -> None:
    assert family_of(**told) == ""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry["slug"]))
def test_every_way_a_family_is_named_leads_back_to_it(entry: dict[str, list[str]]) -> None:
    ways = [{"recipe": f"{prefix}7b_sft_config"} for prefix in entry["recipes"]]
    ways += [{"provider": f"{prefix}ModelProvider"} for prefix in entry["providers"]]
    ways += [{"model": f"org/{part.upper()}7b"} for part in entry["models"]]
    ways += [{"model_type": kind} for kind in entry["model_types"]]
    assert [(way, family_of(**way)) for way in ways if family_of(**way) != entry["slug"]] == []


def test_slugs_are_unique() -> None:
    slugs = [entry["slug"] for entry in ENTRIES]
    assert len(slugs) == len(set(slugs))


@pytest.mark.parametrize(
    ("slug", "fields"),
    [
        ("qwen3-vl", ("model.calculate_per_token_loss",)),
        ("mistral", ("model.cp_comm_type",)),
        ("glm-5", ("model.cp_comm_type",)),
        ("gemma-2", ()),
        ("", ()),
        ("no-such-family", ()),
    ],
)
def test_a_provider_sets_the_fields_it_is_known_to_set(slug: str, fields: tuple[str, ...]) -> None:
    assert provider_sets(slug) == fields


def test_every_field_that_a_provider_sets_is_a_known_field() -> None:
    fields = {field for entry in ENTRIES for field in provider_sets(entry["slug"])}
    assert fields
    assert [field for field in fields if canonical_field(field) is None] == []


@pytest.mark.parametrize("slug", ["qwen3-next", "gemma-2", "gemma-3-vl", "qwen3-vl", "gpt-oss"])
def test_a_family_has_recipes_in_some_release(slug: str) -> None:
    recipes = {name for version in known_releases() for name in catalogue(version)}
    assert any(family_of(recipe=name) == slug for name in recipes)
