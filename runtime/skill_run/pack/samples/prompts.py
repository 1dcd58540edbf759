"""Prompt-completion samples: text pieces of a line, their ids, truncation and loss mask, as GPTSFTDataset makes them.

Mirrors data/datasets/gpt_sft.py and data/sft_processing.py of Bridge 0.6.2, data/datasets/sft.py of 0.3.1 to 0.5.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from skill_run.errors import InputError
from skill_run.pack.samples.align import template_limit
from skill_run.pack.samples.options import Preprocessing, SampleOptions, Side, rules_of
from skill_run.pack.samples.sample import BadSampleError, Sample, shifted
from skill_run.pack.samples.tokenizer import TextTokenizer

_TEMPLATE: Final = "<template>"
_CHAT_KEYS: Final = ("messages", "conversation", "conversations")


class PromptRecipe(Protocol):
    """How lines become samples: pieces of text first, so that a whole chunk is tokenised at once."""

    @property
    def special_tokens(self) -> bool:
        """Whether the pieces get what the tokenizer itself adds."""

    def pieces(self, row: Mapping[str, Any]) -> tuple[list[str], bool]:
        """Return the texts of a line that are tokenised apart, and whether its completion is empty.

        Raises BadSampleError.
        """

    def sample(self, ids: list[list[int]]) -> Sample:
        """Return the sample of the pieces' ids."""


def prompt_recipe(options: SampleOptions, tokenizer: TextTokenizer) -> PromptRecipe:
    """Return the way of the chosen settings; raises InputError for settings that no line can satisfy."""
    if options.preprocessing is not None:
        return _explicit(options, options.preprocessing, tokenizer)
    return _templated(options, tokenizer)


@dataclass(frozen=True, slots=True)
class TemplateRecipe:
    """The `prompt_template` way: the template is split at its placeholders, each part is tokenised apart.

    parts: the parts with one leading space less where the tokenizer drops it; keys: the column of each part, or
    <template>. before, between, after: ids around and between; cut_fields: columns that are shortened first.
    """

    special_tokens: bool
    parts: tuple[str, ...]
    keys: tuple[str, ...]
    label_key: str
    cut_fields: tuple[str, ...]
    method: Side
    limit: int
    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]

    def pieces(self, row: Mapping[str, Any]) -> tuple[list[str], bool]:
        """Return the filled parts; raises BadSampleError for a missing column or one that is no text."""
        values = {key: _text(row, key).strip(" ") for key in self.keys if key != _TEMPLATE}
        found = []
        for part, key in zip(self.parts, self.keys, strict=True):
            spaces = len(part) - len(part.lstrip(" "))
            found.append(part if key == _TEMPLATE else " " * spaces + values[key])
        return found, not values[self.label_key].strip()

    def sample(self, ids: list[list[int]]) -> Sample:
        """Return the sample: cut to the limit, everything from the answer on trained."""
        total = sum(map(len, ids)) + len(self.before) + len(self.between) + len(self.after)
        over = total - self.limit
        if over > 0:
            ids = self._cut(ids, over)
        context = [*self.before, *(token for piece in ids[:-1] for token in piece), *self.between]
        tokens = [*context, *ids[-1], *self.after]
        untrained = min(max(len(context) - 1, 0), len(tokens))
        mask = [0] * untrained + [1] * (len(tokens) - untrained)
        return Sample(tokens, mask, max(total - len(tokens), 0), ends_open=True)

    def _cut(self, ids: list[list[int]], over: int) -> list[list[int]]:
        """Shorten the named columns by equal shares, then whole parts from the side that is cut."""
        ids = list(ids)
        count = len(self.cut_fields)
        if count:
            shares = [over // count + (1 if place < over % count else 0) for place in range(count)[::-1]]
            for at, key in enumerate(self.keys):
                # A column that the template names twice has one share only, as upstream has it.
                if key in self.cut_fields and shares:
                    share = min(shares.pop(), len(ids[at]))
                    over -= share
                    ids[at] = _kept(ids[at], len(ids[at]) - share, self.method)
        places = range(len(ids)) if self.method == "left" else range(len(ids) - 1, -1, -1)
        for at in places:
            if over <= 0:
                break
            share = min(over, len(ids[at]))
            ids[at] = _kept(ids[at], len(ids[at]) - share, self.method)
            over -= share
        return ids


def _templated(options: SampleOptions, tokenizer: TextTokenizer) -> TemplateRecipe:
    written, label_key, cut = options.prompt_settings
    template = _unescaped(written)
    names = re.findall(r"{(.*?)}", template)
    label = f"{{{label_key}}}"
    if not template.endswith(label) or not names:
        raise InputError(f"prompt_template must end with {label}, the column of label_key")
    cut_fields = tuple(cut.split(",")) if cut else ()
    if cut_fields and names[0] == "input" and cut_fields[0] == "context":
        cut_fields = (names[0], *cut_fields[1:])
    if not set(cut_fields) <= set(names):
        raise InputError(f"truncation_field names {', '.join(cut_fields)}, and prompt_template has {', '.join(names)}")
    parts = [part for part in re.split(r"( *?{.+?})", template) if part]
    if not tokenizer.space_sensitive(by_id=False):
        parts = [part[1:] if part[0] == " " else part for part in parts]
    columns = {f"{{{name}}}": name for name in names}
    special_tokens = rules_of(options.bridge).special_tokens
    if options.include_special_tokens is not None:
        special_tokens = options.include_special_tokens
    return TemplateRecipe(
        special_tokens,
        tuple(parts),
        tuple(columns.get(part.lstrip(" "), _TEMPLATE) for part in parts),
        label_key,
        cut_fields,
        options.truncation_method,
        template_limit(options),
        (_special(tokenizer, "bos_token"),) if options.add_bos else (),
        (options.sep_id,) if options.add_sep and options.sep_id is not None else (),
        (_special(tokenizer, "eos_token"),) if options.add_eos else (),
    )


def _unescaped(template: str) -> str:
    """Return the template with escapes such as \\n read, exactly as upstream does it (which spoils other alphabets)."""
    try:
        return template.encode("utf-8").decode("unicode_escape")
    except UnicodeError as error:
        raise InputError("prompt_template holds an escape that cannot be read") from error


@dataclass(frozen=True, slots=True)
class ExplicitRecipe:
    """PromptCompletionSFTPreprocessingConfig: prompt and completion, the prompt is cut first."""

    special_tokens: bool
    settings: Preprocessing
    separator: str
    limit: int
    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    never_trained: frozenset[int]

    def pieces(self, row: Mapping[str, Any]) -> tuple[list[str], bool]:
        """Return the filled prompt and completion; raises BadSampleError for a line of another schema."""
        settings = self.settings
        if any(row.get(key) is not None for key in _CHAT_KEYS):
            raise BadSampleError("a conversation is no prompt-completion line; such lines are of kind chat")
        names = (settings.prompt_column, settings.completion_column)
        if not all(name in row for name in names) and "prompt" in row and "completion" in row:
            names = ("prompt", "completion")
        prompt, completion = (_text(row, name) for name in names)
        if settings.strip_whitespace:
            prompt, completion = prompt.strip(" "), completion.strip(" ")
        return [settings.prompt_template.format(prompt=prompt), self.separator + completion], not completion.strip()

    def sample(self, ids: list[list[int]]) -> Sample:
        """Return the sample: the prompt is cut first, then the completion; raises BadSampleError under two tokens."""
        prompt, completion = ids
        around = len(self.before) + len(self.between) + len(self.after)
        over = len(prompt) + len(completion) + around - self.limit
        if over > 0:
            share = min(len(prompt), over)
            prompt = _kept(prompt, len(prompt) - share, self.settings.truncation_method)
            completion = _kept(completion, max(len(completion) - (over - share), 0), self.settings.truncation_method)
        context = [*self.before, *prompt, *self.between]
        target = [*completion, *self.after]
        tokens = context + target
        untrained = len(context) if self.settings.loss_mode == "completion" else 0
        mask = [0] * untrained + [1] * (len(tokens) - untrained)
        if self.never_trained:
            mask = [0 if token in self.never_trained else value for token, value in zip(tokens, mask, strict=True)]
        return Sample(tokens, shifted(mask), cut=max(over, 0))


def _explicit(options: SampleOptions, settings: Preprocessing, tokenizer: TextTokenizer) -> ExplicitRecipe:
    separator = settings.separator
    if separator.startswith(" ") and not tokenizer.space_sensitive(by_id=True):
        separator = separator[1:]
    sep = options.sep_id if options.sep_id is not None else tokenizer.token_id("sep_token")
    if settings.add_sep and sep is None:
        raise InputError(f"add_sep is set, and {tokenizer.folder} has no sep_token")
    before = (_special(tokenizer, "bos_token"),) if settings.add_bos else ()
    between = (sep,) if settings.add_sep and sep is not None else ()
    after = (_special(tokenizer, "eos_token"),) if settings.add_eos else ()
    limit = template_limit(options)
    if len(before) + len(between) + len(after) > limit:
        raise InputError(f"seq_length {options.seq_length} has no room for the special tokens that are asked for")
    return ExplicitRecipe(False, settings, separator, limit, before, between, after, tokenizer.never_trained())


def _special(tokenizer: TextTokenizer, name: str) -> int:
    found = tokenizer.token_id(name)
    if found is None:
        raise InputError(f"{tokenizer.folder} has no {name}, which the settings ask for (add_{name.split('_')[0]})")
    return found


def _text(row: Mapping[str, Any], key: str) -> str:
    if key not in row:
        raise BadSampleError(f"there is no '{key}'")
    value = row[key]
    if not isinstance(value, str):
        raise BadSampleError(f"'{key}' is no text")
    return value


def _kept(ids: Sequence[int], length: int, method: Side) -> list[int]:
    """Return `length` ids; "left" cuts the beginning off."""
    if length <= 0:
        return []
    return list(ids[-length:] if method == "left" else ids[:length])
