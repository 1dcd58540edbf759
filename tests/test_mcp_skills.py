"""Skills over MCP: manifests with digests, and files that have them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from skill_run.bundle.locate import bundle_root
from skill_run.mcp_server import create_server
from skill_run.mcp_skills import GetSkillParams, ListSkillsParams, SkillsOverMcp, manifests, skill_files

pytestmark = pytest.mark.anyio
SKILL = "packed-sequences-long-context"
URI = f"skill://{SKILL}/SKILL.md"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_every_skill_of_the_bundle_has_a_manifest_with_all_its_files() -> None:
    folders = {path.parent.name: path.parent for path in bundle_root().glob("skills/*/SKILL.md")}
    assert {uri.split("/")[2] for uri in manifests()} == set(folders)
    for manifest in manifests().values():
        folder = folders[manifest["uri"].split("/")[2]]
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert {entry["uri"].split("/", 3)[3] for entry in manifest["resources"]} == there
        assert manifest["frontmatter"]["name"] == folder.name
        assert len(there) <= 512


async def _read(mode: Any) -> None:
    async with Client(create_server([Path.cwd()]), mode=mode) as client:
        for entry in manifests()[URI]["resources"][:12]:
            content = (await client.read_resource(entry["uri"])).contents[0]
            text = content.text.encode()  # type: ignore[union-attr]
            assert entry["digest"] == f"sha256:{hashlib.sha256(text).hexdigest()}"
            assert entry["size"] == len(text)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_listed_file_reads_as_the_bytes_that_its_digest_is_of(mode: str) -> None:
    await _read(mode)


async def test_a_skill_is_listed_and_got_by_the_uri_of_its_text() -> None:
    methods = {binding.method: binding.handler for binding in SkillsOverMcp().methods()}
    listed: Any = await methods["skills/list"](None, ListSkillsParams())  # type: ignore[arg-type]
    assert URI in [skill["uri"] for skill in listed["skills"]]
    got: Any = await methods["skills/get"](None, GetSkillParams(uri=URI))  # type: ignore[arg-type]
    assert got["skill"] == manifests()[URI]


@pytest.mark.parametrize("uri", ["skill://nothing/SKILL.md", "", "../" * 200])
async def test_an_unknown_skill_is_refused_in_one_sentence(uri: str) -> None:
    methods = {binding.method: binding.handler for binding in SkillsOverMcp().methods()}
    with pytest.raises(MCPError, match="there is no skill"):
        await methods["skills/get"](None, GetSkillParams(uri=uri))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["..", "", "nothing", "../skills"])
def test_a_name_that_is_no_skill_has_no_files(name: str) -> None:
    assert skill_files(name) == {}
