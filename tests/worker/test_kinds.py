"""The locks that are shipped: every file pinned and hashed, and nothing that names a place."""

from __future__ import annotations

import re

import pytest

from skill_run.errors import InputError
from skill_run.worker.kinds import LOCKS, Pin, find_kind, list_kinds, parse_lock

FILES = sorted(LOCKS.glob("*.lock"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_lock_pins_each_package_once_by_hash_and_names_no_place(path: object) -> None:
    text = (LOCKS / str(path)).read_text("utf-8")
    pins = parse_lock(text)
    keys = [pin.key for pin in pins]
    assert len(keys) == len(set(keys))
    assert {"pip", "torch", "megatron-core"} <= set(keys)
    assert all(pin.size > 1000 for pin in pins)
    assert re.search(r"://|file:|/", text.replace("scripts/lock_workers.py", "")) is None


def test_every_lock_belongs_to_a_kind_and_says_what_it_costs() -> None:
    kinds = list_kinds()
    assert list(kinds) == ["core-0.16.1", "cpu-0.6.2"]
    assert sum(len(kind.locks) for kind in kinds.values()) == len(FILES)
    for kind in kinds.values():
        for lock in kind.locks.values():
            assert lock.disk_mb > lock.download_mb > 200
            assert lock.minutes >= 1


@pytest.mark.parametrize(
    ("kind", "build", "versions"),
    [
        ("core-0.16.1", "cpu", {"torch": "2.13.0+cpu", "megatron-core": "0.16.1"}),
        ("core-0.16.1", "cuda-build", {"torch": "2.13.0", "megatron-core": "0.16.1"}),
        ("cpu-0.6.2", "cuda-build", {"megatron-core": "0.19.2", "megatron-bridge": "0.6.2"}),
    ],
)
def test_a_kind_holds_the_releases_that_its_name_says(kind: str, build: str, versions: dict[str, str]) -> None:
    found = {pin.key: pin.version for pin in find_kind(kind).locks[build].pins}
    assert versions.items() <= found.items()


def test_the_default_is_the_one_that_is_quick_to_set_up() -> None:
    kinds = list_kinds().values()
    assert find_kind(None).name == min(kinds, key=lambda kind: next(iter(kind.locks.values())).download_mb).name


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match=r"no kind of worker 'x'; there are core-0\.16\.1 and cpu-0\.6\.2"):
        find_kind("x")


def test_a_line_that_is_no_pin_is_refused() -> None:
    good = f"a==1 --hash=sha256:{'0' * 64}  # bytes=5 source"
    assert parse_lock(f"# a comment\n\n{good}\n") == (Pin("a", "1", "0" * 64, 5, source=True),)
    for line in ("a==1", "a>=1 --hash=sha256:00", "--index-url x", good.replace("sha256", "md5")):
        with pytest.raises(ValueError, match="not a pin"):
            parse_lock(line)


def test_the_digest_follows_the_pins_and_not_their_order() -> None:
    lock = find_kind(None).locks["cpu"]
    turned = type(lock)(lock.build, lock.pins[::-1], lock.disk_mb, lock.minutes)
    fewer = type(lock)(lock.build, lock.pins[1:], lock.disk_mb, lock.minutes)
    assert lock.digest == turned.digest != fewer.digest
