"""Python config scripts: what is found in the styles people write, and what must come out as unknown."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run.config.model import Import, Location, Source, Unknown
from skill_run.config.python.reader import read_python
from skill_run.errors import InputError

DATA = Path(__file__).parent / "data"
RECIPES = {"llama32_1b_sft_config", "llama32_1b_peft_config", "llama32_1b_sft_1gpu_h100_bf16_config", "recipe"}
UNKNOWN = object()


def read(text: str, **options: str) -> Source:
    return read_python(text, name="job.py", known_recipes=RECIPES.__contains__, **options)  # type: ignore[arg-type]


def values(source: Source) -> dict[str, object]:
    """Return the values by path, with UNKNOWN for those that cannot be told."""
    return {a.path: UNKNOWN if isinstance(a.value, Unknown) else a.value for a in source.assignments}


def reason(source: Source, path: str) -> str:
    (found,) = [a.value for a in source.assignments if a.path == path]
    assert isinstance(found, Unknown)
    return found.reason


def found(body: str) -> dict[str, object]:
    """Return what a script sets on `cfg`, which starts as the recipe and is launched at the end."""
    return values(read(f"cfg = recipe()\n{body}\nfinetune(cfg, forward_step)\n"))


# Whole scripts


def test_example_for_old_releases_gives_its_packing_and_context_parallelism() -> None:
    source = read((DATA / "packed_sft_cp2_v03_v05.py.txt").read_text("utf-8"))
    assert source.recipe == "llama32_1b_sft_config"
    assert source.recipe_location == Location("job.py", 25, 11)
    assert source.base_unknown is None
    assert values(source) == {
        "dataset": {"_target_": "FinetuningDatasetConfig"},
        "dataset.dataset_root": UNKNOWN,
        "dataset.seq_length": 4096,
        "dataset.seed": 5678,
        "dataset.dataloader_type": "batch",
        "dataset.num_workers": 2,
        "dataset.do_validation": UNKNOWN,
        "dataset.do_test": False,
        "dataset.dataset_kwargs.pad_to_max_length": True,
        "dataset.packed_sequence_specs._target_": "PackedSequenceSpecs",
        "dataset.packed_sequence_specs.packed_sequence_size": 4096,
        "dataset.packed_sequence_specs.pad_seq_to_mult": 4,
        "model.context_parallel_size": 2,
        "model.seq_length": 4096,
        "model.calculate_per_token_loss": True,
        "ddp.average_in_collective": False,
        "train.train_iters": UNKNOWN,
        "train.micro_batch_size": 1,
        "train.global_batch_size": 8,
        # `getattr(cfg, "validation", None) or cfg.train`: one of the two, by the release.
        "train.eval_iters": UNKNOWN,
        "train.eval_interval": UNKNOWN,
        "validation.eval_iters": UNKNOWN,
        "validation.eval_interval": UNKNOWN,
        "scheduler.lr_warmup_iters": UNKNOWN,
        "checkpoint.pretrained_checkpoint": UNKNOWN,
        "checkpoint.load": None,
        "checkpoint.save": UNKNOWN,
        "logger.tensorboard_dir": UNKNOWN,
    }
    assert reason(source, "train.train_iters") == "comes from the command line (iters)"
    assert Import(
        "megatron.bridge.data.datasets.packed_sequence", "PackedSequenceSpecs", Location("job.py", 14, 1)
    ) in (source.imports)


def test_example_for_new_releases_gives_its_packing_and_context_parallelism() -> None:
    source = read((DATA / "packed_sft_cp2_v06.py.txt").read_text("utf-8"))
    got = values(source)
    assert source.recipe == "llama32_1b_sft_1gpu_h100_bf16_config"
    assert got["dataset"] == {"_target_": "GPTSFTDatasetConfig"}
    assert got["dataset.enable_offline_packing"] is True
    assert got["dataset.offline_packing_specs.packed_sequence_size"] == 4096
    assert got["dataset.offline_packing_specs.pad_seq_to_mult"] == 4
    assert got["dataset.preprocessing.separator"] == " "
    assert got["model.sequence_parallel"] is False
    assert got["model.context_parallel_size"] == 2
    assert got["validation.eval_iters"] is UNKNOWN
    (place,) = [a.location for a in source.assignments if a.path == "dataset.offline_packing_specs.pad_seq_to_mult"]
    assert place == Location("job.py", 54, 13)


def test_hand_built_container_is_read_section_by_section() -> None:
    source = read(
        """
import os
from pathlib import Path
import torch
from megatron.bridge import AutoBridge
from megatron.core.transformer.enums import AttnBackend
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
os.environ["HF_HOME"] = os.path.join(os.getcwd(), "hf")
ROOT = Path("/data") / "sft"

@torchrun_main
def main():
    bridge = AutoBridge.from_hf_pretrained("some/model", torch_dtype=torch.bfloat16)
    provider = bridge.to_megatron_provider(load_weights=False)
    provider.attention_backend = AttnBackend.flash
    provider.tensor_model_parallel_size = 2
    provider.finalize()
    train = TrainingConfig(micro_batch_size=1, global_batch_size=4 * 2)
    data = FinetuningDatasetConfig(
        dataset_root=ROOT / "train",
        seq_length=2048,
        dataset_kwargs=dict(chat=False, extra={}),
        packed_sequence_specs=PackedSequenceSpecs(2048),
    )
    config = ConfigContainer(
        train=train, dataset=data, model=provider, peft=None, optimizer=OptimizerConfig(lr=3e-4, dtype=torch.bfloat16)
    )
    config.model.seq_length = 2048
    config.ddp.average_in_collective = False
    finetune(config, forward_step_func=forward_step)

if __name__ == "__main__":
    main()
"""
    )
    assert (source.recipe, source.base_unknown) == (None, None)
    assert source.env == {"NCCL_NVLS_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert values(source) == {
        "train._target_": "TrainingConfig",
        "train.micro_batch_size": 1,
        "train.global_batch_size": 8,
        "dataset._target_": "FinetuningDatasetConfig",
        "dataset.dataset_root": "/data/sft/train",
        "dataset.seq_length": 2048,
        "dataset.dataset_kwargs.chat": False,
        "dataset.dataset_kwargs.extra": {},
        "dataset.packed_sequence_specs._target_": "PackedSequenceSpecs",
        "dataset.packed_sequence_specs.packed_sequence_size": 2048,
        # The architecture comes from the Hugging Face config; parallel sizes do not.
        "model": UNKNOWN,
        "model.tensor_model_parallel_size": 2,
        "model.pipeline_model_parallel_size": 1,
        "model.virtual_pipeline_model_parallel_size": None,
        "model.context_parallel_size": 1,
        "model.expert_model_parallel_size": 1,
        "model.sequence_parallel": False,
        "model.attention_backend": "flash",
        "model.seq_length": 2048,
        "peft": None,
        "optimizer._target_": "OptimizerConfig",
        "optimizer.lr": 3e-4,
        "optimizer.dtype": "torch.bfloat16",
        "ddp.average_in_collective": False,
    }


def test_helpers_aliases_and_loops_are_followed() -> None:
    got = values(
        read(
            """
from megatron.bridge.recipes.llama import llama32_1b_sft_config as base
from dataclasses import replace
import math

def put(target, name, value):
    if not hasattr(target, name):
        raise ValueError(name)
    setattr(target, name, value)

def small(model):
    for name, value in {"num_layers": 2, "hidden_size": 128}.items():
        put(model, name, value)

def parallel(cfg, tp=1, cp=1, *, sp=None):
    model = cfg.model
    model.tensor_model_parallel_size = tp
    model.context_parallel_size = cp
    model.sequence_parallel = sp if sp is not None else tp > 1

cfg = base()
small(cfg.model)
parallel(cfg, 2, cp=4)
cfg.model = replace(cfg.model, recompute_modules=["core_attn"] + ["mlp"])
for section in (cfg.model, cfg.dataset):
    section.seq_length = 1024 * 8
cp, tp = cfg.model.context_parallel_size, cfg.model.tensor_model_parallel_size
cfg.dataset.packed_sequence_specs.pad_seq_to_mult = math.lcm(2 * cp, cp * tp)
cfg.train.train_iters = 10
cfg.train.train_iters += 5
cfg.dataset.dataset_kwargs["pad_to_max_length"] = True
cfg.logger.wandb_exp_name = f"cp{cp}-{'sp' if cfg.model.sequence_parallel else 'dp'}"
"""
        )
    )
    assert got == {
        "model.num_layers": 2,
        "model.hidden_size": 128,
        "model.tensor_model_parallel_size": 2,
        "model.context_parallel_size": 4,
        "model.sequence_parallel": True,
        "model.recompute_modules": ["core_attn", "mlp"],
        "model.seq_length": 8192,
        "dataset.seq_length": 8192,
        "dataset.packed_sequence_specs.pad_seq_to_mult": 8,
        "dataset.dataset_kwargs.pad_to_max_length": True,
        "train.train_iters": 15,
        "logger.wandb_exp_name": "cp4-sp",
    }


def test_recipe_chosen_at_run_time_leaves_only_what_both_ways_set() -> None:
    source = read(
        """
def main():
    args = parse_args()
    if args.peft:
        cfg = llama32_1b_peft_config(peft_scheme=args.peft)
    else:
        cfg = llama32_1b_sft_config()
    cfg.model.context_parallel_size = 2
    if args.long:
        cfg.model.seq_length = 8192
        cfg.train.micro_batch_size = 1
    else:
        cfg.model.seq_length = 4096
        cfg.train.micro_batch_size = 1
    finetune(config=cfg, forward_step_func=forward_step)
main()
"""
    )
    assert source.recipe is None
    assert source.base_unknown is not None
    assert "llama32_1b_peft_config or llama32_1b_sft_config" in source.base_unknown
    assert values(source) == {
        "model.context_parallel_size": 2,
        "model.seq_length": UNKNOWN,
        "train.micro_batch_size": 1,
    }


def test_class_with_methods_is_followed() -> None:
    source = read(
        """
@dataclass
class Args:
    cp: int = 2
    seq: int = 4096

class Job:
    def __init__(self, args):
        self.args = args
        self.cfg = llama32_1b_sft_config()
    def setup(self):
        self.cfg.model.context_parallel_size = self.args.cp
        self.cfg.model.seq_length = self.args.seq
    def run(self):
        self.setup()
        finetune(self.cfg, forward_step)

Job(Args(cp=4)).run()
"""
    )
    assert source.recipe == "llama32_1b_sft_config"
    assert values(source) == {"model.context_parallel_size": 4, "model.seq_length": 4096}


def test_recipe_file_that_launches_nothing_uses_the_defaults_of_its_function() -> None:
    source = read(
        """
def _base():
    cfg = llama32_1b_sft_config()
    cfg.train.train_iters = 7
    return cfg

def my_recipe(cp: int = 2, *, root=None):
    cfg = _base()
    cfg.model.context_parallel_size = cp
    cfg.dataset.dataset_root = root
    return cfg
"""
    )
    assert source.recipe == "llama32_1b_sft_config"
    assert values(source) == {"train.train_iters": 7, "model.context_parallel_size": 2, "dataset.dataset_root": None}


def test_click_command_without_known_arguments_gives_unknown_parameters() -> None:
    source = read(
        """
@click.command()
@click.option("--cp", default=2)
def main(cp):
    cfg = llama32_1b_sft_config(seq_length=8192)
    cfg.model.context_parallel_size = cp
    finetune(cfg, forward_step)
if __name__ == "__main__":
    main()
"""
    )
    assert values(source) == {
        "model.seq_length": 8192,
        "dataset.seq_length": 8192,
        "model.context_parallel_size": UNKNOWN,
    }
    assert reason(source, "model.context_parallel_size") == "is the parameter cp of main()"


def test_snippet_without_a_recipe_has_an_unknown_base() -> None:
    source = read(
        """
cfg.train.micro_batch_size = 1
cfg.dataset.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=4096)
"""
    )
    assert source.base_unknown == "the config cfg is not defined in this file"
    assert values(source) == {
        "train.micro_batch_size": 1,
        "dataset.packed_sequence_specs": {"_target_": "PackedSequenceSpecs"},
        "dataset.packed_sequence_specs.packed_sequence_size": 4096,
    }


def test_script_for_two_generations_leaves_both_spellings_unknown() -> None:
    got = values(
        read(
            """
try:
    from megatron.bridge.data.packing import PackedSequenceSpecs
    NEW = True
except ImportError:
    from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs
    NEW = False
cfg = recipe()
specs = PackedSequenceSpecs(packed_sequence_size=4096)
if NEW:
    cfg.dataset.offline_packing_specs = specs
else:
    cfg.dataset.packed_sequence_specs = specs
cfg.train.micro_batch_size = 1
finetune(cfg, forward_step)
"""
        )
    )
    assert got["dataset.offline_packing_specs"] is UNKNOWN
    assert got["dataset.packed_sequence_specs"] is UNKNOWN
    assert got["train.micro_batch_size"] == 1


def test_sweep_keeps_what_all_its_trainings_share() -> None:
    source = read(
        """
for lr in [1e-4, 2e-4]:
    cfg = recipe()
    cfg.optimizer.lr = lr
    cfg.model.context_parallel_size = 2
    finetune(cfg, forward_step)
"""
    )
    assert source.recipe == "recipe"
    assert values(source) == {"optimizer.lr": UNKNOWN, "model.context_parallel_size": 2}


def test_finetune_counts_before_pretrain() -> None:
    got = values(
        read(
            """
first = recipe()
first.model.seq_length = 1
pretrain(first, forward_step)
second = recipe()
second.model.seq_length = 2
finetune(second, forward_step)
"""
        )
    )
    assert got == {"model.seq_length": 2}


def test_changes_after_the_launch_do_not_count() -> None:
    source = read("cfg = recipe()\ncfg.model.seq_length = 1\nfinetune(cfg, step)\ncfg.model.seq_length = 2\n")
    assert values(source) == {"model.seq_length": 1}


# Single constructs


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 * 3 + 10 // 3 - 7 % 4", 6),
        ("2 ** 10", 1024),
        ("-1 if False else +1", 1),
        ("1 < 2 <= 2 and not 0", True),
        ("None or 'x'", "x"),
        ("max(1, 4, min(9, 7))", 7),
        ("math.lcm(4, 6) + math.gcd(4, 6) + math.ceil(1.5)", 16),
        ("int('8') + len([1, 2]) + sum([1, 2])", 13),
        ("f'{1 + 1}-{0.5:.2f}-{\"a\"!r}'", "2-0.50-'a'"),
        ("'a/b'.split('/')[-1].upper()", "B"),
        ("os.path.join('/a', 'b')", "/a/b"),
        ("str(Path('/a') / 'b')", "/a/b"),
        ("[x * 2 for x in range(3) if x]", [2, 4]),
        ("(1, 2) + (3,)", [1, 2, 3]),
        ("{'a': 1, **{'b': 2}}['b']", 2),
        ("dict(a=1).get('b', 5)", 5),
        ("{k: v for k, v in zip('ab', [1, 2])}.get('b')", 2),
        ("(lambda a, b=3: a * b)(4)", 12),
        ("(n := 5) + n", 10),
        ("torch.bfloat16", "torch.bfloat16"),
        ("AttnBackend.flash", "flash"),
        ("megatron.core.enums.AttnBackend.fused", "fused"),
        ("[1, 2, 3][1:]", [2, 3]),
        ("sorted([3, 1])", [1, 3]),
        ("1e-5", 1e-5),
    ],
)
def test_known_expression_is_computed(expression: str, value: object) -> None:
    text = (
        "import os, math, torch, megatron.core\nfrom pathlib import Path\nfrom x import AttnBackend\ncfg = recipe()\n"
    )
    got = values(read(f"{text}cfg.model.field = {expression}\nfinetune(cfg, step)\n"))
    assert got == {"model.field": value}
    assert type(got["model.field"]) is type(value)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("sys.argv[1]", "command line"),
        ("parser.parse_args().cp", "command line (cp)"),
        ("os.environ['CP']", "environment variable CP"),
        ("int(os.environ.get('CP', '2'))", "environment variable CP"),
        ("os.getenv('CP')", "environment variable CP"),
        ("torch.cuda.device_count()", "device_count()"),
        ("cfg.model.context_parallel_size * 2", "what the recipe sets for model.context_parallel_size"),
        ("2 if torch.cuda.is_available() else 4", "condition in line"),
        ("9 ** 9 ** 9 ** 9", "cannot be computed"),
        ("1 << 10 ** 9", "cannot be computed"),
        ("'a' * 10 ** 9", "cannot be computed"),
        ("[0] * 10 ** 9", ""),
        ("f'{1:999999999}'", "format"),
        ("'%9999999d' % 1", "formatted with %"),
        ("list(range(10 ** 9))", "range"),
        ("1 / 0", "ZeroDivisionError"),
        ("'x'.replace('', 'y' * 60000) * 2", ""),
        ("F.gelu", "does not define"),
        ("missing", "not defined in this file"),
    ],
)
def test_expression_that_cannot_be_told_is_unknown_with_a_reason(expression: str, why: str) -> None:
    text = f"import os, sys, torch\nimport torch.nn.functional as F\ncfg = recipe()\ncfg.model.field = {expression}\n"
    source = read(text + "finetune(cfg, step)\n")
    assert why in reason(source, "model.field")


@pytest.mark.parametrize(
    "branches",
    [
        "if flag():\n    cfg.model.x = 1\nelse:\n    cfg.model.x = 2",
        "if flag():\n    cfg.model.x = 1",
        "cfg.model.x = 0\nif flag():\n    cfg.model.x = 1",
        "for item in items():\n    cfg.model.x = 1",
        "while flag():\n    cfg.model.x = 1",
        "try:\n    cfg.model.x = load()\nexcept OSError:\n    cfg.model.x = 1",
        "with suppress(OSError):\n    cfg.model.x = 1",
        "match flag():\n    case 1:\n        cfg.model.x = 1",
        "flag() and setattr(cfg.model, 'x', 1)",
        "other = cfg.model if flag() else cfg.train\nother.x = 1",
        "for name in names():\n    setattr(cfg.model, name, 1)\ncfg.model.x = cfg.model.x",
        "del cfg.model.x",
        "def f():\n    cfg.model.x = 1\n    if flag():\n        return\n    cfg.model.x = 2\nf()",
    ],
)
def test_field_set_under_something_unknown_is_unknown(branches: str) -> None:
    got = found(branches)
    assert got.get("model.x", got.get("model")) is UNKNOWN


@pytest.mark.parametrize(
    "body",
    [
        "if flag():\n    cfg.model.x = 1\nelse:\n    cfg.model.x = 1",
        "cfg.model.x = 1\nif flag():\n    print('hello')",
        "if not flag():\n    raise SystemExit\ncfg.model.x = 1",
        "if flag():\n    cfg.model.x = 2\n    sys.exit(1)\ncfg.model.x = 1",
        "if 4 > 2:\n    cfg.model.x = 1\nelse:\n    cfg.model.x = 2",
        "try:\n    cfg.model.x = 1\nexcept OSError:\n    raise",
        "with open('f') as f:\n    cfg.model.x = 1",
        "for x in [3, 2, 1]:\n    cfg.model.x = x",
        "for x in range(100):\n    if x == 1:\n        cfg.model.x = x\n        break",
        "for x in items():\n    pass\ncfg.model.x = 1",
        "print(cfg)\ncfg.print_yaml()\nlogger.info(cfg)\ncfg.validate()\ncfg.model.x = 1",
        "m = cfg.model\nm.x = 1",
        "setattr(cfg.model, 'x', 1)",
        "cfg.model.x: int = 1",
        "cfg.model.y = cfg.model.x = 1\ndel cfg.model.y",
        "a, *b = [1, 2, 3]\ncfg.model.x = a",
        "cfg = copy.deepcopy(cfg)\ncfg.model.x = 1",
        "cfg = process_config_with_overrides(cfg, cli_overrides=['model.x=1'])",
    ],
)
def test_field_whose_value_is_sure_is_known(body: str) -> None:
    got = values(read(f"import sys, copy\ncfg = recipe()\n{body}\nfinetune(cfg, step)\n"))
    assert got["model.x"] == 1


@pytest.mark.parametrize(
    "call",
    [
        "tweak(cfg.model)",
        "Tweaker(cfg)",
        "cfg.model.apply(2)",
        "f(a, *[cfg.model])",
        "g(model=cfg.model)",
        "exec(code)",
    ],
)
def test_call_that_is_not_followed_makes_what_it_got_unknown(call: str) -> None:
    source = read(f"cfg = recipe()\ncfg.model.x = 1\n{call}\ncfg.model.y = 2\nfinetune(cfg, step)\n")
    got = values(source)
    assert "model.x" not in got
    assert got["model.y"] == 2
    assert source.base_unknown is not None or got["model"] is UNKNOWN


def test_config_given_away_as_a_whole_has_an_unknown_base() -> None:
    source = read("cfg = recipe()\ncfg.model.x = 1\ntweak(cfg)\ncfg.model.y = 2\nfinetune(cfg, step)\n")
    assert source.base_unknown == "the config may be changed by tweak(), which is not in this file"
    assert source.recipe is None
    assert values(source) == {"model.y": 2}


def test_overrides_from_the_command_line_make_the_base_unknown() -> None:
    source = read(
        "cfg = recipe()\ncfg = process_config_with_overrides(cfg, cli_overrides=sys.argv[1:])\nfinetune(cfg, f)\n"
    )
    assert source.base_unknown is not None
    assert "command line" in source.base_unknown


def test_function_outside_the_catalogue_has_an_unknown_base() -> None:
    source = read("from mylib import make_config\ncfg = make_config()\ncfg.model.x = 1\nfinetune(cfg, step)\n")
    assert source.base_unknown == "make_config() is not a recipe of this release's catalogue"
    assert values(source) == {"model.x": 1}


def test_recipe_argument_that_is_not_understood_makes_the_base_unknown() -> None:
    source = read("cfg = recipe(packed_sequence=True)\nfinetune(cfg, step)\n")
    assert source.recipe is None
    assert source.base_unknown == "the argument packed_sequence= of recipe() changes more than can be told"


def test_section_assigned_a_config_replaces_what_was_set_before() -> None:
    got = found("cfg.dataset.seq_length = 1\ncfg.dataset = GPTSFTDatasetConfig(seed=3)\ncfg.dataset.num_workers = 2")
    assert got == {"dataset": {"_target_": "GPTSFTDatasetConfig"}, "dataset.seed": 3, "dataset.num_workers": 2}


def test_mapping_assigned_over_a_recipe_starts_with_an_empty_mapping() -> None:
    got = found("cfg.dataset.dataset_kwargs = {'chat': True}")
    assert got == {"dataset.dataset_kwargs": {}, "dataset.dataset_kwargs.chat": True}


def test_section_from_an_unknown_function_is_unknown_but_for_later_fields() -> None:
    got = found("cfg.dataset = build_dataset(4096)\ncfg.dataset.seed = 1")
    assert got == {"dataset": UNKNOWN, "dataset.seed": 1}


def test_imported_object_is_an_unknown_base_with_known_changes() -> None:
    source = read("from base import cfg\ncfg.model.x = 1\nfinetune(cfg, step)\n")
    assert source.base_unknown == "the config is base.cfg, which this file does not define"
    assert values(source) == {"model.x": 1}


def test_imports_are_listed_wherever_they_stand() -> None:
    source = read("import a.b\ndef f():\n    from c import d, e\n    from . import g\ncfg = recipe()\n")
    assert [(i.module, i.symbol) for i in source.imports] == [("a.b", None), ("c", "d"), ("c", "e"), (".", "g")]


def test_function_option_chooses_among_several_builders() -> None:
    text = "".join(
        f"def {name}():\n    c = recipe()\n    c.model.x = {x}\n    return c\n" for name, x in (("a", 1), ("b", 2))
    )
    with pytest.raises(InputError, match=r"several configs \(a, b\)"):
        read(text)
    assert values(read(text, function="b")) == {"model.x": 2}


# Refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\nprint(1)\n", "no training config was found"),
        ("", "no training config was found"),
        ("x = (\n", r"job.py:1: not valid Python"),
        ("a = 1\n  b = 2\n", r"job.py:2: not valid Python"),
        ("x = '\0'\n", "NUL character"),
        ("x = '\ud800'\n", "not valid Python"),
        ("x = " + "(" * 10_000 + ")" * 10_000, "nested deeper than 100"),
        ("x = " + "f(" * 10_000 + ")" * 10_000, "nested deeper than 100"),
        ("x = " + "-" * 50_000 + "1", "nested too deep"),
        ("x = a" + ".b" * 20_000, "nested"),
        ("x = " + "1+" * 20_000 + "1", "nested"),
        ("if a: pass\n" + "elif b: pass\n" * 2_000, "nested"),
        ("# " + "x" * (256 * 1024), "larger than 256 KiB"),
        ("a\n" * 500_000, "larger than 256 KiB"),
        ("cfg = recipe()\ncfg.model." + "x" * 201 + " = 1\n", "job.py:2: holds a name of more than 200 characters"),
        ("cfg = recipe()\nx = [1]\n" + "x = [x, x]\n" * 60 + "cfg.model.x = x\n", "too many steps"),
    ],
)
def test_text_that_cannot_be_read_is_an_input_error_with_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        "def f(n): return f(n - 1) + f(n - 1)\ncfg.model.x = f(100)",
        "for i in range(10 ** 12):\n    cfg.model.x = i",
        "for a in range(200):\n  for b in range(200):\n    for c in range(200):\n      cfg.model.x = c",
        "x = [a for a in range(4000) for b in range(4000)]\ncfg.model.x = x",
        "s = 'a'\nfor i in range(200):\n    s = s + s\ncfg.model.x = s",
    ],
)
def test_work_without_end_makes_the_field_unknown(body: str) -> None:
    got = found(body)
    assert got.get("model.x") is UNKNOWN


BIG = "t = 'x' * 65536\nl = list(range(4096))\nw = ' a' * 30000\n"


@pytest.mark.parametrize(
    "body",
    [
        "o = [t for _ in range(4096)]\nm = [o for _ in range(30)]\ncfg.model.x = str(m)",
        "m = [t for _ in range(4096)]\ncfg.model.x = repr(m)",
        "m = [t for _ in range(4096)]\ncfg.model.x = max(m)",
        "m = [t for _ in range(4096)]\ncfg.model.x = sorted(m)",
        "m = [t for _ in range(4096)]\ncfg.model.x = m == m",
        "cfg.model.x = t.split(str([t, t, t, t, t]))",
        "cfg.model.x = f'{t}{t}'",
        "cfg.model.x = {t: 1}",
        "setattr(cfg.model, t, 1)\ncfg.model.x = getattr(cfg.model, t)",
    ],
)
def test_value_too_large_to_compute_is_unknown(body: str) -> None:
    assert found(BIG + body).get("model.x") is UNKNOWN


@pytest.mark.parametrize(
    "work",
    [
        "max(l)",
        "sum(l)",
        "sorted(l)",
        "list(l)",
        "l + []",
        "l[1:]",
        "l == l",
        "l.copy()",
        "[*l]",
        "len(l)",
        "range(4096)",
        "zip(l, l)",
        "w.split()",
        "w.upper()",
        "w[1:]",
        "w + 'a'",
        "f'{w}'",
        "'q' in w",
        "Part(x=[l])",
        "other(list(l))",
        "m.append([*l])",
        "[[*l] for _ in range(4096)]",
    ],
)
def test_repeated_work_on_large_values_is_refused(work: str) -> None:
    loop = f"m = []\nfor a in range(64):\n  for b in range(60):\n    cfg.model.x = [{', '.join([work] * 8)}]\n"
    with pytest.raises(InputError, match="too many steps"):
        found(BIG + loop)


def test_work_on_small_values_in_loops_is_followed() -> None:
    body = "m = []\nfor a in range(30):\n  for b in range(30):\n    m.append(max([a, b]))\ncfg.model.x = sum(m)"
    assert found(body)["model.x"] == sum(max(a, b) for a in range(30) for b in range(30))


def test_each_statement_after_an_inlined_block_is_followed_once() -> None:
    body = (
        "x = 0\n"
        + "if 1:x\n" * 20_000
        + "if 1:\n  if 1:\n    x += 1\n  x += 1\nelse:\n  x = 9\nx += 1\ncfg.model.x = x"
    )
    assert found(body)["model.x"] == 3


def test_function_with_a_long_body_that_returns_at_once_is_looked_through_once() -> None:
    dead = " x\n" * 20_000
    calls = "for a in range(64):\n  for b in range(60):\n    cfg.model.x = f()"
    assert found(f"def f():\n return 1\n{dead}\n{calls}")["model.x"] == 1


@pytest.mark.parametrize("quote", ['\\"""', "\\'''", '\\"', "\\'"])
@pytest.mark.parametrize("end", ["\\", ""])
def test_strings_that_never_close_are_scanned_once(quote: str, end: str) -> None:
    text = "x = 1\n#" + "(" * 120 + "\n" + f"{quote}\n" * 40_000 + end
    with pytest.raises(InputError, match="not valid Python"):
        read(text)


def test_brackets_in_strings_and_comments_do_not_count_as_nested() -> None:
    many = "(" * 120
    body = f'a = \'{many}\'\nb = "{many}\\\\"\nc = """{many}"x\\"""{many}"""\n# {many}\ncfg.model.x = 1'
    assert found(body) == {"model.x": 1}


def test_nothing_in_the_script_is_executed(tmp_path: Path) -> None:
    target = tmp_path / "made"
    read(f"import os\nopen({str(target)!r}, 'w')\nos.system('touch {target}')\ncfg = recipe()\nfinetune(cfg, s)\n")
    assert not target.exists()


PIECES = st.sampled_from(
    [
        *(
            "cfg = recipe()",
            "cfg.model.x = 1",
            "if f():",
            "else:",
            "    ",
            "\n",
            "for i in range(3):",
            "def f(c):",
            "f(cfg)",
        ),
        *(
            "return cfg",
            "try:",
            "except E:",
            "with x as y:",
            "lambda: 1",
            "cfg.model = A(x=1)",
            "[",
            "]",
            "(",
            ")",
            ":",
        ),
        *(
            "finetune(cfg, 1)",
            "x",
            "=",
            "1",
            "'",
            '"""',
            "#",
            "\\",
            "match x:",
            "case _:",
            "del cfg.model",
            "global cfg",
        ),
        *(
            "setattr(cfg, 'model', 1)",
            "cfg['a'] = 1",
            "import os",
            "os.environ['A'] = '1'",
            "{}",
            "*a, b = c",
            "yield",
            "@",
        ),
    ]
)


@given(
    st.text(max_size=200) | st.lists(PIECES, max_size=25).map("".join) | st.lists(PIECES, max_size=25).map("\n".join)
)
@settings(deadline=None, derandomize=True, max_examples=150)
def test_arbitrary_text_gives_a_source_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert read(text).form == "python"
