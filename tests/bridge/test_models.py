from __future__ import annotations

import json
from pathlib import Path

import pytest

from skill_run.bridge.models import hub_snapshot, model_config, published_config
from skill_run.bridge.recipes import catalogue
from skill_run.errors import InputError

MODEL = "acme/tiny"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(hub: Path, revision: str, **content: object) -> Path:
    folder = hub / "models--acme--tiny" / "snapshots" / revision
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_the_hubs_cache_on_this_machine_counts_as_local(hub: Path) -> None:
    cached(hub, "a" * 40, hidden_size=64)
    assert model_config(MODEL, None) == {"hidden_size": 64}


def test_a_folder_that_the_user_gives_comes_first(hub: Path, tmp_path: Path) -> None:
    cached(hub, "a" * 40, hidden_size=64)
    (tmp_path / "config.json").write_text('{"hidden_size": 32}', encoding="utf-8")
    assert model_config(MODEL, str(tmp_path)) == {"hidden_size": 32}


def test_an_unknown_model_is_one_sentence_on_how_to_provide_it(hub: Path) -> None:
    with pytest.raises(InputError, match=r"acme/tiny, whose config.json is not on this machine; .*--model DIR"):
        model_config(MODEL, None)


def test_a_folder_without_config_is_told(hub: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        model_config("meta-llama/Llama-3.2-1B", str(tmp_path))


@pytest.mark.parametrize("name", ["../../etc", "a/../b", "a/b/c", "/etc", ""])
def test_a_name_never_leads_out_of_the_cache(hub: Path, name: str) -> None:
    assert hub_snapshot(name, "config.json") is None


def test_published_shapes_are_of_models_that_recipes_start_from() -> None:
    known = {recipe.hf_model for recipe in catalogue("0.6.2").values()}
    table = json.loads((Path(__file__).parents[2] / "runtime/skill_run/bridge/data/models.json").read_text("utf-8"))
    names = {name for architecture in table.values() for name in architecture["models"]}
    assert names <= known
    for name in names:
        config = published_config(name)
        assert config is not None
        assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
