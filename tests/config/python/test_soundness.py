"""The reader against Python itself: generated scripts are run with every unknown drawn at random.

Whatever the reader calls known must be what the run gave, and whatever the run set must be known or unknown to it.
"""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from typing import Any

import pytest

from skill_run.config.model import Source, Unknown
from skill_run.config.python.reader import read_python
from skill_run.errors import InputError

SECTIONS = ("model", "dataset", "train")
FIELDS = "abcd"
VARIABLES = "xyz"
PROLOGUE = """
from mylib import flag, again, some, outside, may_fail
from dataclasses import replace
from contextlib import suppress
class Held:
    v = 3
def pure(v):
    return v + 1
def branch(v):
    if v > 2:
        return v * 2
    if flag():
        return 7
    return v
def put(part, v):
    part.a = v
    if v > 3:
        return
    part.b = v + 1
def loop(part, v=1):
    for i in range(2):
        if flag():
            continue
        part.c = v
    part.d = i
"""
LOCALS = "x, y, z, part, made, items, table = 1, 2, 3, cfg.train, Part(c=3), [1, 2], {'a': 1}"


class Node:
    """A config object that has every attribute: what is not set is a part of its own."""

    def __init__(self, cls: str | None = None, **values: Any) -> None:
        self.__dict__.update(cls=cls, values=values, parts={})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.values[name] if name in self.values else self.parts.setdefault(name, Node())

    def __setattr__(self, name: str, value: Any) -> None:
        self.values[name] = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        made = Node(self.cls)
        memo[id(self)] = made
        made.values.update(copy.deepcopy(self.values, memo))
        made.parts.update(copy.deepcopy(self.parts, memo))
        return made

    def leaves(self, path: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in [*self.values.items(), *((k, v) for k, v in self.parts.items() if k not in self.values)]:
            where = f"{path}{name}"
            if isinstance(value, Node):
                found.update({f"{where}._target_": value.cls} if value.cls else {})
                found.update(value.leaves(f"{where}."))
            else:
                found[where] = list(value) if isinstance(value, tuple) else value
        return found


class Writer:
    """Writes one random script."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.left = 40

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def field(self) -> str:
        section, name = self.pick(*SECTIONS), self.pick(*FIELDS)
        return self.pick(f"cfg.{section}.{name}", f"cfg.{section}.{name}", f"part.{name}", f"cfg.{section}.sub.{name}")

    def value(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.5:
            return self.pick(*"01234", *VARIABLES, *VARIABLES)
        a, b = self.value(depth + 1), self.value(depth + 1)
        return self.pick(
            f"({a} + {b})",
            f"({a} * {b})",
            f"max({a}, {b})",
            f"({a} if {self.test(2)} else {b})",
            f"({a} or {b})",
            f"pure({a})",
            f"branch({a})",
            f"table.get('{self.pick(*FIELDS)}', {a})",
            "len(items)",
            "Held.v",
            f"(y := {a})",
            f"(lambda q={a}: q + 1)()",
        )

    def test(self, depth: int = 0) -> str:
        if depth > 1 or self.random.random() < 0.6:
            return self.pick("flag()", "flag()", "True", "False", f"{self.value(3)} > {self.value(3)}")
        one, two = self.test(depth + 1), self.test(depth + 1)
        return self.pick(f"not {one}", f"({one} and {two})", f"({one} or {two})")

    def line(self) -> str:
        section, name, value = self.pick(*SECTIONS), self.pick(*FIELDS), self.value()
        return self.pick(
            *[f"{self.field()} = {value}"] * 4,
            f"{self.pick(*VARIABLES)} = {value}",
            f"{self.pick(*VARIABLES)} += {value}",
            f"part = cfg.{section}",
            f"part = cfg.{section} if {self.test()} else cfg.{self.pick(*SECTIONS)}",
            f"part = getattr(cfg, '{section}', None) or cfg.train",
            f"cfg.{section} = Part({name}={value}, sub=Inner({name}={self.value()}))",
            f"cfg.{section} = made",
            f"made.{name} = {value}",
            "made = Part(a=1)",
            f"made = replace(made, {name}={value})",
            f"cfg.model = replace(cfg.model, {name}={value})",
            f"setattr(cfg.{section}, '{name}', {value})",
            f"{self.test()} and setattr(part, '{name}', {value})",
            f"put({self.pick('part', 'made', f'cfg.{section}')}, {value})",
            f"loop({self.pick('part', 'made', f'cfg.{section}')}, v={value})",
            f"outside({self.pick('part', 'made', 'items', 'table', f'cfg.{section}')})",
            f"items.append({value})",
            f"table['{name}'] = {value}",
            f"Held.v = {value}",
            f"[cfg.{section}, part, made][{self.pick('0', '1', '2')}].{name} = {value}",
            f"cfg.{section}.all = [{value}, 1]",
        )

    def block(self, depth: int, function: bool, loop: bool) -> list[str]:
        return [line for _ in range(self.random.randint(1, 3)) for line in self.statement(depth, function, loop)]

    def statement(self, depth: int, function: bool, loop: bool) -> list[str]:
        self.left -= 1
        pad = "    " * depth
        kind = self.random.random()
        if kind < 0.55 or depth > 4 or self.left < 0:
            return [pad + self.line()]
        if kind < 0.6:
            ends = [*(["return cfg"] if function else []), *(["break", "continue"] if loop else []), "pass"]
            return [pad + self.pick(*ends)]
        inner = self.block(depth + 1, function, loop)
        if kind < 0.8:
            other = [f"{pad}else:", *self.block(depth + 1, function, loop)] if self.random.random() < 0.5 else []
            return [f"{pad}if {self.test()}:", *inner, *other]
        if kind < 0.88:
            over = self.pick("[1, 2]", "range(3)", "some()", "items")
            return [f"{pad}for {self.pick(*VARIABLES)} in {over}:", *self.block(depth + 1, function, True)]
        if kind < 0.91:
            return [f"{pad}while again():", *self.block(depth + 1, function, True)]
        fails = f"{pad}    may_fail()"
        if kind < 0.95:
            return [f"{pad}with suppress(ValueError):", *inner, fails, *self.block(depth + 1, function, loop)]
        return [f"{pad}try:", *inner, fails, f"{pad}except ValueError:", *self.block(depth + 1, function, loop)]

    def script(self) -> str:
        build = ["def build():", "    cfg = recipe()", f"    {LOCALS}"]
        for _ in range(self.random.randint(3, 8)):
            build += self.statement(1, True, False)
        main = ["    return cfg", "cfg = build()", LOCALS]
        for _ in range(self.random.randint(2, 5)):
            main += self.statement(0, False, False)
        return "\n".join([PROLOGUE, *build, *main, "finetune(cfg, None)", ""])


def run(script: str, seed: int) -> dict[str, Any] | None:
    """Run a script with its unknowns drawn at random; None when it fails, as a script may."""
    draw = random.Random(seed)
    left = [200]
    result: list[dict[str, Any]] = []

    def again() -> bool:
        left[0] -= 1
        return left[0] > 0 and draw.random() < 0.5

    def outside(value: Any) -> None:
        if draw.random() < 0.4:
            return
        if isinstance(value, Node):
            setattr(draw.choice([value, value.sub]), draw.choice(FIELDS), draw.randint(50, 60))
        elif isinstance(value, dict):
            value[draw.choice(FIELDS)] = draw.randint(70, 80)
        else:
            value.append(90)

    def may_fail() -> None:
        if draw.random() < 0.4:
            raise ValueError

    def replace(value: Node, **changes: Any) -> Node:
        made = copy.deepcopy(value)
        made.values.update(changes)
        return made

    names = {
        "flag": lambda: draw.random() < 0.5,
        "again": again,
        "some": lambda: list(range(draw.randint(0, 3))),
        "outside": outside,
        "may_fail": may_fail,
        "replace": replace,
        "suppress": suppress,
        "recipe": Node,
        "Part": lambda **values: Node("Part", **values),
        "Inner": lambda **values: Node("Inner", **values),
        "finetune": lambda cfg, step: result.append(cfg.leaves()),
    }
    body = "\n".join(line for line in script.splitlines() if not line.startswith("from "))
    try:
        exec(compile(body, "script", "exec"), names)
    except (NameError, TypeError, ValueError, AttributeError, IndexError):
        return None
    return result[0]


def view(source: Source) -> tuple[dict[str, Any], set[str]]:
    """Return the known values by path and the paths at or below which something is unknown."""
    known: dict[str, Any] = {}
    unknown: set[str] = set()
    for assignment in source.assignments:
        path, value = assignment.path, assignment.value
        below = {p for p in known if p == path or p.startswith(path + ".")}
        if isinstance(value, Unknown | dict):
            known = {p: v for p, v in known.items() if p not in below}
        if isinstance(value, Unknown):
            unknown.add(path)
        elif isinstance(value, dict):
            unknown = {p for p in unknown if p != path and not p.startswith(path + ".")}
            known[f"{path}._target_"] = value["_target_"]
        else:
            known[path] = value
    return known, unknown


def covered(path: str, unknown: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:end]) in unknown for end in range(1, len(parts) + 1))


@pytest.mark.parametrize("seed", range(90))
def test_reader_never_claims_what_a_run_contradicts(seed: int) -> None:
    script = Writer(seed).script()
    try:
        source = read_python(script, name="job.py", known_recipes="recipe".__eq__)
    except InputError:
        return
    known, unknown = view(source)
    for draw in range(4):
        leaves = run(script, 1000 * seed + draw)
        if leaves is None:
            continue
        wrong = {p: (v, leaves.get(p)) for p, v in known.items() if p not in leaves or leaves[p] != v}
        missed = {p: v for p, v in leaves.items() if p not in known and not covered(p, unknown)}
        assert not wrong, f"known but not so: {wrong}\n{script}"
        assert not missed or source.base_unknown, f"set but not seen: {missed}\n{script}"


def test_generated_scripts_leave_enough_known_to_mean_something() -> None:
    views = [view(read_python(Writer(seed).script(), name="j", known_recipes="recipe".__eq__)) for seed in range(30)]
    assert sum(len(known) for known, _ in views) > 50
    assert sum(len(unknown) for _, unknown in views) > 50
