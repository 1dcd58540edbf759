"""What rewriting a script does to imports, calls, attributes and statements, and what it leaves and lists."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from skill_run.errors import InputError, MissingError
from skill_run.recipe.migrate import Migration, migrate_config

DATA = Path(__file__).parents[1] / "data"
SCRIPTS = sorted(DATA.glob("*.py.txt"))
SPECS = "from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs\n"
SFT = "from megatron.bridge.training.config import FinetuningDatasetConfig\n"


def migrated(text: str, to: str = "0.6.2", bridge: str = "0.5.1") -> Migration:
    migration = migrate_config(text, to=to, bridge=bridge, form="python")
    assert isinstance(migration.text, str)
    ast.parse(migration.text)
    return migration


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_migrates_with_nothing_left_and_a_second_time_nothing_changes(script: Path) -> None:
    bridge = "0.3.1" if script.name.startswith("whole") else "0.5.1"
    first = migrated(script.read_text(), bridge=bridge)
    assert first.clean, (first.manual, first.note, [d for d in first.differences if not d.why])
    assert first.changes
    for word in ("packed_sequence_specs", "FinetuningDatasetConfig", "pack_sequences_in_batch"):
        assert word not in str(first.text)
    again = migrate_config(first.text, to="0.6.2", form="python")
    assert again.text == first.text
    assert not again.changes


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_lines_that_no_step_touches_keep_every_character(script: Path) -> None:
    changing = re.compile(
        r"import|[Dd]ataset|Provider|pack|default_squad|eval_i|maker|process_|val_prop|rewrite|Scheduler|TrainingConfig|"
        r"specs|\bData\b|expert_model_parallel|num_layers|config_|make\("
    )
    text = script.read_text()
    result = set(str(migrated(text).text).splitlines())
    assert [line for line in text.splitlines() if not changing.search(line) and line not in result] == []


@pytest.mark.parametrize(
    ("value", "switch"),
    [
        ("PackedSequenceSpecs(packed_sequence_size=64)", "True"),
        ("specs", "specs is not None"),
        ("self.specs", "self.specs is not None"),
        ("PackedSequenceSpecs(packed_sequence_size=64) if args.pack else None", "bool(args.pack)"),
        ("PackedSequenceSpecs(packed_sequence_size=n) if n > 0 else None", "n > 0"),
        ("None if args.plain else PackedSequenceSpecs(packed_sequence_size=64)", "not (args.plain)"),
    ],
)
def test_the_switch_is_true_exactly_when_the_specs_are_given(value: str, switch: str) -> None:
    text = f"{SPECS}{SFT}d = FinetuningDatasetConfig(dataset_root='/d', seq_length=64, packed_sequence_specs={value})\n"
    result = migrated(text)
    assert f"offline_packing_specs={value}, enable_offline_packing={switch})" in str(result.text)
    assert not result.manual


def test_a_switch_that_depends_on_an_unknown_function_is_listed_with_its_line() -> None:
    text = f"from team import make\n{SFT}\nd = FinetuningDatasetConfig(seq_length=64, packed_sequence_specs=make())\n"
    result = migrated(text)
    assert [(item.what, item.line) for item in result.manual] == [("enable_offline_packing", 4)]


def test_options_kept_in_a_mapping_move_with_their_switch() -> None:
    text = f"{SPECS}options = dict(seq_length=8)\noptions['packed_sequence_specs'] = PackedSequenceSpecs()\n"
    result = migrated(text)
    assert str(result.text).endswith(
        "options['offline_packing_specs'] = PackedSequenceSpecs()\noptions[\"enable_offline_packing\"] = True\n"
    )


def test_specs_of_null_size_were_never_packed_and_go() -> None:
    text = f"{SPECS}{SFT}d = FinetuningDatasetConfig(seq_length=64, packed_sequence_specs=PackedSequenceSpecs())\n"
    result = migrated(text)
    assert "d = GPTSFTDatasetConfig(seq_length=64)" in str(result.text)


def test_arguments_on_lines_of_their_own_get_one_too_with_comments_where_they_were() -> None:
    text = (
        f"{SPECS}{SFT}d = FinetuningDatasetConfig(\n    seq_length=64,  # short\n"
        "    packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size=64)  # pack\n)\n"
    )
    assert str(migrated(text).text).endswith(
        "d = GPTSFTDatasetConfig(\n    seq_length=64,  # short\n"
        "    offline_packing_specs=PackedSequenceSpecs(packed_sequence_size=64),  # pack\n"
        "    enable_offline_packing=True\n)\n"
    )


def test_windows_line_ends_stay() -> None:
    text = f"{SPECS}{SFT}cfg.dataset.packed_sequence_specs = None\n".replace("\n", "\r\n")
    result = str(migrated(text).text)
    assert "cfg.dataset.enable_offline_packing = False\r\n" in result
    assert "\n" not in result.replace("\r\n", "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from megatron.bridge.training.config import ConfigContainer, FinetuningDatasetConfig as D\n",
            "from megatron.bridge.data.builders import GPTSFTDatasetConfig as D\n",
        ),
        (
            "import megatron.bridge.data.datasets.packed_sequence as ps\nx = ps.PackedSequenceSpecs()\n",
            "import megatron.bridge.data.packing as ps\nx = ps.PackedSequenceSpecs()\n",
        ),
        (
            "import megatron.bridge.data.datasets.packed_sequence\n"
            "x = megatron.bridge.data.datasets.packed_sequence.PackedSequenceSpecs()\n",
            "x = megatron.bridge.data.packing.PackedSequenceSpecs()\n",
        ),
        (
            "from megatron.bridge.data.datasets.sft import GPTSFTDataset, GPTSFTPackedDataset, get_dataset_root\n",
            "from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset\n",
        ),
        (
            "from megatron.bridge.recipes.utils.finetune_utils import (\n    default_peft_config,\n)\n",
            "from megatron.bridge.recipes.utils.dataset_utils import (\n    default_peft_config,\n)\n",
        ),
        (
            "from megatron.bridge.recipes.utils.finetune_utils "
            "import default_openmathinstruct2_thinking_packed_config\n"
            "d = default_openmathinstruct2_thinking_packed_config(packed_sequence=True)\n",
            "d = default_openmathinstruct2_thinking_config(enable_offline_packing=True)\n",
        ),
        (
            f"{SFT}def f(d: 'FinetuningDatasetConfig') -> FinetuningDatasetConfig: ...\n",
            "def f(d: 'GPTSFTDatasetConfig') -> GPTSFTDatasetConfig: ...\n",
        ),
        (
            "overrides = ['dataset.pack_sequences_in_batch=true']\n",
            "overrides = ['dataset.enable_in_batch_packing=true']\n",
        ),
    ],
)
def test_imports_names_and_tokens_move(before: str, after: str) -> None:
    result = migrated(before)
    assert after in str(result.text)
    assert not result.manual


def test_star_imports_are_listed() -> None:
    result = migrated("from megatron.bridge.data.datasets.packed_sequence import *\n")
    assert result.text == "from megatron.bridge.data.datasets.packed_sequence import *\n"
    assert [item.line for item in result.manual] == [1]
    assert not result.clean


def test_an_import_whose_alternative_the_target_has_stays() -> None:
    text = (
        "try:\n    from megatron.bridge.data.packing import PackedSequenceSpecs\n"
        "except ImportError:\n    from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs\n"
    )
    assert migrated(text).text == text


def test_code_that_asks_for_the_release_itself_stays() -> None:
    text = (
        "def f(cfg):\n    if hasattr(cfg, 'validation'):\n        cfg.validation.eval_iters = 1\n    else:\n"
        "        cfg.train.eval_iters = 1\n"
    )
    result = migrated(text, bridge="0.3.1")
    assert result.text == text


def test_eval_settings_of_a_training_config_move_to_the_container() -> None:
    text = (
        "from megatron.bridge.training.config import ConfigContainer, TrainingConfig\n"
        "train = TrainingConfig(train_iters=5, eval_iters=2)\n"
        "cfg = ConfigContainer(train=train, model=None)\n"
    )
    result = str(migrated(text, to="0.4.2", bridge="0.3.1").text)
    assert "import ConfigContainer, TrainingConfig, ValidationConfig\n" in result
    assert "TrainingConfig(train_iters=5)\n" in result
    assert "ConfigContainer(train=train, validation=ValidationConfig(eval_iters=2), model=None)" in result


def test_an_eval_setting_that_nobody_read_does_not_overrule_the_one_that_is_read() -> None:
    text = "def f(cfg):\n    cfg.validation.eval_iters = 5\n    cfg.train.eval_iters = 1\n"
    assert migrated(text).text == text


def test_an_eval_setting_of_a_parameter_is_listed() -> None:
    result = migrated("def tune(train):\n    train.eval_iters = 3\n", bridge="0.3.1")
    assert result.text == "def tune(train):\n    train.eval_iters = 3\n"
    assert [item.line for item in result.manual] == [2]


@pytest.mark.parametrize("argument", ["", ", packed_sequence=False", ", True"])
def test_the_default_of_the_squad_helper_before_0_4_is_pinned(argument: str) -> None:
    text = (
        "from megatron.bridge.recipes.utils.finetune_utils import default_squad_config\n"
        f"d = default_squad_config(2048{argument})\n"
    )
    new = {"": ", enable_offline_packing=False", ", packed_sequence=False": ", enable_offline_packing=False"}
    result = migrated(text, bridge="0.3.1")
    assert f"d = default_squad_config(2048{new.get(argument, argument)})" in str(result.text)


def test_expert_tensor_parallelism_is_pinned_beside_expert_parallelism() -> None:
    text = (
        "from megatron.bridge.recipes.llama import llama32_1b_sft_config\n"
        "cfg = llama32_1b_sft_config()\ncfg.model.tensor_model_parallel_size = 4\n"
        "cfg.model.expert_model_parallel_size = 2  # experts\ncfg.model.seq_length = 4096\n"
    )
    result = migrated(text)
    assert "= 2  # experts\ncfg.model.expert_tensor_parallel_size = 4\n" in str(result.text)
    back = migrated(str(result.text), to="0.5.1", bridge="0.6.2")
    assert back.text == result.text


def test_an_expert_tensor_parallel_size_of_none_is_replaced_where_it_stands() -> None:
    text = (
        "from megatron.bridge.recipes.llama import llama32_1b_sft_config\n"
        "cfg = llama32_1b_sft_config()\ncfg.model.tensor_model_parallel_size = 4\n"
        "cfg.model.expert_model_parallel_size = 2\ncfg.model.expert_tensor_parallel_size = None\n"
    )
    assert str(migrated(text).text).endswith("= 2\ncfg.model.expert_tensor_parallel_size = 4\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = " + "(" * 300 + ")" * 300, "brackets are nested deeper than 100 levels"),
        ("x = 1\n" * 60_000, "is larger than 256 KiB"),
        ("x = 1\n\0\n", "holds a NUL character"),
    ],
    ids=["deep", "large", "nul"],
)
def test_text_beyond_the_limits_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        migrate_config(text, to="0.6.2", form="python")


def test_expert_parallelism_that_only_running_the_code_tells_is_listed() -> None:
    text = (
        "import sys\nfrom megatron.bridge.recipes.llama import llama32_1b_sft_config\n"
        "cfg = llama32_1b_sft_config()\ncfg.model.tensor_model_parallel_size = int(sys.argv[1])\n"
        "cfg.model.expert_model_parallel_size = 2\n"
    )
    assert [item.what for item in migrated(text).manual] == ["model.expert_tensor_parallel_size"]


def test_changed_class_defaults_are_pinned_where_the_class_is_called() -> None:
    text = (
        "from megatron.bridge.training.config import SchedulerConfig\n"
        "a = SchedulerConfig(lr_warmup_iters=1)\nb = SchedulerConfig(lr_decay_style='cosine')\n"
    )
    result = str(migrated(text, to="0.5.1", bridge="0.3.1").text)
    assert 'a = SchedulerConfig(lr_warmup_iters=1, lr_decay_style="linear")' in result
    assert "b = SchedulerConfig(lr_decay_style='cosine')" in result


def test_a_hub_dataset_with_code_of_its_own_is_left_and_listed() -> None:
    text = (
        "from megatron.bridge.data.builders.hf_dataset import HFDatasetConfig\n"
        "d = HFDatasetConfig(dataset_name='me/mine', process_example_fn=lambda x, t: x, seq_length=8)\n"
    )
    result = migrated(text)
    assert "process_example_fn=lambda x, t: x" in str(result.text)
    assert any("process_example_fn" in item.what and item.line == 2 for item in result.manual)


def test_a_switch_that_stands_alone_in_its_block_leaves_a_pass_going_back() -> None:
    text = "def f(cfg, pack):\n    if pack:\n        cfg.dataset.enable_offline_packing = True\n"
    result = migrated(text, to="0.5.1", bridge="0.6.2")
    assert result.text == "def f(cfg, pack):\n    if pack:\n        pass\n"


def test_a_script_that_cannot_be_followed_is_migrated_and_not_judged() -> None:
    result = migrated(f"{SPECS}SPECS = PackedSequenceSpecs(packed_sequence_size=8)\n")
    assert "from megatron.bridge.data.packing import PackedSequenceSpecs" in str(result.text)
    assert result.report is None
    assert result.note.startswith("the result is not judged: ")


def test_a_script_with_a_value_of_the_wrong_type_is_migrated_and_not_judged() -> None:
    text = (
        "from megatron.bridge.recipes.llama import llama32_1b_sft_config\n"
        "cfg = llama32_1b_sft_config()\ncfg.train.manual_gc = 'often'\ncfg.dataset.pack_sequences_in_batch = True\n"
    )
    result = migrated(text)
    assert "cfg.dataset.enable_in_batch_packing = True" in str(result.text)
    assert "train.manual_gc" in result.note
    assert not result.clean


def test_text_that_is_not_python_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"<text>:2: not valid Python"):
        migrate_config("import os\ndef f(:\n", to="0.6.2", form="python")


def test_without_libcst_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("libcst", "skill_run.recipe.migrate.python"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(MissingError, match=r"pip install 'skill-run\[migrate\]'"):
        migrate_config(SPECS, to="0.6.2", form="python")
