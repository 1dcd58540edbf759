"""A token confirms one plan, here, for a while."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.launch.token import check_token, job_of, make_token

DIGEST = "0" * 64


def test_a_token_confirms_the_plan_that_it_was_made_for(tmp_path: Path) -> None:
    token = make_token(tmp_path, "job-1", DIGEST)
    check_token(tmp_path, token, DIGEST)
    assert job_of(token) == "job-1"


def test_a_changed_plan_another_job_and_another_state_folder_need_a_new_token(tmp_path: Path) -> None:
    token = make_token(tmp_path, "job-1", DIGEST)
    for folder, text, digest in (
        (tmp_path, token, "1" * 64),
        (tmp_path, token.replace("job-1", "job-2"), DIGEST),
        (tmp_path / "other", token, DIGEST),
    ):
        with pytest.raises(InputError, match="does not belong to this plan"):
            check_token(folder, text, digest)


def test_a_token_expires_and_its_end_cannot_be_moved(tmp_path: Path) -> None:
    token = make_token(tmp_path, "job-1", DIGEST, seconds=-1)
    with pytest.raises(InputError, match="has expired"):
        check_token(tmp_path, token, DIGEST)
    name, expires, signature = token.split(".")
    with pytest.raises(InputError, match="does not belong"):
        check_token(tmp_path, f"{name}.{int(expires) + 1000}.{signature}", DIGEST)


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "../x.5.0", "a.5", "a.5.\u00e9", "a.99999999999999999999.0"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        check_token(tmp_path, text, DIGEST)


def test_many_first_callers_share_one_secret_that_only_its_owner_reads(tmp_path: Path) -> None:
    tokens: list[str] = []
    threads = [threading.Thread(target=lambda: tokens.append(make_token(tmp_path, "job-1", DIGEST))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for token in tokens:
        check_token(tmp_path, token, DIGEST)
    assert os.listdir(tmp_path) == ["confirm.key"]
    assert stat.S_IMODE((tmp_path / "confirm.key").stat().st_mode) == 0o600
