"""The MCP server under the MCP Inspector's command line, a client that others wrote."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import skill_run

PACKAGES = str(Path(skill_run.__file__).parents[1])
CONNECT_MILLISECONDS = "60000"
TOOL_IS_ERROR = 5


def load_installer() -> Any:
    path = Path(__file__).with_name("install_inspector.py")
    spec = importlib.util.spec_from_file_location("install_inspector", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def inspector() -> list[str]:
    installer = load_installer()
    try:
        command: list[str] = installer.install()
    except installer.CannotInstallError as error:
        pytest.skip(f"the MCP Inspector cannot be installed: {error}")
    return command


@pytest.fixture
def inspect(inspector: list[str], tmp_path: Path) -> Any:
    """Return a function that runs the inspector on a server with `tmp_path` as its root, in a home of its own."""
    home = tmp_path / "home"
    home.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.yaml").write_text("model:\n  context_parallel_size: 3\n", "utf-8")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        server = [sys.executable, "-m", "skill_run.mcp_server", "--root", str(root)]
        return subprocess.run(
            [
                *inspector,
                "-e",
                f"PYTHONPATH={PACKAGES}",
                *server,
                "--connect-timeout",
                CONNECT_MILLISECONDS,
                *arguments,
            ],
            capture_output=True,
            text=True,
            env={"HOME": str(home), "PATH": os.environ.get("PATH", "")},
            check=False,
        )

    return run


def test_the_tool_schemas_are_portable(inspect: Any) -> None:
    done = inspect("--method", "tools/list", "--strict")
    assert done.returncode == 0, done.stderr
    assert "arning" not in done.stderr
    assert {"validate_config", "inspect_batch", "explain_rule", "list_skills"} <= {
        tool["name"] for tool in json.loads(done.stdout)["tools"]
    }


def test_a_call_answers_with_structured_content(inspect: Any) -> None:
    arguments = ["config_path=a.yaml", "world_size=8"]
    done = inspect("--method", "tools/call", "--tool-name", "validate_config", "--tool-arg", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["structuredContent"]
    assert "world-size-divisible" in [finding["rule"] for finding in report["findings"]]


def test_an_inspected_batch_answers_with_structured_content_and_a_picture(inspect: Any) -> None:
    arguments = ['batch={"tokens": [[1, 1, 1, 1, 1, 1, 1, 1]], "cu_seqlens_q": [[0, 3, 8]]}', "cp=2"]
    done = inspect("--method", "tools/call", "--tool-name", "inspect_batch", "--tool-arg", *arguments)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "batch-boundaries-cover-cp" in [finding["rule"] for finding in result["structuredContent"]["findings"]]
    assert len(result["content"]) == 2


def test_a_refused_call_is_an_error_of_the_tool(inspect: Any) -> None:
    done = inspect("--method", "tools/call", "--tool-name", "validate_config", "--tool-arg", "config_path=../../a.yaml")
    assert done.returncode == TOOL_IS_ERROR, done.stderr
    assert "outside the folders that may be read" in done.stdout


def test_resources_and_prompts_are_listed_and_read(inspect: Any) -> None:
    listed = inspect("--method", "resources/list")
    assert listed.returncode == 0, listed.stderr
    assert "rule://world-size-divisible" in [resource["uri"] for resource in json.loads(listed.stdout)["resources"]]
    read = inspect("--method", "resources/read", "--uri", "rule://world-size-divisible")
    assert read.returncode == 0, read.stderr
    assert "id: world-size-divisible" in read.stdout
    arguments = ["config_path=a.yaml", "world_size=8"]
    prompt = inspect("--method", "prompts/get", "--prompt-name", "check_before_launch", "--prompt-args", *arguments)
    assert prompt.returncode == 0, prompt.stderr
    assert "a.yaml" in prompt.stdout


def test_every_skill_verifies_with_the_digest_of_each_file(inspect: Any) -> None:
    done = inspect("--method", "skills/list", "--verify", "--require-digests", "--protocol-era", "modern")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no conformance errors" in done.stdout + done.stderr
