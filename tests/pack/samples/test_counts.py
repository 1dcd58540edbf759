"""Counts add up, and list no more places than they should."""

from __future__ import annotations

from skill_run.pack.samples.counts import PLACES, SampleCounts, Tally


def test_two_parts_make_the_counts_of_the_whole() -> None:
    one = SampleCounts(kind="chat", lines=3, samples=2, tokens=9, bad=Tally(1, 0, ("a:3: no",)))
    two = SampleCounts(lines=4, samples=4, tokens=8, truncated=Tally(2, 5, ("a:4", "a:5")))
    both = one.plus(two)
    assert both == SampleCounts("chat", 0, 7, 6, 17, truncated=two.truncated, bad=one.bad)
    assert both.lost
    assert not SampleCounts(samples=1).lost


def test_no_more_places_are_kept_than_are_shown() -> None:
    many = Tally(PLACES, 0, tuple(f"a:{line}" for line in range(PLACES)))
    assert many.plus(Tally(1, 0, ("b:1",))) == Tally(PLACES + 1, 0, many.places)


def test_the_form_for_json_has_every_field() -> None:
    told = SampleCounts(kind="tokens", bad=Tally(1, 2, ("a:1: no",))).to_dict()
    assert told["bad"] == {"samples": 1, "tokens": 2, "places": ["a:1: no"]}
    assert list(told) == list(SampleCounts.__dataclass_fields__)
