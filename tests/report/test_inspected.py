"""Tests of skill_run.report.inspected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from skill_run.batch.inspect import InspectionReport, Sequence, inspect_batch
from skill_run.report.inspected import (
    PATHS,
    cut_sentence,
    figures,
    kind,
    length_histogram,
    number,
    rank_table,
    statistics,
)
from skill_run.report.pack_map import map_rows

Inspect = Callable[..., InspectionReport]
Pack = Callable[..., dict[str, Any]]


def figures_of(report: InspectionReport) -> dict[str, str]:
    return dict(figures(report, list(map_rows(report))))


def with_statistics(**found: Any) -> InspectionReport:
    return InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 100, 2, (), (), statistics=found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("0.3.1/batch_offline_mult1_mb0", "offline packed batch, as Megatron-Bridge up to 0.5 makes it"),
        ("0.6.2/batch_inbatch_chat_mult4", "in-batch packed batch, as Megatron-Bridge 0.6 and newer make it"),
        ("mcore-0.19.2/sft_batch_mbs1_cp1", "Megatron-LM --sft batch, as Megatron-LM makes it"),
        ("0.6.2/batch_padded", "batch of unpacked rows"),
    ],
)
def test_the_kind_is_said_in_words(name: str, said: str, inspected: Inspect) -> None:
    assert kind(inspected(name)) == said


def test_every_path_and_generation_of_the_real_batches_has_words(samples: dict[str, Any], inspected: Inspect) -> None:
    for name in samples:
        report = inspected(name)
        assert report.path in PATHS
        assert report.path not in kind(report)


def test_figures_count_what_the_row_holds(pack: Pack) -> None:
    assert figures_of(inspect_batch(pack([5, 8, 6], multiple=4, total=32))) == {
        "tokens": "32",
        "rows": "1",
        "sequences": "3",
        "fill": "59.4 %",
        "padding": "13",
        "trained": "10",
    }


def test_trained_tokens_are_left_out_where_they_are_not_known(inspected: Inspect) -> None:
    assert "trained" not in figures_of(inspected("0.6.2/getbatch_mult4_cp2_mb0_rank0", cp=2))


def test_tokens_of_no_sequence_are_a_figure_only_when_there_are_some(pack: Pack) -> None:
    batch = pack([8, 8])
    assert "in no sequence" not in figures_of(inspect_batch(batch))
    batch["cu_seqlens_q"][0, -1] = 12
    assert figures_of(inspect_batch(batch))["in no sequence"] == "4"


def test_ranks_are_not_called_rows(samples: dict[str, Any], inspected: Inspect, pack: Pack) -> None:
    report = replace(inspect_batch(pack([8])), path="ranks", rows=4)
    assert figures_of(report)["ranks"] == "4"


@pytest.mark.parametrize(
    ("value", "said"), [(None, "-"), (0, "0"), (1_234_567, "1 234 567"), (-1000, "-1 000"), (0.25, "0.25")]
)
def test_numbers_have_their_thousands_apart(value: Any, said: str) -> None:
    assert number(value) == said


def test_statistics_are_sorted_by_how_they_are_shown() -> None:
    found = statistics(
        with_statistics(
            rows=1200,
            packs=1200,
            lowest_fill=0.9731,
            sequence_length={"min": 1, "max": 8192},
            whole=True,
            nothing=None,
            name="a\nb",
            items=[1, 2],
            columns={"input_ids": "list<int64>"},
            length_histogram={"1-9": 4},
            fill_histogram=[{"from": 0, "to": 5, "packs": 2}],
            odd_histogram={"x": "y"},
        )
    )
    assert found.values == [
        ("packs", "1 200"),
        ("lowest fill", "97.3 %"),
        ("sequence length", "min 1, max 8 192"),
        ("whole", "true"),
        ("nothing", "null"),
        ("name", "a\\nb"),
        ("items", "[1, 2]"),
    ]
    assert found.tables == {"columns": [("input ids", "list<int64>")], "odd histogram": [("x", "y")]}
    assert found.histograms == {"length histogram": [("1-9", 4)], "fill histogram": [("0-5", 2)]}


def test_statistics_are_bounded() -> None:
    found = statistics(with_statistics(**{f"k{at}": at for at in range(1000)}, t={str(at): at for at in range(1000)}))
    assert len(found.values) == 200
    found = statistics(with_statistics(t={str(at): at for at in range(1000)}))
    assert len(found.tables["t"]) == 200


def lengths_of(*lengths: int) -> list[tuple[str, int]]:
    sequences = tuple(Sequence(0, sum(lengths[:at]), length, length, None) for at, length in enumerate(lengths))
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", sum(lengths), 1, sequences, ())
    return length_histogram(list(map_rows(report)))


def test_lengths_are_counted_in_a_few_equal_ranges() -> None:
    assert lengths_of(3, 3, 5) == [("3", 2), ("4", 0), ("5", 1)]
    bars = lengths_of(1, 16, 17, 100)
    assert bars[0] == ("0-15", 1)
    assert bars[1] == ("16-31", 2)
    assert bars[-1] == ("96-111", 1)
    assert sum(found for _, found in bars) == 4
    assert len(lengths_of(*range(1, 500))) <= 12


def test_one_sequence_has_no_histogram() -> None:
    assert lengths_of(8) == []


def test_tail_filler_is_no_length(pack: Pack) -> None:
    report = inspect_batch(pack([5, 8], total=64))
    assert sum(found for _, found in length_histogram(list(map_rows(report)))) == 2


def test_a_cut_that_loses_tokens_is_told_with_numbers(pack: Pack) -> None:
    report = inspect_batch(pack([6, 10, 8]), cp=2)
    assert report.cp is not None
    sentence = cut_sentence(report)
    assert f"{report.cp.duplicated.size} tokens held more than once" in sentence
    assert f"{report.cp.lost.size} tokens lost" in sentence


def test_the_rank_table_adds_up(pack: Pack) -> None:
    report = inspect_batch(pack([8, 16], multiple=8), cp=2)
    assert report.cp is not None
    assert rank_table(report.cp) == [
        ("rank", "tokens", "trained", "work", "of mean"),
        ("0", "12", "6", "86", "1.000"),
        ("1", "12", "6", "86", "1.000"),
    ]
