"""Start-up is a budget: what a call imports, and what no source may import or run at all."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import skill_run

PACKAGE = Path(skill_run.__file__).parent
SOURCES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if "_bundle" not in path.parts)
# What is only ever imported by a worker, or only inside the function that needs it.
HEAVY = {
    "torch",
    "megatron",
    "transformer_engine",
    "mcp",
    "pydantic",
    "jsonschema",
    "numpy",
    "rich",
    "hypothesis",
    "pytest",
}
# Folders whose modules work on arrays; what everything else loads must not import them first.
NUMERIC = {"batch", "pack", "plan"}
# What only a worker's interpreter loads.
INSIDE = ("worker", "inside")
ENTRY = ("launch", "entry")

RUN = """
import json, runpy, sys
sys.argv = ["skill-run", *sys.argv[1:]]
try:
    runpy.run_module("skill_run.cli", run_name="__main__")
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""
IMPORT = """
import json, sys
{}
print(json.dumps([0, sorted({{name.partition(".")[0] for name in sys.modules}})]), file=sys.stderr)
"""
CONFIG = """\
model: {context_parallel_size: 2}
dataset: {enable_offline_packing: true, offline_packing_specs: {packed_sequence_size: 4096}}
"""
SCRIPT = """\
from megatron.bridge.recipes.llama import llama32_1b_sft_config

cfg = llama32_1b_sft_config()
cfg.rng.seed = 1
"""
HOUSE_RULE = """\
{"id": "one", "title": "an example of a house rule", "severity": "info", "fires": {"*": "never"}, "message": "no",
 "require": "rng.seed == 1", "evidence": [{"says": "x"}], "fails": [{"rng.seed": 2}], "passes": [{"rng.seed": 1}]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with configs, a warm cache beside them and a house rule that nothing finds by itself."""
    root = tmp_path_factory.mktemp("imports")
    (root / ".git").mkdir()
    (root / "house").mkdir()
    (root / "conf.yaml").write_text(CONFIG, "utf-8")
    (root / "train.py").write_text(SCRIPT, "utf-8")
    (root / "house" / "one.yaml").write_text(HOUSE_RULE, "utf-8")
    assert imported(root, RUN, "validate", "conf.yaml")[0] == 1
    return root


def imported(folder: Path, code: str, *arguments: str, cache: str = "cache") -> tuple[int, set[str]]:
    """Run code in a process of its own; return its exit code and the top-level modules it ended with."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / cache)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    status, modules = json.loads(done.stderr.splitlines()[-1])
    return status, set(modules)


def test_importing_the_package_costs_nothing(folder: Path) -> None:
    _, modules = imported(folder, IMPORT.format("import skill_run"))
    assert modules & {*HEAVY, "yaml", "click", "cel_expr_python", "packaging"} == set()


def test_importing_the_public_function_imports_nothing_heavy(folder: Path) -> None:
    _, modules = imported(folder, IMPORT.format("from skill_run import validate_config"))
    assert modules & {*HEAVY, "click"} == set()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("validate", "conf.yaml"), 1),
        (("validate", "conf.yaml", "--bridge", "0.6.2", "--fix"), 0),
        (("validate", "train.py", "--bridge", "0.6.2"), 0),
        (("validate", "conf.yaml", "--format", "json"), 1),
        (("validate", "conf.yaml", "--format", "sarif"), 1),
        (("validate", "nothing.yaml"), 2),
        (("explain", "global-batch-divisible"), 0),
        (("skills", "list"), 0),
        (("--version",), 0),
        (("verify", "--cp", "0"), 2),
    ],
)
def test_a_call_imports_nothing_heavy(folder: Path, arguments: tuple[str, ...], code: int) -> None:
    status, modules = imported(folder, RUN, *arguments)
    assert status == code
    assert modules & HEAVY == set()


def test_the_first_call_without_a_cache_imports_nothing_heavy_either(folder: Path) -> None:
    status, modules = imported(folder, RUN, "validate", "conf.yaml", cache="cold")
    assert (status, modules & HEAVY) == (1, set())


def test_house_rules_cost_their_schema_check_and_no_more(folder: Path) -> None:
    _, modules = imported(folder, RUN, "validate", "conf.yaml", "--rules", "house")
    assert modules & HEAVY == {"jsonschema"}


def test_the_server_imports_the_protocol(folder: Path) -> None:
    """What the other tests look for is there to be found."""
    _, modules = imported(folder, IMPORT.format("import skill_run.mcp_server"))
    assert {"mcp", "pydantic"} <= modules
    assert modules & {"torch", "megatron", "numpy", "jsonschema"} <= {"jsonschema"}


def test_the_server_on_standard_input_imports_nothing_of_http(folder: Path) -> None:
    # Full names in the place of top-level ones.
    whole = 'import skill_run.mcp_server; sys.modules = {name.replace(".", "/"): None for name in sys.modules}'
    _, modules = imported(folder, IMPORT.format(whole))
    assert "skill_run/mcp_server" in modules
    assert modules & {"skill_run/mcp_http", "skill_run/mcp_door", "skill_run/mcp_wire"} == set()


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@cache
def tree_of(source: Path) -> ast.Module:
    return ast.parse((PACKAGE / source).read_text("utf-8"))


def at_import(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports when it is imported itself: not inside functions, not for type checkers only."""

    def walk(nodes: list[ast.stmt]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from imports_of(node)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from walk(node.orelse)
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])

    yield from walk(tree.body)


def roots(names: Iterator[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_source_imports_only_what_its_place_allows(source: Path) -> None:
    tree = tree_of(source)
    anywhere = roots(imports_of(tree))
    # Files of a job's folder are copied, never imported here.
    only_in_workers = source.parts[:2] in (INSIDE, ENTRY) or source.name == "read_torch.py"
    if not only_in_workers:
        assert anywhere & {"torch", "megatron", "transformer_engine"} == set()
    # The server, its skills and its transport, the tool that answers with an image, and those that tell their progress.
    protocol = {"mcp_server.py", "mcp_skills.py", "mcp_http.py", "mcp_door.py"}
    if source.name not in {
        *protocol,
        "mcp_inspection.py",
        "mcp_verification.py",
        "mcp_jobs.py",
        "mcp_recipes.py",
        "mcp_background.py",
    }:
        assert "mcp" not in anywhere
    # HTTP is loaded for --http only.
    if source.name not in {"mcp_http.py", "mcp_door.py", "mcp_wire.py"}:
        assert anywhere & {"uvicorn", "starlette", "h11"} == set()
    allowed = {"mcp", "pydantic"} if source.name.startswith("mcp_") else set()
    if source.parts[0] in NUMERIC:
        allowed = {"numpy"}
    if only_in_workers:
        allowed = {"numpy", "torch", "megatron"}
    assert roots(at_import(tree)) & HEAVY <= allowed
    # Messages between this process and children that it started are pickles of its own making.
    own_messages = {"child.py", "frames.py", "pool.py"} if source.parent.name == "samples" else set()
    banned = {"marshal", "shelve", "pytest", "hypothesis"} | (set() if source.name in own_messages else {"pickle"})
    assert roots(imports_of(tree)) & banned == set()


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_source_never_runs_text_as_code_or_through_a_shell(source: Path) -> None:
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "import_module")
            # A worker imports its task and Megatron's own modules; so does a training environment.
            assert not called.endswith(".import_module") or source.parts[:2] in (INSIDE, ENTRY), f"line {node.lineno}"
            assert not [key for key in node.keywords if key.arg == "shell"], f"line {node.lineno}"


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_source_is_ascii(source: Path) -> None:
    assert (PACKAGE / source).read_bytes().isascii()
