"""The folders that a request may read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.roots import Roots


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "sub" / "a.yaml").write_text("a: 1\n", "utf-8")
    (tmp_path / "outside.yaml").write_text("a: 1\n", "utf-8")
    return folder


@pytest.mark.parametrize("name", ["sub/a.yaml", "./sub/a.yaml", "sub/../sub/a.yaml", "../root/sub/a.yaml"])
def test_a_name_that_stays_inside_is_found(root: Path, name: str) -> None:
    assert Roots([root]).find(name) == root / "sub" / "a.yaml"
    assert Roots([root]).find(str(root / name)) == root / "sub" / "a.yaml"


def test_a_link_inside_the_roots_is_followed(root: Path) -> None:
    (root / "link.yaml").symlink_to(root / "sub" / "a.yaml")
    assert Roots([root]).find("link.yaml") == root / "sub" / "a.yaml"


def test_a_root_may_itself_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root, target_is_directory=True)
    assert Roots([tmp_path / "link"]).find(str(tmp_path / "link" / "sub" / "a.yaml")) == root / "sub" / "a.yaml"


@pytest.mark.parametrize("name", ["../outside.yaml", "sub/../../outside.yaml", "/etc/passwd", "/", "..", "../missing"])
def test_a_name_that_leads_out_is_refused_whether_or_not_something_is_there(root: Path, name: str) -> None:
    with pytest.raises(InputError, match="is outside the folders that may be read"):
        Roots([root]).find(name)


def test_a_link_that_leads_out_is_refused(root: Path, tmp_path: Path) -> None:
    (root / "file.yaml").symlink_to(tmp_path / "outside.yaml")
    (root / "folder").symlink_to(tmp_path, target_is_directory=True)
    (root / "chain.yaml").symlink_to(root / "file.yaml")
    for name in ("file.yaml", "folder/outside.yaml", "chain.yaml"):
        with pytest.raises(InputError, match="is outside"):
            Roots([root]).find(name)


def test_a_link_in_a_circle_is_not_there(root: Path) -> None:
    (root / "one").symlink_to(root / "two")
    (root / "two").symlink_to(root / "one")
    with pytest.raises(InputError):
        Roots([root]).find("one/a.yaml")


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "x" * 5000, "\x1b[31m", "\ud800"])
def test_a_hostile_name_is_refused_in_one_short_line(root: Path, name: str) -> None:
    with pytest.raises(InputError) as refused:
        Roots([root]).find(name)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400 + len(str(root))


def test_roots_must_be_folders(root: Path) -> None:
    with pytest.raises(InputError, match="at least one folder"):
        Roots([])
    with pytest.raises(InputError, match="is not a folder"):
        Roots([root / "sub" / "a.yaml"])


def test_a_model_id_is_kept_and_a_path_is_confined(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (root / "model").mkdir()
    roots = Roots([root])
    assert roots.find_model("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    assert roots.find_model("model") == str(root / "model")
    for name in ("../outside.yaml", "./missing", "/etc", "~/model", "missing.json"):
        with pytest.raises(InputError):
            roots.find_model(name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="outside"):
        roots.find_model("outside.yaml")


def test_house_rules_are_looked_for_up_to_the_root_and_not_above(root: Path) -> None:
    folder = root / ".skill-run" / "rules"
    folder.mkdir(parents=True)
    assert Roots([root]).house_folder(root / "sub" / "a.yaml") == folder
    assert Roots([root]).house_folder(None) == folder
    assert Roots([root / "sub"]).house_folder(root / "sub" / "a.yaml") is None
    assert Roots([root / "sub"]).house_folder(None) is None


def test_a_house_folder_that_links_out_is_not_used(root: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (root / ".skill-run").mkdir()
    (root / ".skill-run" / "rules").symlink_to(tmp_path / "rules", target_is_directory=True)
    assert Roots([root]).house_folder(None) is None


def test_the_whole_file_system_can_be_a_root(root: Path) -> None:
    found = Roots([Path(os.sep)]).find(str(root / "sub" / "a.yaml"))
    assert found == root / "sub" / "a.yaml"


@pytest.mark.parametrize("name", ["sub/../../outside", "w/../outside", "a/../..", "a\\..\\b"])
def test_a_model_id_that_climbs_is_refused_whether_or_not_something_is_there(root: Path, name: str) -> None:
    with pytest.raises(InputError):
        Roots([root]).find_model(name)


def test_a_model_folder_may_be_named_by_a_path_that_climbs_inside(root: Path) -> None:
    (root / "model").mkdir()
    assert Roots([root]).find_model("sub/../model") == str(root / "model")


def test_a_folder_is_found_only_when_none_of_its_files_leads_out(root: Path, tmp_path: Path) -> None:
    assert Roots([root]).find_files("sub") == root / "sub"
    (root / "sub" / "training.jsonl").symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(InputError, match="leads outside the folders that may be read"):
        Roots([root]).find_files("sub")


@pytest.mark.parametrize("name", ["new", "sub/new/deep", "sub", "."])
def test_a_folder_to_write_to_need_not_be_there(root: Path, name: str) -> None:
    assert Roots([root]).place(name) == (root / name).resolve()


@pytest.mark.parametrize("name", ["../new", "/etc/new", "sub/../../new", "link/new", "link", "new/../link/x"])
def test_a_folder_to_write_to_that_leads_out_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    (root / "link").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(InputError, match="is outside the folders that may be written"):
        Roots([root]).place(name)


def test_a_link_inside_a_folder_to_write_to_must_not_lead_out(root: Path, tmp_path: Path) -> None:
    (root / "out").mkdir()
    (root / "out" / "packed").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(InputError, match="packed leads outside the folders that may be written"):
        Roots([root]).place("out")
