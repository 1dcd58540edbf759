"""Make the helpers of this folder importable by its tests, and give each test folders of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from skill_run.worker.environments import FOLDER_ENVIRONMENT

sys.path.insert(0, str(Path(__file__).parent))

from tiny_packages import Packages


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for workers of one test."""
    folder = tmp_path / "workers"
    monkeypatch.setenv(FOLDER_ENVIRONMENT, str(folder))
    return folder


@pytest.fixture
def alive(tmp_path: Path) -> Path:
    """A pipe whose end shows that every process that held it is gone."""
    path = tmp_path / "alive"
    os.mkfifo(path)
    return path


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    """Return an empty folder of package files."""
    return Packages(tmp_path / "packages")
