"""An old release beside the worker: its real wheels, its real training loop, and the silent faults that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_run.bridge.release import known_releases, load_release
from skill_run.errors import InputError, MissingError
from skill_run.worker import releases
from skill_run.worker.environments import FOLDER_ENVIRONMENT, Worker
from skill_run.worker.kinds import LOCKS, parse_lock
from skill_run.worker.releases import locked_releases, prepare_release, run_release_parity

NOBODY = Worker("cpu", ("/no/such/python",), {"megatron-bridge": "0.6.2"})


@pytest.fixture(scope="module")
def folder(bridge_worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with 0.4.2's packages, fetched into a folder of these tests."""
    root = tmp_path_factory.mktemp("workers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_ENVIRONMENT, str(root))
        try:
            return prepare_release(bridge_worker, "0.4.2")
        except MissingError as error:
            pytest.skip(f"the wheels of Megatron-Bridge 0.4.2 cannot be had: {error}")


@pytest.fixture(scope="module")
def report(bridge_worker: Worker, folder: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_ENVIRONMENT, str(folder.parents[2]))
        return run_release_parity("0.4.2", worker=bridge_worker)


@pytest.fixture
def layouts(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {layout["layout"]: layout for layout in report["layouts"]}


def test_every_lock_names_a_recorded_release_with_its_own_core() -> None:
    assert set(locked_releases()) <= set(known_releases())
    for release in locked_releases():
        pins = parse_lock((LOCKS / "releases" / f"{release}.txt").read_text("utf-8"))
        paired = {"megatron-bridge": release, "megatron-core": load_release(release).core}
        assert {pin.key: pin.version for pin in pins} == paired


def test_nothing_but_the_finished_release_is_left_in_the_folder(folder: Path) -> None:
    assert [path.name for path in folder.parent.iterdir()] == ["0.4.2"]


def test_a_release_that_is_there_is_not_fetched_again(
    folder: Path, bridge_worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_ENVIRONMENT, str(folder.parents[2]))
    offline = Worker(bridge_worker.name, NOBODY.command, bridge_worker.versions)
    assert prepare_release(offline, "0.4.2") == folder


def test_the_old_release_itself_ran(report: dict[str, Any]) -> None:
    assert (report["bridge"], report["core"]) == ("0.4.2", "0.17.0")
    assert not report["passed"]


def test_packing_alone_is_right_in_the_old_release(layouts: dict[str, dict[str, Any]]) -> None:
    assert layouts["cp1"]["passed"]
    assert layouts["cp1"]["gradient_error"] <= 1e-5


def test_four_stages_change_the_gradients_at_a_normal_loss(layouts: dict[str, dict[str, Any]]) -> None:
    assert layouts["pp4"]["gradient_error"] == pytest.approx(0.46, abs=0.1)
    assert layouts["pp4"]["loss_error"] < 0.01
    assert layouts["pp4"]["diagnosis"]["name"] == "middle-stage-without-boundaries"


def test_ragged_rows_over_cp_change_the_gradients_at_a_normal_loss(layouts: dict[str, dict[str, Any]]) -> None:
    assert layouts["cp2-ragged"]["gradient_error"] == pytest.approx(0.21, abs=0.05)
    assert layouts["cp2-ragged"]["loss_error"] < 0.01
    assert layouts["cp2-ragged"]["diagnosis"]["name"] == "sentinel"
    assert layouts["cp2-ragged"]["sentinels"] > 0


def test_a_release_without_a_lock_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(InputError, match=r"0\.4\.7 .*0\.3\.1, 0\.4\.2, 0\.5\.1, 0\.6\.2"):
        prepare_release(NOBODY, "0.4.7")


def test_a_worker_that_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_ENVIRONMENT, str(tmp_path))
    with pytest.raises(MissingError, match="worker cpu cannot be started"):
        prepare_release(NOBODY, "0.4.2")


def test_a_changed_wheel_is_refused_and_nothing_is_unpacked(
    bridge_worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = tmp_path / "locks" / "releases"
    locks.mkdir(parents=True)
    text = (LOCKS / "releases" / "0.4.2.txt").read_text("utf-8")
    pins = parse_lock(text)
    (locks / "0.4.2.txt").write_text(text.replace(pins[0].digest, "0" * 64))
    monkeypatch.setattr(releases, "LOCKS", tmp_path / "locks")
    monkeypatch.setenv(FOLDER_ENVIRONMENT, str(tmp_path / "workers"))
    with pytest.raises(MissingError) as told:
        prepare_release(bridge_worker, "0.4.2")
    if "SHA-256" not in str(told.value):
        pytest.skip(f"no index can be asked: {told.value}")
    assert not (tmp_path / "workers" / bridge_worker.name / "releases" / "0.4.2").exists()
