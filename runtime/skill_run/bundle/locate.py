"""Where the bundle's files are: inside the installed package, or in the checkout around it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from skill_run.errors import BundleError


@cache
def bundle_root() -> Path:
    """Return the folder that holds `card.yaml` and `skills/`."""
    package = Path(str(files("skill_run")))
    for candidate in (package / "_bundle", package.parents[1]):
        if (candidate / "card.yaml").is_file() and (candidate / "skills").is_dir():
            return candidate
    raise BundleError(f"{package}: the bundle (card.yaml and skills/) is missing from this installation")
