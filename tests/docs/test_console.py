"""docs/console.py: generated console blocks hold what the commands print now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "console.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_console", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


console = _load()


def _page(*lines: str, kind: str = "console generated") -> str:
    return "\n".join(["before", "", f"```{kind}", *lines, "```", "", "after", ""])


def test_the_output_of_a_command_replaces_what_stood_below_it() -> None:
    page = console.refreshed(_page("$ skill-run --version", "skill-run, version 0.0.0", "old"))
    assert page.startswith("before\n\n```console generated\n$ skill-run --version\nskill-run")
    assert "old" not in page
    assert page.endswith("\n```\n\nafter\n")
    assert console.refreshed(page) == page


def test_a_block_may_run_several_commands_that_share_scratch_files() -> None:
    page = console.refreshed(
        _page(
            "$ skill-run validate --recipe llama32_1b_sft_config -o /tmp/report.txt",
            "$ skill-run validate /tmp/missing.yaml",
        )
    )
    assert "/tmp/missing.yaml" in page
    assert page.count("$ skill-run") == 2


def test_blocks_that_are_not_generated_stay_as_they_are() -> None:
    page = _page("$ skill-run --version", "anything", kind="console")
    assert console.refreshed(page) == page


def test_only_the_tool_itself_is_run() -> None:
    with pytest.raises(SystemExit, match="may only run skill-run"):
        console.refreshed(_page("$ cat /etc/hosts"))
