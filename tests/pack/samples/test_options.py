"""Settings that no data set can have are refused; the releases differ where they differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skill_run.errors import InputError
from skill_run.pack.samples import Preprocessing, SampleOptions
from skill_run.pack.samples.align import aligned_lengths
from skill_run.pack.samples.options import rules_of


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"seq_length": 0}, "seq_length must be a number of tokens"),
        ({"seq_length": True}, "seq_length must be a number of tokens"),
        ({"pad_seq_to_mult": 0}, "pad_seq_to_mult must be a positive whole number"),
        ({"seq_length": 7, "pad_seq_to_mult": 8}, "seq_length .7. must be at least pad_seq_to_mult .8."),
        ({"kind": "text"}, "kind is one of auto, prompt-completion, chat, tokens, not text"),
        ({"truncation_method": "middle"}, "truncation_method is one of left, right"),
        ({"bridge": "nightly"}, "'nightly' is not a Megatron-Bridge version"),
        ({"bridge": "0.5.1", "preprocessing": Preprocessing()}, "came with Bridge 0.6"),
        ({"bridge": "0.5.1", "chat_loss_mode": "full"}, "came with Bridge 0.6"),
        ({"add_sep": True}, "add_sep needs sep_id"),
        ({"preprocessing": Preprocessing(prompt_column="a", completion_column="a")}, "two different names"),
        ({"preprocessing": Preprocessing(prompt_template="{prompt} {more}")}, "only the {prompt} placeholder"),
        ({"preprocessing": Preprocessing(prompt_template="x")}, "must hold the {prompt} placeholder"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        SampleOptions(**settings).check()


def test_a_release_of_a_series_has_the_rules_of_the_series() -> None:
    assert rules_of("0.3.0") == rules_of("0.3.1")
    assert rules_of("0.6.0") == rules_of("main")
    assert len({rules_of(version).chat_masks for version in ("0.4.2", "0.5.1", "0.6.2")}) == 3


def test_stored_or_runtime_lengths_are_rounded_up_by_release() -> None:
    stored = np.array([2, 4, 5, 29, 30, 31], dtype=np.int32)
    older = SampleOptions(bridge="0.5.1", seq_length=30, pad_seq_to_mult=4)
    newer = SampleOptions(bridge="0.6.2", seq_length=30, pad_seq_to_mult=4)
    assert aligned_lengths(stored, older).tolist() == [5, 5, 9, 31, 31, 31]
    assert aligned_lengths(stored, newer).tolist() == [5, 5, 5, 29, 29, 29]
    assert aligned_lengths(stored, SampleOptions()) is stored


def test_named_columns_take_the_place_of_input_and_output() -> None:
    options = SampleOptions(prompt_column="question", completion_column="answer")
    assert options.prompt_settings == ("{question} {answer}", "answer", "question")
    assert SampleOptions().prompt_settings == ("{input} {output}", "output", "input")
