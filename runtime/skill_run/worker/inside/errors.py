"""Errors of a task that a user is told in one sentence."""

from __future__ import annotations


class RefusedError(Exception):
    """The request cannot be carried out; the text is one sentence for the user.

    kind: "input" when the user's data is at fault, "missing" when this environment lacks something, "failed" otherwise.
    """

    def __init__(self, sentence: str, kind: str = "input") -> None:
        super().__init__(sentence)
        self.kind = kind


class RankFailure(Exception):
    """A rank failed, died or hung; the text names it. `detail` is the end of its traceback, `rank` its number.

    kind: that of the RefusedError which the rank raised, else "failed".
    """

    def __init__(self, sentence: str, rank: int | None = None, detail: str = "", kind: str = "failed") -> None:
        super().__init__(sentence)
        self.rank = rank
        self.detail = detail
        self.kind = kind
