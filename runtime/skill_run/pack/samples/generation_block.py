"""The `{% generation %}` block of chat templates: it renders its body and notes where in the text that stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro


class GenerationBlock(Extension):
    """Jinja's tag for what the assistant says; the environment gets `track`, under which spans are noted."""

    tags = {"generation"}

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        environment.extend(track=self.track)
        self._blocks: list[str] = []
        self._spans: list[tuple[int, int]] = []

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the node of a block: a call of `_note` with its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _note(self, context: nodes.EvalContext, caller: Macro) -> str:
        text: str = caller()
        start = sum(map(len, self._blocks))
        self._spans.append((start, start + len(text)))
        return text

    @contextmanager
    def track(self, blocks: list[str], spans: list[tuple[int, int]]) -> Iterator[None]:
        """Note spans in `spans` while the text before them grows in `blocks`."""
        self._blocks, self._spans = blocks, spans
        try:
            yield
        finally:
            self._blocks, self._spans = [], []
