"""The file of the bearer token: private, whole, and replaced in one step."""

from __future__ import annotations

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.mcp_token import Token, default_token_file, make_token, read_token, replace_token

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes of files are those of POSIX")

TOKEN = "t" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "token"


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(mode)


def test_a_new_token_is_long_random_and_private(path: Path) -> None:
    make_token(path, replace=False)
    first = read_token(path)
    assert len(first) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    make_token(path, replace=False)
    assert read_token(path) == first
    make_token(path, replace=True)
    assert read_token(path) != first
    assert os.listdir(path.parent) == ["token"]


def test_the_mode_does_not_depend_on_the_users_mask(path: Path) -> None:
    before = os.umask(0)
    try:
        make_token(path, replace=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_servers_that_start_together_agree_on_one_token(path: Path) -> None:
    def start(_: int) -> bytes:
        make_token(path, replace=False)
        return read_token(path)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(32)))) == 1


def test_the_users_own_token_lies_beside_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILL_RUN_STATE", str(tmp_path))
    assert replace_token(None) == default_token_file() == tmp_path / "http.token"
    assert read_token(tmp_path / "http.token")


def test_only_the_token_is_accepted_and_a_changed_file_counts_at_once(path: Path) -> None:
    write(path, f" {TOKEN}\n")
    token = Token(path)
    owner = token.owner()
    assert token.accepts(TOKEN)
    for wrong in ("", TOKEN[:-1], TOKEN + "t", TOKEN.upper(), "\u00e9" * 32, "\udcff"):
        assert not token.accepts(wrong)
    make_token(path, replace=True)
    assert not token.accepts(TOKEN)
    assert token.accepts(read_token(path).decode())
    assert token.owner() != owner


@pytest.mark.parametrize("spoil", ["removed", "opened", "emptied"])
def test_nobody_comes_in_while_the_file_cannot_be_used(path: Path, spoil: str) -> None:
    write(path, TOKEN)
    token = Token(path)
    if spoil == "removed":
        path.unlink()
    elif spoil == "opened":
        path.chmod(0o644)
    else:
        path.write_text("", "ascii")
    assert not token.accepts(TOKEN)
    assert not token.accepts("")
    path.unlink(missing_ok=True)
    write(path, TOKEN)
    assert token.accepts(TOKEN)


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (TOKEN, 0o640, "open to other users"),
        (TOKEN, 0o602, "open to other users"),
        ("", 0o600, "holds no token"),
        ("t" * 31, 0o600, "holds no token"),
        ("t" * 513, 0o600, "holds no token"),
        (f"{TOKEN} {TOKEN}", 0o600, "holds no token"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "holds no token"),
        ("\u00e9" * 32, 0o600, "holds no token"),
    ],
)
def test_a_file_that_is_open_or_holds_no_token_is_refused(path: Path, text: str, mode: int, told: str) -> None:
    write(path, text, mode)
    with pytest.raises(InputError, match=told) as refused:
        Token(path)
    assert TOKEN not in str(refused.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_token(tmp_path / "missing")
    with pytest.raises(InputError, match="is no file"):
        read_token(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InputError, match="is no file"):
        read_token(tmp_path / "pipe")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "ascii")
    with pytest.raises(InputError, match="cannot be written"):
        make_token(tmp_path / "file" / "token", replace=True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        make_token(tmp_path / "folder", replace=True)
