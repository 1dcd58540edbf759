"""Load every rule of the bundle, and house rules beside a config.

Parsing some hundred small YAML files costs more than judging a config, so the parsed form is kept in the user's cache
folder and used as long as every file's name, size and time of change are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from skill_run import __version__
from skill_run.bundle.locate import bundle_root
from skill_run.bundle.rule import Rule, rule_from_data
from skill_run.config.text import read_text
from skill_run.config.tree import parse_tree, to_plain
from skill_run.errors import BundleError, InputError, SkillRunError

HOUSE_FOLDER: Final = Path(".skill-run") / "rules"
MAX_RULE_BYTES: Final = 64 * 1024
MAX_HOUSE_RULES: Final = 500
MAX_CACHE_BYTES: Final = 32 * 1024 * 1024
# What building a rule from data of another shape raises.
_MALFORMED: Final = (LookupError, TypeError, AttributeError)


def rule_files(root: Path) -> list[Path]:
    """Return the rule files of a bundle, by skill and name."""
    return sorted(root.glob("skills/*/rules/*.yaml"))


def read_yaml(path: Path) -> Any:
    """Return a bundle file as plain data; BundleError with `file:line: sentence` when it is not YAML."""
    try:
        return to_plain(parse_tree(read_text(path, MAX_RULE_BYTES), str(path)))
    except InputError as error:
        raise BundleError(str(error)) from error


def _signature(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256(__version__.encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:32]


def _cache_file(signature: str) -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("skill-run", appauthor=False) / f"rules-{signature}.json"


def _digest(path: Path, body: bytes) -> bytes:
    """Return the first line of a cache file: damage that leaves valid JSON behind does not match it."""
    return hashlib.sha256(path.name.encode() + b"\0" + body).hexdigest().encode()


def _read_cache(path: Path, count: int) -> tuple[Rule, ...] | None:
    """Return the kept rules; None when there are none, or when the file is damaged or no regular file."""
    try:
        # Without waiting: a pipe in its place has no writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return None
            digest, _, body = stream.read(MAX_CACHE_BYTES).partition(b"\n")
        if digest != _digest(path, body):
            return None
        data = json.loads(body)
        return tuple(_built(data)) if isinstance(data, list) and len(data) == count else None
    except (OSError, ValueError, RecursionError, *_MALFORMED):
        return None


def _write_cache(path: Path, data: list[dict[str, Any]]) -> None:
    """Write atomically; a cache that cannot be written is only a slower start."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="rules-", suffix=".tmp")
        try:
            body = json.dumps(data).encode()
            with os.fdopen(handle, "wb") as stream:
                stream.write(_digest(path, body) + b"\n" + body)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        for old in path.parent.glob("rules-*.json"):
            if old != path:
                old.unlink(missing_ok=True)
    except OSError:
        return


@cache
def load_rules(root: Path | None = None) -> tuple[Rule, ...]:
    """Return the rules of the bundle at `root` (the installed one by default)."""
    root = root or bundle_root()
    paths = rule_files(root)
    kept = _cache_file(_signature(paths))
    cached = _read_cache(kept, len(paths))
    if cached is not None:
        return cached
    data = [{"file": str(path.relative_to(root)), "data": read_yaml(path)} for path in paths]
    rules: list[Rule] = []
    for path, entry in zip(paths, data, strict=True):
        try:
            rules += _built([entry])
        except _MALFORMED:
            # The check words it as `file:line: sentence`; that of other rules' examples would load all rules again.
            from skill_run.bundle.check import check_rule_files

            raise BundleError("; ".join(check_rule_files(root, [path.stem])[:1]) or f"{path} is malformed") from None
    _write_cache(kept, data)
    return tuple(rules)


def _built(data: Iterable[dict[str, Any]]) -> Iterable[Rule]:
    for entry in data:
        parts = Path(entry["file"]).parts
        yield rule_from_data(entry["data"], skill=parts[1], file=entry["file"])


def house_folder(config: Path | None) -> Path | None:
    """Return the nearest `.skill-run/rules` beside a config file or above it (up to a `.git` folder or the root)."""
    start = (config.parent if config is not None else Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / HOUSE_FOLDER).is_dir():
            return folder / HOUSE_FOLDER
        if (folder / ".git").exists():
            return None
    return None


def load_house_rules(folder: Path, taken: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules of a team's own folder, checked exactly like the bundle's.

    taken: ids of the bundle's rules, which a house rule must not repeat. Raises BundleError for the first fault.
    """
    from skill_run.bundle.check import check_rule

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder of rule files")
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if len(paths) > MAX_HOUSE_RULES:
        raise InputError(f"{folder} holds {len(paths)} rule files; at most {MAX_HOUSE_RULES} are read")
    used = set(taken)
    rules: list[Rule] = []
    for path in paths:
        rule, faults = check_rule(path, skill="house")
        if faults or rule is None:
            raise BundleError(faults[0] if faults else f"{path}: the rule cannot be read")
        if rule.id in used:
            raise BundleError(f"{path}:1: the id '{rule.id}' is taken by another rule")
        used.add(rule.id)
        rules.append(rule)
    return tuple(rules)


def find_rule(rule_id: str, rules: Iterable[Rule]) -> Rule:
    """Return the rule with this id; SkillRunError that names the nearest id otherwise."""
    by_id = {rule.id: rule for rule in rules}
    if rule_id in by_id:
        return by_id[rule_id]
    import difflib

    near = difflib.get_close_matches(rule_id, by_id, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; `skill-run skills show NAME` lists the rules of a skill"
    raise SkillRunError(f"there is no rule '{rule_id[:80]}'{hint}")
