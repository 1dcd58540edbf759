from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.rehearse_targets import check_targets


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "os.system", "command": "true"},
        {"_target_": "torch.load", "f": "x"},
        {"_target_": "torch.hub.load"},
        {"_target_": "megatron.bridge.utils.import_utils.safe_import"},
        {"_target_": "builtins.eval", "_call_": False},
        {"_target_": "torch.hub.load", "_partial_": True},
        {"_target_": ["os", "system"]},
        {"_target_": 3},
        {"_target_": "megatron.no.such.Class.method"},
        {"_target_": "megatron." + "a." * 5000 + "Class"},
        {"_target_": "megatron..Class"},
        {"_target_": "megatron.a\x00b.Class"},
        {"_target_": "transformers.AutoModel.from_pretrained"},
    ],
)
@pytest.mark.parametrize("place", [lambda node: node, lambda node: {"model": [{"init_method": node}]}])
def test_a_file_cannot_have_anything_made_but_config_classes(node: dict[str, Any], place: Any) -> None:
    with pytest.raises(RefusedError, match=r"Megatron's own config classes|has no class"):
        check_targets(place(node))


def test_a_module_that_fails_when_it_is_imported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "asks_for_a_gpu.py").write_text("raise RuntimeError('no GPU here')", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RefusedError, match=r"megatron\.asks_for_a_gpu cannot be imported without a GPU: no GPU here"):
        check_targets({"_target_": "megatron.asks_for_a_gpu.Config"})
    sys.modules.pop("megatron")


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "torch.float32", "_call_": False},
        {"_target_": "torch._C._nn.gelu", "_call_": False},
        {"_target_": "megatron.bridge.models.gpt_provider.default_layer_spec", "_call_": False},
        {"_target_": "torch.nn.init.normal_", "_partial_": True, "std": 0.02},
        {"lr": 1.0, "betas": [0.9, 0.95]},
    ],
)
def test_names_that_are_only_referred_to_are_admitted(node: dict[str, Any]) -> None:
    check_targets({"model": node})
