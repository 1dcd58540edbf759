"""What became of the lines of a data set: counts, and the first places of each kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

PLACES: Final = 20


@dataclass(frozen=True, slots=True)
class Tally:
    """How many samples met one fate, the tokens that were lost by it, and the first PLACES of them as file:line."""

    samples: int = 0
    tokens: int = 0
    places: tuple[str, ...] = ()

    def plus(self, other: Tally) -> Tally:
        """Return both together; the places of this one stand first."""
        places = (*self.places, *other.places)[:PLACES]
        return Tally(self.samples + other.samples, self.tokens + other.tokens, places)

    def to_dict(self) -> dict[str, Any]:
        """Return the tally as JSON-ready data."""
        return {"samples": self.samples, "tokens": self.tokens, "places": list(self.places)}


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """What a data set held, and what was lost on the way.

    kind: prompt-completion, chat or tokens. samples, tokens, trained_tokens: what is kept; tokens are runtime tokens
    (one less than stored per sample), trained ones have a loss.
    truncated: cut to seq_length. dropped_long: longer than seq_length where upstream does not cut. dropped_short: fewer
    than two tokens, so nothing to predict. all_masked: kept though no token is trained. empty_completion: kept, only
    the end-of-text token is learned. off_grid: their padded length will be no multiple of pad_seq_to_mult, as
    seq_length is none (releases before 0.6). bad: unreadable lines, each place with its reason.
    """

    kind: str = ""
    files: int = 0
    lines: int = 0
    samples: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    truncated: Tally = field(default_factory=Tally)
    dropped_long: Tally = field(default_factory=Tally)
    dropped_short: Tally = field(default_factory=Tally)
    all_masked: Tally = field(default_factory=Tally)
    empty_completion: Tally = field(default_factory=Tally)
    off_grid: Tally = field(default_factory=Tally)
    bad: Tally = field(default_factory=Tally)

    def plus(self, other: SampleCounts) -> SampleCounts:
        """Return the counts of two parts of a data set, this one first."""
        summed: dict[str, Any] = {"kind": self.kind or other.kind}
        for name in _NUMBERS:
            summed[name] = getattr(self, name) + getattr(other, name)
        for name in _TALLIES:
            summed[name] = getattr(self, name).plus(getattr(other, name))
        return replace(self, **summed)

    @property
    def lost(self) -> bool:
        """Whether any sample was cut, dropped or unreadable."""
        return any(tally.samples for tally in (self.truncated, self.dropped_long, self.dropped_short, self.bad))

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-ready data, in the order of the fields."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value.to_dict() if isinstance(value, Tally) else value for name, value in values.items()}


_NUMBERS: Final = ("files", "lines", "samples", "tokens", "trained_tokens")
_TALLIES: Final = (
    "truncated",
    "dropped_long",
    "dropped_short",
    "all_masked",
    "empty_completion",
    "off_grid",
    "bad",
)


def tally(places: Iterable[str], tokens: int = 0) -> Tally:
    """Return the tally of places that are counted one by one."""
    listed = list(places)
    return Tally(len(listed), tokens, tuple(listed[:PLACES]))
