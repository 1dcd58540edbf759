"""How samples are read: the data set settings of a release, and the rules in which the releases differ."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from skill_run.bridge.release import matches, newest_release
from skill_run.bridge.version import made_for
from skill_run.errors import InputError
from skill_run.report.safe import clip, flow

Kind = Literal["auto", "prompt-completion", "chat", "tokens"]
LossMode = Literal["assistant", "last_turn", "full"]
Side = Literal["left", "right"]
LONGEST: Final = 2**30


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """PromptCompletionSFTPreprocessingConfig of Bridge 0.6 and later, with its defaults (data/sft_processing.py).

    Prompt and completion are tokenised apart, without the tokenizer's own special tokens; only the prompt is cut while
    that suffices.
    """

    prompt_column: str = "prompt"
    completion_column: str = "completion"
    prompt_template: str = "{prompt}"
    separator: str = ""
    loss_mode: Literal["completion", "full"] = "completion"
    strip_whitespace: bool = True
    add_bos: bool = False
    add_sep: bool = False
    add_eos: bool = True
    truncation_method: Side = "right"

    def check(self) -> None:
        """Raise InputError for what upstream's validate() refuses."""
        columns = (self.prompt_column, self.completion_column)
        if not all(isinstance(column, str) and column.strip() for column in columns) or len(set(columns)) == 1:
            raise InputError("prompt_column and completion_column must be two different names")
        try:
            fields = [name for _, name, _, _ in string.Formatter().parse(self.prompt_template) if name is not None]
            self.prompt_template.format(prompt="")
        except (IndexError, KeyError, ValueError) as error:
            raise InputError("prompt_template may hold only the {prompt} placeholder") from error
        if not fields or set(fields) != {"prompt"}:
            raise InputError("prompt_template must hold the {prompt} placeholder")
        _one_of("loss_mode", self.loss_mode, ("completion", "full"))
        _one_of("truncation_method", self.truncation_method, get_args(Side))


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """The settings that decide what a sample's tokens are, in upstream's names and with upstream's defaults.

    bridge: release whose data set is followed. seq_length: longest sample in tokens (the data set's, or
    max_single_sequence_length where that is set). pad_seq_to_mult: decides the longest stored length only; padding is
    left to the writer (`align.py`). kind: what the lines hold; "auto" looks at the first one.

    prompt_template to sep_id: GPTSFTDataset's prompt-completion settings (dataset_kwargs). preprocessing: the explicit
    form of 0.6 and later, in their place. prompt_column, completion_column: shorthand for a data set whose columns are
    not called input and output.

    chat_loss_mode, tool_schemas (JSON), chat_template: for chat lines; the template in place of the tokenizer's.
    use_hf_tokenizer_chat_template: False for the extra_id turns that come from NeMo. include_special_tokens: whether
    text pieces get what the tokenizer itself adds (a BOS in front, for instance); None for the release's own default.
    eos_id: for tokens without a tokenizer.
    """

    bridge: str = field(default_factory=newest_release)
    seq_length: int = 2048
    pad_seq_to_mult: int | None = 1
    kind: Kind = "auto"
    prompt_column: str | None = None
    completion_column: str | None = None
    prompt_template: str | None = None
    label_key: str | None = None
    truncation_field: str | None = None
    truncation_method: Side = "right"
    add_bos: bool = False
    add_eos: bool = True
    add_sep: bool = False
    sep_id: int | None = None
    preprocessing: Preprocessing | None = None
    use_hf_tokenizer_chat_template: bool = True
    chat_loss_mode: LossMode = "assistant"
    chat_template: str | None = None
    tool_schemas: str | None = None
    include_special_tokens: bool | None = None
    eos_id: int | None = None

    def check(self) -> None:
        """Raise InputError for settings that no data set can have, or that the release does not know."""
        rules_of(self.bridge)
        _check_lengths(self.seq_length, self.pad_seq_to_mult)
        for name in ("eos_id", "sep_id"):
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or not 0 <= value < LONGEST):
                raise InputError(f"{name} must be a token id from 0 on, not {clip(flow(repr(value)), 40)}")
        _one_of("kind", self.kind, get_args(Kind))
        _one_of("truncation_method", self.truncation_method, get_args(Side))
        _one_of("chat_loss_mode", self.chat_loss_mode, get_args(LossMode))
        if not rules_of(self.bridge).explicit:
            if self.preprocessing is not None:
                raise InputError(f"preprocessing settings came with Bridge 0.6, and {self.bridge} is asked for")
            if self.chat_loss_mode != "assistant":
                raise InputError(f"chat_loss_mode came with Bridge 0.6, and {self.bridge} is asked for")
        if self.preprocessing is not None:
            self.preprocessing.check()
        if self.add_sep and self.sep_id is None:
            raise InputError("add_sep needs sep_id: upstream's data set has no separator of its own")

    @property
    def prompt_settings(self) -> tuple[str, str, str]:
        """Return prompt_template, label_key and truncation_field with upstream's defaults for the named columns."""
        prompt, completion = self.prompt_column or "input", self.completion_column or "output"
        template = self.prompt_template
        if template is None:
            template = f"{{{prompt}}} {{{completion}}}"
        cut = prompt if self.truncation_field is None else self.truncation_field
        return template, self.label_key or completion, cut


ChatMasks = Literal["generation_or_all", "generation", "boundaries"]


@dataclass(frozen=True, slots=True)
class ReleaseRules:
    """In what the releases' data sets differ.

    explicit: Preprocessing and chat_loss_mode exist. pads_runtime: the length without the last token is what gets
    rounded up to the multiple, else the stored one. special_tokens: whether text pieces get the tokenizer's own special
    tokens (the default of the paired Megatron Core). chat_masks: where the mask of a chat comes from. ends_chats: an
    end-of-text token is put behind a chat that has none.
    """

    explicit: bool
    pads_runtime: bool
    special_tokens: bool
    chat_masks: ChatMasks
    ends_chats: bool


# By PEP 440 specifier, in order: the first that the release satisfies holds.
_RULES: Final = {
    ">=0.6.0.dev0": ReleaseRules(True, True, True, "boundaries", False),
    ">=0.5.0.dev0": ReleaseRules(False, False, True, "generation", False),
    ">=0.4.0.dev0": ReleaseRules(False, False, True, "generation_or_all", False),
    "*": ReleaseRules(False, False, False, "generation_or_all", True),
}


def rules_of(bridge: str) -> ReleaseRules:
    """Return the rules of a release; raises InputError for what is no version."""
    version = made_for(bridge)
    return next(rules for specifier, rules in _RULES.items() if matches(specifier, version))


def _check_lengths(seq_length: Any, multiple: Any) -> None:
    if not _is_int(seq_length) or not 1 <= seq_length <= LONGEST:
        raise InputError(
            f"seq_length must be a number of tokens from 1 to 2**30, not {clip(flow(repr(seq_length)), 40)}"
        )
    if multiple is None:
        return
    if not _is_int(multiple) or multiple < 1:
        raise InputError(f"pad_seq_to_mult must be a positive whole number, not {clip(flow(repr(multiple)), 40)}")
    if multiple > seq_length:
        raise InputError(f"seq_length ({seq_length}) must be at least pad_seq_to_mult ({multiple})")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} is one of {', '.join(known)}, not {clip(flow(str(value)), 40)}")
