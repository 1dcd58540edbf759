"""What the forms write is read back by our own reader as exactly the settings of the draft."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from form_drafts import RELEASES, drafts, named_drafts
from hypothesis import HealthCheck, given, settings

from skill_run.bridge import names
from skill_run.bridge.names import canonical_field
from skill_run.bridge.recipes import catalogue
from skill_run.config.read import read_source
from skill_run.config.typing import check_value
from skill_run.errors import InputError
from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.assignments import dataset_type
from skill_run.recipe.forms.python_form import render_python
from skill_run.recipe.forms.script import render_script
from skill_run.rules.validate import build_config, validate_config

RENDERERS = (render_python, render_script)
# A function is not plain data, and a second name is kept beside the field that it stands for.
UNREAD = ("dataset.process_example_fn", "dataset.sequence_length")
NAMED = [(bridge, kind) for bridge in RELEASES for kind in named_drafts(bridge)]


def read_back(made: str, bridge: str) -> tuple[str | None, dict[str, Any]]:
    """Return the recipe of a script and what it sets, by canonical field."""
    source = read_source(made, bridge=bridge, form="python")
    config = build_config([source], bridge=bridge)
    found = {name: held.value for name, held in config.values.items() if held.written is not None}
    return source.recipe, {name: value for name, value in found.items() if name not in UNREAD}


def expected(draft: Draft) -> dict[str, Any]:
    """Return the settings in the form that the reader gives them."""
    found = {}
    for name, value in draft.settings.items():
        spec = canonical_field(name)
        found[name] = check_value(name, value, spec)[0] if spec is not None else value
    if not names.exists("dataset.enable_offline_packing", draft.bridge, dataset_type(draft)):
        found.pop("dataset.enable_offline_packing", None)
    return {name: value for name, value in found.items() if name not in UNREAD}


def without_implied(settings: dict[str, Any], draft: Draft) -> dict[str, Any]:
    """Leave out the classes that the form chose by itself, and the object that it made of a precision's name."""
    implied = {name for name in settings if name.endswith(".type") or name == "mixed_precision"} - set(draft.settings)
    return {name: value for name, value in settings.items() if name not in implied}


@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize(("bridge", "kind"), NAMED)
def test_each_kind_of_draft_is_read_back_as_it_was(bridge: str, kind: str, render: Callable[[Draft], str]) -> None:
    draft = named_drafts(bridge)[kind]
    recipe, found = read_back(render(draft), bridge)
    assert recipe == draft.recipe.name
    assert without_implied(found, draft) == expected(draft)


@pytest.mark.parametrize(("bridge", "kind"), NAMED)
def test_no_field_or_import_of_a_draft_is_unknown_to_its_release(bridge: str, kind: str) -> None:
    report = validate_config(render_script(named_drafts(bridge)[kind]), bridge=bridge, form="python")
    named = {finding.rule for finding in report.findings}
    assert not {rule for rule in named if rule.startswith(("unknown-", "renamed-", "wrong-"))}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drafts())
def test_any_drawn_draft_is_read_back_as_it_was(draft: Draft) -> None:
    for render in RENDERERS:
        made = render(draft)
        recipe, found = read_back(made, draft.bridge)
        assert recipe == draft.recipe.name
        assert without_implied(found, draft) == expected(draft)


def snippet(settings: dict[str, Any], bridge: str = "0.6.2", recipe: str = "llama32_1b_sft_config", **more: Any) -> str:
    return render_python(Draft(bridge, "w", "A run", "sft", catalogue(bridge)[recipe], settings, **more))


def test_a_part_that_the_recipe_has_is_changed_and_a_null_one_is_made() -> None:
    text = snippet({"dataset.offline_packing_specs.pad_seq_to_mult": 4, "comm_overlap.overlap_p2p_comm": True})
    assert "cfg.dataset.offline_packing_specs.pad_seq_to_mult = 4\n" in text
    assert "    overlap_p2p_comm=True,\n    tp_comm_overlap=False,\n)\n" in text


def test_packing_is_turned_off_as_the_release_says_it() -> None:
    settings = {"dataset.enable_offline_packing": False}
    assert "cfg.dataset.enable_offline_packing = False\n" in snippet(settings)
    assert "cfg.dataset.packed_sequence_specs = None\n" in snippet(settings, "0.5.1")


def test_the_evaluation_settings_stand_in_the_section_of_the_release() -> None:
    assert "cfg.validation.eval_iters = 2\n" in snippet({"validation.eval_iters": 2}, "0.4.2")
    assert "cfg.train.eval_iters = 2\n" in snippet({"validation.eval_iters": 2}, "0.3.1")


def test_items_of_a_mapping_that_the_recipe_has_leave_its_other_items() -> None:
    text = snippet({"dataset.dataset_kwargs.pad_to_max_length": False, "env_vars.A": "1"})
    assert 'cfg.dataset.dataset_kwargs["pad_to_max_length"] = False\n' in text
    assert 'cfg.env_vars["A"] = "1"\n' in text


def test_the_adapter_is_changed_when_it_stays_the_same_class_and_made_when_it_does_not() -> None:
    assert "cfg.peft.dim = 8\n" in snippet({"peft.type": "LoRA", "peft.dim": 8}, recipe="llama32_1b_peft_config")
    made = snippet({"peft.type": "DoRA", "peft.dim": 8}, recipe="llama32_1b_peft_config")
    assert "from megatron.bridge.peft.dora import DoRA\n" in made
    assert "cfg.peft = DoRA(\n    dim=8,\n)\n" in made


def test_a_comment_stands_once_above_what_it_explains() -> None:
    named = ("model.context_parallel_size", "model.calculate_per_token_loss")
    text = snippet(dict.fromkeys(named, 2), comments=dict.fromkeys(named, "long rows"))
    assert text.count("# long rows\n") == 1
    assert "# long rows\ncfg.model.context_parallel_size = 2\n" in text


@pytest.mark.parametrize(
    ("bridge", "settings", "sentence"),
    [
        ("0.5.1", {"dataset.type": "GPTSFTDatasetConfig"}, "0.5.1 has no class GPTSFTDatasetConfig"),
        ("0.6.2", {"dataset.type": "print"}, "0.6.2 has no class print"),
        ("0.6.2", {"peft.dim": 8}, "peft has settings, but its class is not named"),
        ("0.6.2", {"model.params_dtype": "os.system"}, "is 'os.system', which is no dtype"),
        ("0.6.2", {"model.attention_backend": "x()"}, "model.attention_backend is 'x()'"),
        ("0.5.1", {"dataset.process_example_fn": "os.system"}, "has no function system"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused_in_one_sentence(
    bridge: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        snippet(settings, bridge)


def test_long_values_take_one_line_for_each_item() -> None:
    modules = [f"module_number_{number}" for number in range(12)]
    text = snippet({"model.recompute_modules": modules})
    assert 'cfg.model.recompute_modules = [\n    "module_number_0",\n' in text
    assert max(map(len, text.splitlines())) <= 120
