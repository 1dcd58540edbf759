"""Reading a data set: order, counts, what is bad and where, however many processes share the work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_tools as tools
from numpy.typing import NDArray

from skill_run.errors import InputError
from skill_run.pack.samples import Progress, SampleOptions, read_samples, sample_lengths
from skill_run.pack.samples.pool import DeadChildError

TOKENS = SampleOptions(seq_length=8, eos_id=0)


def ids_row(*ids: int, **more: Any) -> dict[str, Any]:
    return {"input_ids": list(ids), "loss_mask": [1] * len(ids), **more}


def joined(stream: Any) -> tuple[NDArray[Any], ...]:
    blocks = list(stream)
    return tuple(np.concatenate([getattr(block, name) for block in blocks]) for name in ("tokens", "masks", "lengths"))


def read_ids(path: Path, **options: Any) -> Any:
    skip_bad = options.pop("skip_bad", False)
    return read_samples(path, tokenizer=None, options=SampleOptions(**{"seq_length": 8, **options}), skip_bad=skip_bad)


def test_two_processes_give_the_same_blocks_and_counts_as_one(tmp_path: Path) -> None:
    tokenizer = tools.byte_tokenizer(tmp_path / "tokenizer")
    # More than one chunk, of more than one file, with something of everything in it.
    rows = tools.prompt_rows(9000, 7)
    first = tools.write_lines(tmp_path / "a.jsonl", rows)
    second = tools.write_lines(tmp_path / "b.jsonl", [*rows[:20], {"input": 1}, *rows[20:40]])
    options = SampleOptions(seq_length=40, pad_seq_to_mult=4)
    streams = [
        read_samples([first, second], tokenizer=tokenizer, options=options, workers=workers, skip_bad=True)
        for workers in (1, 2)
    ]
    one, two = (joined(stream) for stream in streams)
    assert all(np.array_equal(mine, yours) for mine, yours in zip(one, two, strict=True))
    assert streams[0].counts == streams[1].counts
    assert streams[0].counts.bad.places == (f"{second}:21: 'input' is no text",)
    assert streams[0].counts.lines == 9041
    assert streams[0].counts.samples == 9040


def test_lengths_alone_are_runtime_lengths(tmp_path: Path) -> None:
    path = tools.write_lines(tmp_path / "a.jsonl", [ids_row(1, 2, 3), ids_row(4, 5)])
    found = np.concatenate(list(sample_lengths(path, tokenizer=None, options=TOKENS)))
    assert found.dtype == np.int32
    assert found.tolist() == [2, 1]


def test_progress_ends_with_all_bytes_and_samples(tmp_path: Path) -> None:
    path = tools.write_lines(tmp_path / "a.jsonl", [ids_row(1, 2, 3)] * 5)
    told: list[Progress] = []
    list(read_samples(path, tokenizer=None, options=TOKENS, on_progress=told.append))
    assert told[-1] == Progress(5, path.stat().st_size, path.stat().st_size)


def test_a_folder_stands_for_its_training_lines(tmp_path: Path) -> None:
    tools.write_lines(tmp_path / "training.jsonl", [ids_row(1, 2, 3)])
    assert read_ids(tmp_path).counts.files == 1
    assert joined(read_ids(tmp_path))[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"input_ids": [1, 2', "this is no JSON"),
        (b"[1, 2]", "this is no JSON object"),
        (b'{"loss_mask": [1, 1]}', "there is no 'input_ids'"),
        (b'{"input_ids": [1, 2]}', "there is none of loss_mask, answer_start_idx and labels"),
        (b'{"input_ids": "ab", "loss_mask": [1, 1]}', "'input_ids' is no list"),
        (b'{"input_ids": [1.5, 2.0], "loss_mask": [1, 1]}', "'input_ids' is no list of whole numbers"),
        (b'{"input_ids": [[1], [2]], "loss_mask": [1, 1]}', "'input_ids' is no list"),
        (b'{"input_ids": [1, 2], "loss_mask": [1]}', "'loss_mask' has 1 values for 2 tokens"),
        (b'{"input_ids": [1, 2], "loss_mask": [1, 2]}', "'loss_mask' holds other values than 0 and 1"),
        (b'{"input_ids": [1, -2], "loss_mask": [1, 1]}', "token id -2 is negative"),
        (b'{"input_ids": [1, 4294967296], "loss_mask": [1, 1]}', "token id 4294967296 is too large"),
        (b'{"input_ids": [1, 2], "answer_start_idx": 3}', "'answer_start_idx' is no place in the tokens"),
        (b'{"input_ids": [1, 2], "labels": [2, -100]}', "'labels' are not the ids themselves"),
        (b'{"input_ids": [1, 2], "loss_mask": [1, 1], "x": "\xff"}', "byte 50 of the line is no UTF-8"),
        (b'{"input_ids": [1, 2], "loss_mask": [1, 1], "x": "\x00"}', "this is no JSON"),
        (b"\xef\xbb\xbf" * 2 + b'{"input_ids": [1, 2], "loss_mask": [1, 1]}', "this is no JSON"),
        (b"[" * 200000, "this is no JSON"),
    ],
)
def test_a_bad_line_is_refused_with_its_place_and_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(ids_row(1, 2, 3)).encode() + b"\n\n" + line + b"\n" + b'{"input_ids": [7, 8, 9],')
    with open(path, "ab") as file:
        file.write(b' "loss_mask": [0, 1, 1]}')
    with pytest.raises(InputError) as refused:
        list(read_ids(path))
    assert f"1 lines cannot be read ({path}:3: {reason}" in str(refused.value)
    stream = read_ids(path, skip_bad=True)
    assert joined(stream)[0].tolist() == [1, 2, 3, 7, 8, 9]
    assert stream.counts.bad.samples == 1
    assert stream.counts.lines == 4


def test_of_many_bad_lines_the_first_twenty_are_listed(tmp_path: Path) -> None:
    path = tools.write_lines(tmp_path / "a.jsonl", [ids_row(1, 2)] + [{"x": 1}] * 50)
    with pytest.raises(InputError, match=r"at least 50 lines") as refused:
        list(read_ids(path, kind="tokens"))
    assert str(refused.value).count("a.jsonl:") == 20
    stream = read_ids(path, kind="tokens", skip_bad=True)
    list(stream)
    assert stream.counts.bad.samples == 50
    assert len(stream.counts.bad.places) == 20


def test_a_byte_order_mark_at_the_beginning_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ids_row(1, 2)).encode() + b"\r\n")
    assert joined(read_ids(path))[0].tolist() == [1, 2]


def test_an_endless_line_is_skipped_and_what_follows_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skill_run.pack.samples.inputs.LONGEST_LINE", 4096)
    monkeypatch.setattr("skill_run.pack.samples.inputs._TOKEN_CHUNK", 1024)
    good = ids_row(1, 2)
    path = tools.write_lines(tmp_path / "a.jsonl", [good, {**good, "x": "y" * 20000}, good])
    stream = read_ids(path, skip_bad=True)
    assert joined(stream)[2].tolist() == [2, 2]
    assert stream.counts.bad.places == (f"{path}:2: the line is too long",)
    assert stream.counts.lines == 3


def test_samples_that_are_too_long_are_dropped_without_padding_and_cut_with_it(tmp_path: Path) -> None:
    path = tools.write_lines(tmp_path / "a.jsonl", [ids_row(*range(10)), ids_row(*range(9)), ids_row(1, 2)])
    dropped = read_ids(path)
    assert joined(dropped)[2].tolist() == [9, 2]
    assert dropped.counts.dropped_long.to_dict() == {"samples": 1, "tokens": 10, "places": [f"{path}:1"]}
    cut = read_ids(path, pad_seq_to_mult=3)
    tokens, masks, lengths = joined(cut)
    assert lengths.tolist() == [7, 7, 2]
    assert masks.tolist() == [1, 1, 1, 1, 1, 1, 0] * 2 + [1, 0]
    assert tokens.tolist() == [*range(7), *range(7), 1, 2]
    assert (cut.counts.truncated.samples, cut.counts.truncated.tokens) == (2, 5)


def test_samples_without_anything_to_predict_are_dropped_and_untrained_ones_are_told(tmp_path: Path) -> None:
    rows = [ids_row(1), ids_row(), {"input_ids": [1, 2, 3], "loss_mask": [1, 0, 0]}, ids_row(4, 5)]
    path = tools.write_lines(tmp_path / "a.jsonl", rows)
    stream = read_ids(path)
    assert joined(stream)[2].tolist() == [3, 2]
    assert stream.counts.dropped_short.places == (f"{path}:1", f"{path}:2")
    assert stream.counts.all_masked.places == (f"{path}:3",)
    assert (stream.counts.tokens, stream.counts.trained_tokens) == (3, 1)
    assert stream.counts.lost


def test_an_empty_completion_is_kept_and_told(tmp_path: Path) -> None:
    path = tools.write_lines(
        tmp_path / "a.jsonl", [{"input": "the ox", "output": ""}, {"input": "", "output": "an ox"}]
    )
    tokenizer = tools.byte_tokenizer(tmp_path / "tokenizer")
    stream = read_samples(path, tokenizer=tokenizer, options=SampleOptions())
    assert joined(stream)[2].size == 2
    assert stream.counts.empty_completion.places == (f"{path}:1",)


def test_lengths_off_the_grid_are_told_for_releases_that_make_them(tmp_path: Path) -> None:
    path = tools.write_lines(tmp_path / "a.jsonl", [{"input": "the ox " * 20, "output": "an ox"}])
    tokenizer = tools.byte_tokenizer(tmp_path / "tokenizer")
    told = {}
    for bridge in ("0.5.1", "0.6.2"):
        options = SampleOptions(bridge=bridge, seq_length=30, pad_seq_to_mult=4)
        stream = read_samples(path, tokenizer=tokenizer, options=options)
        list(stream)
        told[bridge] = (stream.counts.off_grid.samples, stream.counts.truncated.samples)
    assert told == {"0.5.1": (1, 1), "0.6.2": (0, 1)}


@pytest.mark.parametrize("content", [b"", b"\n \n\n", b'{"input_ids": [1], "loss_mask": [1]}\n'])
def test_data_without_a_sample_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match="holds no sample"):
        list(read_ids(path, kind="tokens"))


def test_only_too_long_samples_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tools.write_lines(tmp_path / "a.jsonl", [ids_row(*range(30))] * 3)
    with pytest.raises(InputError, match=r"no sample that can be packed \(3 longer than seq_length\)"):
        list(read_ids(path))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x1f\x8b\x08\x00", "compressed .gzip"),
        (b"\x93NUMPY\x01\x00", "NumPy file"),
        (b'[\n{"input": "x"}]', "one JSON array"),
        (b"PAR1 but nothing else", "cannot be read as Parquet"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_ids(path)


def test_what_is_not_there_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tools.write_lines(tmp_path / "a.jsonl", [{"input": "x", "output": "y"}])
    for data, tokenizer, sentence in [
        (tmp_path / "none.jsonl", None, "none.jsonl cannot be read: No such file"),
        (tmp_path, None, "has no training.jsonl"),
        ([], None, "no data file is given"),
        (path, None, "which needs a tokenizer"),
        (path, tmp_path / "tokenizer", "there is no tokenizer at"),
        (path, "acme/not-cached", "there is no tokenizer at acme/not-cached"),
        (path, tmp_path, "holds no tokenizer.json"),
    ]:
        with pytest.raises(InputError, match=sentence):
            read_samples(data, tokenizer=tokenizer, options=SampleOptions())
    with pytest.raises(InputError, match="workers must be from 1"):
        read_samples(path, tokenizer=None, options=SampleOptions(), workers=0)


def children() -> list[int]:
    """Return the ids of this process's tokenising children."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            command = (entry.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"skill_run.pack.samples.child" in command:
            found.append(int(entry.parent.name))
    return found


def many_lines(tmp_path: Path) -> Path:
    row = json.dumps({"input_ids": [1, 2, 3], "loss_mask": [1, 1, 1], "x": "y" * 2000})
    path = tmp_path / "many.jsonl"
    path.write_text((row + "\n") * 20000, "utf-8")
    return path


def test_a_child_that_dies_is_told_in_one_sentence_and_the_others_end(tmp_path: Path) -> None:
    def kill(progress: Progress) -> None:
        if progress.done_bytes < progress.total_bytes // 3:
            os.kill(children()[0], signal.SIGKILL)

    stream = read_samples(many_lines(tmp_path), tokenizer=None, options=TOKENS, workers=2, on_progress=kill)
    with pytest.raises(DeadChildError, match=r"a tokenising process ended .*\(killed, most often for want of memory"):
        list(stream)
    assert children() == []


def test_an_iteration_that_is_given_up_leaves_no_child(tmp_path: Path) -> None:
    blocks = iter(read_samples(many_lines(tmp_path), tokenizer=None, options=TOKENS, workers=2))
    next(blocks)
    assert len(children()) == 2
    blocks.close()  # type: ignore[attr-defined]
    assert children() == []


def test_an_interrupt_leaves_no_child(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_read import TOKENS, children\n"
        "from skill_run.pack.samples import read_samples\n"
        "def stop(progress):\n"
        "    print(*children(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "list(read_samples(sys.argv[1], tokenizer=None, options=TOKENS, workers=2, on_progress=stop))\n",
        "utf-8",
    )
    command = [sys.executable, str(script), str(many_lines(tmp_path)), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
