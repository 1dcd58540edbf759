"""Skills over MCP (the extension io.modelcontextprotocol/skills): every skill with digests of all its files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, PaginatedRequestParams, RequestParams

from skill_run.report.safe import clip, printable

_FRESH_MILLISECONDS: Final = 300_000
_SHOWN: Final = 200


class ListSkillsParams(PaginatedRequestParams):
    """Parameters of skills/list."""


class GetSkillParams(RequestParams):
    """Parameters of skills/get. uri: of the skill's SKILL.md, as skills/list tells it."""

    uri: str


class SkillsOverMcp(Extension):
    """Serves skills/list and skills/get; the files themselves are read as the resources that these name."""

    identifier = "io.modelcontextprotocol/skills"

    def methods(self) -> tuple[MethodBinding, ...]:
        """Return the two methods of the extension."""
        return (
            MethodBinding("skills/list", ListSkillsParams, self._list),
            MethodBinding("skills/get", GetSkillParams, self._get),
        )

    async def _list(self, context: Any, params: ListSkillsParams) -> dict[str, Any]:
        skills = await anyio.to_thread.run_sync(manifests)
        return _complete(skills=list(skills.values()))

    async def _get(self, context: Any, params: GetSkillParams) -> dict[str, Any]:
        skills = await anyio.to_thread.run_sync(manifests)
        found = skills.get(params.uri)
        if found is None:
            message = f"there is no skill '{printable(clip(params.uri, _SHOWN))}'; skills/list names them"
            raise MCPError(code=INVALID_PARAMS, message=message, data={"uri": clip(params.uri, _SHOWN)})
        return _complete(skill=found)


def _complete(**content: Any) -> dict[str, Any]:
    return {"resultType": "complete", **content, "ttlMs": _FRESH_MILLISECONDS, "cacheScope": "public"}


@cache
def skill_files(name: str) -> dict[str, Path]:
    """Return the files of a skill by their path inside it, with `/`; empty for a skill that is not there."""
    from skill_run.bundle.locate import bundle_root

    known = {folder.name: folder for folder in (bundle_root() / "skills").iterdir() if folder.is_dir()}
    folder = known.get(name)
    if folder is None:
        return {}
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path for path in found}


@cache
def manifests() -> dict[str, dict[str, Any]]:
    """Return each skill's manifest by the uri of its SKILL.md: frontmatter, and uri, digest and size of every file."""
    from skill_run.bundle.skills import SKILL_FILE, list_skills, read_frontmatter

    found: dict[str, dict[str, Any]] = {}
    for skill in list_skills():
        uri = f"skill://{skill.name}/{SKILL_FILE}"
        files = skill_files(skill.name)
        found[uri] = {
            "uri": uri,
            "frontmatter": read_frontmatter(files[SKILL_FILE].read_text("utf-8"), uri),
            "resources": [_entry(f"skill://{skill.name}/{inside}", path) for inside, path in files.items()],
        }
    return found


def _entry(uri: str, path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"uri": uri, "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}
