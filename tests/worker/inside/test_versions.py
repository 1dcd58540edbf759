"""The CPU layer takes the releases that it was proved on, read from their files, and refuses others in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.versions import KNOWN, Releases, found_releases, require_known_releases


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages are imported from before all others."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    # The namespace package remembers the folder that it was found in.
    sys.modules.pop("megatron", None)


def put(folder: Path, package: str, version: str) -> None:
    inner = folder / "megatron" / package
    inner.mkdir(parents=True)
    (inner / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    major, minor, patch = version.split(".")
    (inner / "package_info.py").write_text(f'MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = ""\n')


@pytest.mark.parametrize("pair", KNOWN, ids=str)
def test_known_pairs_are_found_without_importing_them(install: Path, pair: Releases) -> None:
    put(install, "core", pair.core)
    if pair.bridge is not None:
        put(install, "bridge", pair.bridge)
    assert require_known_releases() == pair


def test_an_unknown_pair_is_refused_with_the_known_ones(install: Path) -> None:
    put(install, "core", "0.15.0")
    assert found_releases() == Releases("0.15.0", None)
    with pytest.raises(
        RefusedError, match=r"does not know megatron-core 0\.15\.0 with no megatron-bridge; it was proved on"
    ):
        require_known_releases()


def test_an_environment_without_megatron_is_told(install: Path) -> None:
    with pytest.raises(RefusedError, match="has no megatron-core") as caught:
        found_releases()
    assert caught.value.kind == "missing"
