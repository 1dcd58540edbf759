from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.jobs.model import Job, Plan, State
from skill_run.jobs.store import FILE, SCHEMA_VERSION, Store, file_system


def job(job_id: str, state: State = State.PREVIEWED, created: str = "2026-01-01") -> Job:
    plan = Plan(id=job_id, name=job_id, engine="local", command=("true",), folder=f"/nowhere/{job_id}")
    return Job(plan, state, plan.digest(), created)


def ids(store: Store) -> list[str]:
    return [each.id for each in store.rows()]


def test_rows_come_newest_first_and_by_state(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number, state in enumerate((State.RUNNING, State.FAILED, State.RUNNING)):
        store.add(job(f"j{number}", state, f"2026-01-0{number + 1}"))
    assert ids(store) == ["j2", "j1", "j0"]
    assert [each.id for each in store.rows(states={State.RUNNING}, limit=1)] == ["j2"]
    assert store.count() == {State.RUNNING: 2, State.FAILED: 1}
    assert store.find("j") == ["j0", "j1", "j2"]
    assert store.find("%") == []


def test_a_second_row_with_an_id_that_is_there_is_not_added(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.add(job("one"))
    assert not store.add(job("one", State.FAILED))
    found = store.get("one")
    assert found is not None
    assert found.state is State.PREVIEWED


def test_of_two_changes_to_the_same_row_one_counts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(job("one"))
    seen = store.get("one")
    assert seen is not None
    first, second = store.change(seen, state=State.QUEUED), store.change(seen, state=State.QUEUED)
    assert first is not None
    assert second is None
    assert store.get("one") == first


def test_many_processes_make_and_fill_one_store_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from skill_run.jobs.store import Store;"
        "from skill_run.jobs.model import *; sys.stdin.read();"
        "store = Store(Path(sys.argv[1]), busy_seconds=60);"
        "plan = lambda i: Plan(id=f'{sys.argv[2]}-{i}', name='n', engine='local', command=('x',), folder='/x');"
        "plans = [plan(i) for i in range(5)];"
        "[store.add(Job(p, State.PREVIEWED, p.digest(), 'now')) for p in plans]"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)], stdin=subprocess.PIPE) for n in range(6)
    ]
    for process in running:
        # All of them begin when their input ends.
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait() for process in running] == [0] * 6
    assert len(ids(Store(tmp_path))) == 30


@pytest.mark.parametrize("broken", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_corrupt_store_is_moved_aside_and_made_again(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / FILE).write_bytes(broken)
    store = Store(tmp_path, find_again=lambda: [job("found")])
    assert ids(store) == ["found"]
    (aside,) = [path for path in tmp_path.iterdir() if ".corrupt-" in path.name]
    assert aside.read_bytes() == broken


def test_a_store_that_breaks_in_the_middle_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path, find_again=lambda: [job("found")])
    for number in range(60):
        store.add(job(f"j{number}"))
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[:4096] + bytes([7]) * (len(content) - 4096))
    assert ids(store) == ["found"]


@pytest.mark.parametrize("content", [None, b""])
def test_a_store_that_is_gone_or_empty_is_made_again(tmp_path: Path, content: bytes | None) -> None:
    store = Store(tmp_path, find_again=lambda: [job("found")])
    store.add(job("other"))
    for path in tmp_path.glob(f"{FILE}*"):
        path.unlink()
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert ids(store) == ["found"]


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(job("one"))
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(InputError, match="made by a newer skill-run"):
        store.rows()
    assert not list(tmp_path.glob("*corrupt*"))


def test_a_locked_store_is_one_sentence_and_can_still_be_read(tmp_path: Path) -> None:
    store = Store(tmp_path, busy_seconds=0.05)
    store.add(job("one"))
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        assert ids(store) == ["one"]
        with pytest.raises(InputError, match=r"has been locked by another process for 0\.05 s; try again"):
            store.add(job("two"))
    assert store.add(job("two"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB, in memory; the test is skipped where it may not be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_sentence_and_loses_no_row(small_disk: Path) -> None:
    store = Store(small_disk)
    store.add(job("one"))
    done = subprocess.run(["cp", "/dev/zero", small_disk / "filler"], capture_output=True, text=True, check=False)
    assert "No space left" in done.stderr
    with pytest.raises(InputError, match="the disk is full"):
        [store.add(job(f"j{number}")) for number in range(100)]
    (small_disk / "filler").unlink()
    assert "one" in ids(store)
    assert store.add(job("after"))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        Store(tmp_path / "file" / "state")


MOUNTS = """\
1 0 8:1 / / rw shared:1 - ext4 /dev/root rw
2 1 0:50 / /home rw - nfs4 server:/home rw
3 2 0:51 / /home/a\\040b\u00fc rw master:3 - lustre o2ib:/x rw
4 1 0:52 / /home2 rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [("/", "ext4"), ("/homes/x", "ext4"), ("/home/ann", "nfs4"), ("/home/a b\u00fc/x", "lustre"), ("/home2", "tmpfs")],
)
def test_the_file_system_of_a_place_is_that_of_the_nearest_mount(place: str, kind: str) -> None:
    assert file_system(place, MOUNTS) == kind


def test_a_store_here_writes_ahead_so_that_readers_do_not_wait(tmp_path: Path) -> None:
    Store(tmp_path).add(job("one"))
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
