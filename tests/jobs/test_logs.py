from __future__ import annotations

from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.jobs.logs import Follower, Log, clean, find_logs, pick_log, tail


def test_logs_of_ranks_are_found_by_name_and_by_torchruns_folders(tmp_path: Path) -> None:
    for name in ("job.log", "logs/rank0.log", "logs/run_x/attempt_0/3/stderr.log", "logs/notes.txt", "logs/other.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "logs/rank9.log").symlink_to("/etc/passwd")
    found = {log.name: log.rank for log in find_logs(tmp_path)}
    assert found == {
        "job.log": None, "logs/rank0.log": 0, "logs/run_x/attempt_0/3/stderr.log": 3, "logs/other.log": None,
    }  # fmt: skip
    assert pick_log(tmp_path, None).name == "job.log"
    assert pick_log(tmp_path, 3).rank == 3
    with pytest.raises(InputError, match="no log of rank 9"):
        pick_log(tmp_path, 9)
    with pytest.raises(InputError, match="no log yet"):
        pick_log(tmp_path / "logs", None)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", "plain"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"10%\r20%\r30%", "30%"),
        (b"windows\r", "windows"),
        (b"\x1b]0;title\x07", r"\x1b]0;title\x07"),
        (b"bad \xff byte", "bad \ufffd byte"),
        ("\u202eturned".encode(), r"\u202eturned"),
        (b"x" * 10_000, "x" * 2000),
    ],
)
def test_a_line_is_made_harmless(line: bytes, shown: str) -> None:
    assert clean(line) == shown
    assert clean(line).isprintable()


def test_the_tail_holds_the_last_lines_also_one_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"{number}\n" for number in range(10)) + "torn")
    log = Log(path, "x.log", None)
    assert tail(log, 3) == ["8", "9", "torn"]
    assert tail(log, 100)[0] == "0"
    assert tail(log, 0) == []
    path.write_text("")
    assert tail(log, 5) == []


def test_the_tail_of_a_huge_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"line {number:08d}\n" for number in range(400_000)))
    lines = tail(Log(path, "x.log", None), 10**6)
    assert lines[-1] == "line 00399999"
    assert len(lines[0]) == len("line 00000000")


def test_a_follower_reads_each_line_once_and_a_replaced_log_again(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    follower = Follower(path)
    assert follower.new_lines() == []
    with path.open("a") as stream:
        for text, lines in (("one\ntw", ["one"]), ("o\n", ["two"]), ("", []), ("three", [])):
            stream.write(text)
            stream.flush()
            assert follower.new_lines() == lines
    assert follower.rest() == ["three"]
    path.write_text("new\n")
    assert follower.new_lines() == ["new"]


def test_a_follower_goes_on_after_the_tail(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("one\ntwo\nthr")
    follower = Follower(path)
    assert follower.last_lines(1) == ["two"]
    with path.open("a") as stream:
        stream.write("ee\n")
    assert follower.new_lines() == ["three"]
