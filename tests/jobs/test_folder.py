from __future__ import annotations

import stat
from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.jobs.folder import check_name, make_folder, read_record, state_folder, write_files, write_record


def test_the_state_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SKILL_RUN_STATE", str(tmp_path / "here"))
    assert state_folder() == tmp_path / "here"
    monkeypatch.delenv("SKILL_RUN_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_folder() == tmp_path / "state" / "skill-run"


def test_a_record_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    write_record(tmp_path / "r.json", {"a": "\udcff\n"})
    assert read_record(tmp_path / "r.json") == {"a": "\udcff\n"}
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_record(tmp_path / "none" / "r.json", {})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 10**5])
def test_what_is_no_record_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.json").write_bytes(content)
    assert read_record(tmp_path / "r.json") is None


def test_only_the_owner_may_enter_a_jobs_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    with pytest.raises(InputError, match="is there already"):
        make_folder(tmp_path / "a" / "b")
    with pytest.raises(InputError, match="cannot be made"):
        make_folder(tmp_path / ("x" * 300))


def test_files_keep_every_byte_of_their_text(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/b/c.py": "x\r\ny\n\udcff\u00fc"})
    assert (tmp_path / "a/b/c.py").read_bytes() == b"x\r\ny\n\xff\xc3\xbc"


@pytest.mark.parametrize("name", ["job.sbatch", "config.yaml", "a/b.py", "odd $(x)\n.py", "capture/plan.json"])
def test_an_ordinary_name_of_a_file_is_taken(name: str) -> None:
    check_name(name)
