"""Loading rules: the bundle's with their cache, and a team's own."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skill_run.bundle.load import (
    HOUSE_FOLDER,
    MAX_HOUSE_RULES,
    MAX_RULE_BYTES,
    find_rule,
    house_folder,
    load_house_rules,
    load_rules,
    read_yaml,
    rule_files,
)
from skill_run.bundle.rule import Rule
from skill_run.errors import BundleError, InputError, SkillRunError

RuleText = Callable[..., str]
Bundle = Callable[..., Path]


def loaded(root: Path) -> tuple[Rule, ...]:
    """Load like a new process does."""
    load_rules.cache_clear()
    return load_rules(root)


def titles(root: Path) -> list[str]:
    return [rule.title for rule in loaded(root)]


def cache_files(cache_home: Path) -> list[Path]:
    return sorted(cache_home.iterdir())


def kept_rules(kept: Path) -> Any:
    """Return the data of a cache file, which stands below its digest."""
    return json.loads(kept.read_bytes().split(b"\n", 1)[1])


def keep(kept: Path, body: bytes) -> None:
    """Write a cache file whose digest fits."""
    kept.write_bytes(hashlib.sha256(kept.name.encode() + b"\0" + body).hexdigest().encode() + b"\n" + body)


def test_rules_are_loaded_by_skill_and_name(bundle: Bundle, rule_text: RuleText) -> None:
    root = bundle(second__a=rule_text(id="a"), first__c=rule_text(id="c"), first__b=rule_text(id="b"))
    assert [(rule.skill, rule.id, rule.file) for rule in loaded(root)] == [
        ("first", "b", "skills/first/rules/b.yaml"),
        ("first", "c", "skills/first/rules/c.yaml"),
        ("second", "a", "skills/second/rules/a.yaml"),
    ]


def test_other_files_of_a_skill_are_not_rules(bundle: Bundle) -> None:
    root = bundle()
    for name in ("skills/first/card.yaml", "skills/first/rules/notes.md", "skills/first/rules/deeper/x.yaml", "x.yaml"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("not: [a, rule", "utf-8")
    assert [path.name for path in rule_files(root)] == ["no-cp.yaml"]
    assert len(loaded(root)) == 1


def test_one_process_loads_a_bundle_once(bundle: Bundle) -> None:
    root = bundle()
    assert loaded(root) is load_rules(root)


def test_the_second_process_reads_the_cache(bundle: Bundle, cache_home: Path) -> None:
    root = bundle()
    first = loaded(root)
    (kept,) = cache_files(cache_home)
    assert loaded(root) == first
    keep(kept, json.dumps(kept_rules(kept)).replace("must be off", "from the cache").encode())
    assert titles(root) == ["context parallelism from the cache"]


def test_an_edited_rule_is_read_again(bundle: Bundle, rule_text: RuleText) -> None:
    root = bundle()
    loaded(root)
    bundle(first__no_cp=rule_text(title="context parallelism must be one"))
    assert titles(root) == ["context parallelism must be one"]


def test_an_edit_that_keeps_the_size_is_seen_by_the_time_of_change(bundle: Bundle, rule_text: RuleText) -> None:
    root = bundle()
    loaded(root)
    (path,) = rule_files(root)
    before = path.stat()
    path.write_text(
        rule_text(title="context parallelism must be ON!"[: len("context parallelism must be off")]), "utf-8"
    )
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert titles(root) == ["context parallelism must be ON!"]


def test_a_new_and_a_removed_rule_are_seen(bundle: Bundle, rule_text: RuleText) -> None:
    root = bundle()
    loaded(root)
    bundle(second__other=rule_text(id="other"))
    assert [rule.id for rule in loaded(root)] == ["no-cp", "other"]
    rule_files(root)[0].unlink()
    assert [rule.id for rule in loaded(root)] == ["other"]


def test_only_the_newest_cache_file_is_kept(bundle: Bundle, rule_text: RuleText, cache_home: Path) -> None:
    root = bundle()
    loaded(root)
    before = cache_files(cache_home)
    bundle(first__no_cp=rule_text(title="another title for it"))
    loaded(root)
    after = cache_files(cache_home)
    assert len(after) == 1
    assert after != before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}",
        b"null",
        b"[1, 2]",
        b'[{"file": "x"}]',
        b'[{"file": 1, "data": {}}]',
        b'[{"file": "skills/first/rules/no-cp.yaml", "data": []}]',
        b'[{"file": "skills/first/rules/no-cp.yaml", "data": {"id": "no-cp"}}]',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_corrupt_cache_file_is_read_over_and_replaced(bundle: Bundle, cache_home: Path, content: bytes) -> None:
    root = bundle()
    first = loaded(root)
    (kept,) = cache_files(cache_home)
    for write in (kept.write_bytes, lambda body: keep(kept, body)):
        write(content)
        assert loaded(root) == first
        assert kept_rules(kept)[0]["data"]["id"] == "no-cp"


@pytest.mark.parametrize(("key", "value"), [("id", [1]), ("fires", {"*": 3}), ("fails", [1]), ("passes", 3)])
def test_a_cache_file_with_a_value_of_another_type_is_read_over_and_replaced(
    bundle: Bundle, cache_home: Path, key: str, value: object
) -> None:
    root = bundle()
    first = loaded(root)
    (kept,) = cache_files(cache_home)
    before = kept.read_bytes()
    data = kept_rules(kept)
    data[0]["data"][key] = value
    keep(kept, json.dumps(data).encode())
    assert loaded(root) == first
    assert kept.read_bytes() == before


def test_a_cache_file_whose_expression_was_damaged_is_read_over_and_replaced(bundle: Bundle, cache_home: Path) -> None:
    root = bundle()
    first = loaded(root)
    (kept,) = cache_files(cache_home)
    before = kept.read_bytes()
    kept.write_bytes(before.replace(b"size == 1", b"size =( 1"))
    assert loaded(root) == first
    assert kept.read_bytes() == before


def test_the_cache_file_of_other_rules_is_not_taken(bundle: Bundle, rule_text: RuleText, cache_home: Path) -> None:
    root = bundle()
    loaded(root)
    (old,) = cache_files(cache_home)
    body = old.read_bytes()
    bundle(first__no_cp=rule_text(title="another title for it"))
    loaded(root)
    (new,) = cache_files(cache_home)
    new.write_bytes(body)
    assert titles(root) == ["another title for it"]


def test_a_pipe_in_place_of_the_cache_file_is_replaced(bundle: Bundle, cache_home: Path) -> None:
    root = bundle()
    first = loaded(root)
    (kept,) = cache_files(cache_home)
    kept.unlink()
    os.mkfifo(kept)
    assert loaded(root) == first
    assert kept.is_file()


def test_a_cache_folder_that_cannot_be_made_costs_only_the_cache(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert len(loaded(bundle())) == 1
    assert blocked.read_text("utf-8") == ""


def test_a_folder_in_place_of_the_cache_file_costs_only_the_cache(bundle: Bundle, cache_home: Path) -> None:
    root = bundle()
    loaded(root)
    (kept,) = cache_files(cache_home)
    kept.unlink()
    kept.mkdir()
    (kept / "x").write_text("", "utf-8")
    assert len(loaded(root)) == 1
    assert cache_files(cache_home) == [kept]


def test_a_rule_file_that_is_not_yaml_is_told_with_its_place(bundle: Bundle, cache_home: Path) -> None:
    root = bundle(first__broken="id: broken\ntitle: [\n")
    with pytest.raises(BundleError, match=r"broken\.yaml:3:1: not valid YAML"):
        loaded(root)
    assert not cache_home.exists()


@pytest.mark.parametrize("text", ["id: broken\n", "- a list\n", "just text\n", "id: broken\nmessage: x\nevidence: 3\n"])
def test_a_rule_file_of_another_shape_is_told_with_its_place(bundle: Bundle, cache_home: Path, text: str) -> None:
    root = bundle(first__broken=text)
    with pytest.raises(BundleError, match=r"broken\.yaml:\d+: "):
        loaded(root)
    assert not cache_home.exists()


def test_a_malformed_rule_is_told_without_checking_the_others(bundle: Bundle, rule_text: RuleText) -> None:
    wrong_example = rule_text(id="aaa", passes=[{"model.context_parallel_size": 2}])
    root = bundle(first__aaa=wrong_example, first__broken="id: broken\n")
    with pytest.raises(BundleError, match=r"broken\.yaml:1: "):
        loaded(root)


def test_a_rule_file_that_is_too_large_is_refused(bundle: Bundle, rule_text: RuleText) -> None:
    with pytest.raises(BundleError, match=f"larger than {MAX_RULE_BYTES // 1024} KiB"):
        loaded(bundle(first__no_cp=rule_text() + "# " + "x" * MAX_RULE_BYTES))


def test_an_empty_bundle_has_no_rules(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "bundle" / "skills").mkdir(parents=True)
    assert loaded(tmp_path / "bundle") == ()


def test_a_bundle_file_is_returned_as_plain_data(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_text("kind: skill\nnumbers: [1, 2.5]\n", "utf-8")
    assert read_yaml(path) == {"kind": "skill", "numbers": [1, 2.5]}
    with pytest.raises(BundleError, match="cannot be read"):
        read_yaml(tmp_path / "nothing.yaml")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with house rules at its root."""
    root = tmp_path / "repository"
    (root / HOUSE_FOLDER).mkdir(parents=True)
    (root / ".git").mkdir()
    return root


@pytest.mark.parametrize("inside", [".", "a", "a/b/c"])
def test_house_rules_are_found_beside_the_config_and_above_it(repository: Path, inside: str) -> None:
    folder = repository / inside
    folder.mkdir(parents=True, exist_ok=True)
    assert house_folder(folder / "conf.yaml") == repository / HOUSE_FOLDER


def test_the_nearest_house_rules_win(repository: Path) -> None:
    near = repository / "a" / HOUSE_FOLDER
    near.mkdir(parents=True)
    assert house_folder(repository / "a" / "conf.yaml") == near


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_search_ends_at_the_root_of_a_repository(repository: Path, kind: str) -> None:
    """The root of a work tree or a submodule has a file `.git`."""
    inner = repository / "vendored"
    inner.mkdir()
    mark = inner / ".git"
    if kind == "folder":
        mark.mkdir()
    else:
        mark.write_text("gitdir: elsewhere\n", "utf-8")
    assert house_folder(inner / "conf.yaml") is None


def test_a_file_with_the_name_of_the_folder_is_no_folder(repository: Path) -> None:
    inner = repository / "a"
    (inner / HOUSE_FOLDER).parent.mkdir(parents=True)
    (inner / HOUSE_FOLDER).write_text("", "utf-8")
    assert house_folder(inner / "conf.yaml") == repository / HOUSE_FOLDER


def test_house_rules_of_the_working_folder_hold_for_a_config_that_is_no_file(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    assert house_folder(None) == repository / HOUSE_FOLDER
    assert house_folder(Path("conf.yaml")) == repository / HOUSE_FOLDER


def test_house_rules_in_both_yaml_suffixes_are_loaded_and_belong_to_the_house(
    tmp_path: Path, rule_text: RuleText
) -> None:
    (tmp_path / "one.yaml").write_text(rule_text(id="one"), "utf-8")
    (tmp_path / "two.yml").write_text(rule_text(id="two"), "utf-8")
    (tmp_path / "notes.txt").write_text("not a rule", "utf-8")
    rules = load_house_rules(tmp_path, ())
    assert [(rule.id, rule.skill) for rule in rules] == [("one", "house"), ("two", "house")]


def test_an_empty_folder_of_house_rules_is_fine(tmp_path: Path) -> None:
    assert load_house_rules(tmp_path, ()) == ()


def test_an_id_of_the_bundle_is_taken(tmp_path: Path, rule_text: RuleText) -> None:
    path = tmp_path / "no-cp.yaml"
    path.write_text(rule_text(), "utf-8")
    with pytest.raises(BundleError) as caught:
        load_house_rules(tmp_path, {"no-cp"})
    assert str(caught.value) == f"{path}:1: the id 'no-cp' is taken by another rule"


def test_an_id_of_another_house_rule_is_taken(tmp_path: Path, rule_text: RuleText) -> None:
    for name in ("no-cp.yaml", "no-cp.yml"):
        (tmp_path / name).write_text(rule_text(), "utf-8")
    with pytest.raises(BundleError, match=r"no-cp\.yml:1: the id 'no-cp' is taken"):
        load_house_rules(tmp_path, ())


def test_a_house_rule_is_checked_like_the_bundles_own(tmp_path: Path, rule_text: RuleText) -> None:
    path = tmp_path / "no-cp.yaml"
    path.write_text(rule_text(passes=[{"model.context_parallel_size": 4}]), "utf-8")
    with pytest.raises(BundleError) as caught:
        load_house_rules(tmp_path, ())
    assert str(caught.value).startswith(f"{path}:9: example 1 of `passes`")


def test_a_folder_of_house_rules_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    for name in ("file", "nothing"):
        with pytest.raises(InputError, match="is not a folder of rule files"):
            load_house_rules(tmp_path / name, ())


def test_too_many_house_rules_are_refused_before_any_is_read(tmp_path: Path) -> None:
    for number in range(MAX_HOUSE_RULES + 1):
        (tmp_path / f"r{number}.yaml").write_text("[", "utf-8")
    with pytest.raises(InputError, match=f"holds {MAX_HOUSE_RULES + 1} rule files; at most {MAX_HOUSE_RULES}"):
        load_house_rules(tmp_path, ())


def found_by(name: str, *ids: str) -> str:
    rules: list[Any] = [Rule(rule, "first", "f", "t", "error", {}, "m") for rule in ids]
    return find_rule(name, rules).id


def test_a_rule_is_found_by_its_id() -> None:
    assert found_by("b", "a", "b") == "b"


def test_a_misspelt_id_is_told_with_the_nearest_one() -> None:
    with pytest.raises(SkillRunError, match=r"no rule 'no-pc'; did you mean no-cp\?"):
        found_by("no-pc", "no-cp", "other")


def test_an_id_like_no_other_is_told_with_what_to_do() -> None:
    with pytest.raises(SkillRunError, match="no rule 'zzz'; `skill-run skills show NAME`"):
        found_by("zzz", "no-cp")
    with pytest.raises(SkillRunError) as caught:
        found_by("z" * 10_000, "no-cp")
    assert len(str(caught.value)) < 300
