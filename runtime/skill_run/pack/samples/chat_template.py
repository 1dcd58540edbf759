"""Chat templates, rendered as transformers renders them: Jinja's immutable sandbox with `generation` blocks.

Mirrors utils/chat_template_utils.py and apply_chat_template of transformers 5.12.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from skill_run.errors import InputError, MissingError
from skill_run.pack.samples.sample import BadSampleError
from skill_run.pack.samples.tokenizer import TextTokenizer, describe_missing_template
from skill_run.report.safe import clip, flow

# What Bridge looks for before it asks for a mask (data/datasets/utils.py).
_GENERATION: Final = re.compile(r"\{%-?\s+generation\s+-?%\}")

Turn = Mapping[str, Any]


class TemplateValueError(BadSampleError):
    """A template stumbles over a value of the conversation; upstream then tries other ways to a mask."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template with its tokenizer. has_generation: it marks what the assistant says."""

    source: str
    tokenizer: TextTokenizer
    render: Callable[[Sequence[Turn], Any], tuple[str, list[tuple[int, int]]]]
    has_generation: bool

    def ids(self, turns: Sequence[Turn], tools: Any) -> list[int]:
        """Return the ids of a conversation; raises BadSampleError when the template refuses it."""
        return self.ids_and_mask(turns, tools)[0]

    def ids_and_mask(self, turns: Sequence[Turn], tools: Any) -> tuple[list[int], list[int]]:
        """Return the ids of a conversation and which of them lie in generation blocks, 1 or 0."""
        text, spans = self._rendered(turns, tools)
        try:
            encoding = self.tokenizer.encode_spans(text)
        except (UnicodeEncodeError, TypeError) as error:
            raise BadSampleError("its text holds half of a surrogate pair, which no tokenizer takes") from error
        ids: list[int] = encoding.ids
        mask = [0] * len(ids)
        for start, end in spans:
            first = encoding.char_to_token(start)
            last = encoding.char_to_token(end - 1) if end else None
            if first is None:
                break
            # A last token of 0 counts as none there, and then the rest is marked.
            stop = last + 1 if last else len(ids)
            mask[first:stop] = [1] * max(stop - first, 0)
        return ids, mask

    def _rendered(self, turns: Sequence[Turn], tools: Any) -> tuple[str, list[tuple[int, int]]]:
        if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
            raise TemplateValueError("'tools' is no list of tool definitions")
        try:
            return self.render(turns, tools)
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise TemplateValueError(f"the chat template cannot take it ({clip(flow(str(error)), 100)})") from error
        except (RecursionError, MemoryError) as error:
            raise BadSampleError("the chat template does not come to an end with it") from error
        except Exception as error:  # templates raise what their operations on the user's values raise
            raise BadSampleError(f"the chat template refuses it ({clip(flow(str(error)), 100)})") from error


def chat_template(given: str | None, tokenizer: TextTokenizer) -> ChatTemplate:
    """Return the given template, else the tokenizer's own; raises InputError when there is none or it is broken."""
    source = given if given is not None else tokenizer.chat_templates.get("default")
    if source is None:
        raise InputError(describe_missing_template(tokenizer))
    return ChatTemplate(source, tokenizer, _compiled(source, tokenizer), _GENERATION.search(source) is not None)


def _compiled(source: str, tokenizer: TextTokenizer) -> Callable[..., tuple[str, list[tuple[int, int]]]]:
    import jinja2

    try:
        template = _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise InputError(f"the chat template cannot be read: {clip(flow(str(error)), 160)}") from error
    special = dict(tokenizer.special)

    def render(turns: Sequence[Turn], tools: Any) -> tuple[str, list[tuple[int, int]]]:
        blocks: list[str] = []
        spans: list[tuple[int, int]] = []
        values = {"messages": turns, "tools": tools, "documents": None, "add_generation_prompt": False}
        with template.environment.track(blocks, spans):
            for block in template.generate({**special, **values}):
                # A generation block looks at what stands before it, so the list grows piece by piece.
                blocks.append(block)
        return "".join(blocks), spans

    return render


@cache
def _environment() -> Any:
    try:
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingError("chat templates need the jinja2 package: pip install 'skill-run[text]'") from error
    from skill_run.pack.samples.generation_block import GenerationBlock

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)
