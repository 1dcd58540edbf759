"""The unpacked packages of a release, read by their syntax trees and never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


class Wheel:
    """Finds names in the modules below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        """Return the syntax tree of a module, None when the release does not have it."""
        if module not in self.trees:
            path = self.root.joinpath(*module.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            self.trees[module] = ast.parse(path.read_text("utf-8")) if path.is_file() else None
        return self.trees[module]

    def find(self, module: str, name: str, depth: int = 0) -> tuple[str, ast.stmt] | None:
        """Return the statement that makes a name, and its module; imports of other modules are followed."""
        tree = self.tree(module)
        if tree is None or depth > 8:
            return None
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                return module, node
            if isinstance(node, ast.Assign) and name in {t.id for t in node.targets if isinstance(t, ast.Name)}:
                return module, node
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name == "*" or (alias.asname or alias.name) == name:
                        wanted = name if alias.name == "*" else alias.name
                        found = self.find(self.source(module, node), wanted, depth + 1)
                        if found is not None:
                            return found
        return None

    def source(self, module: str, node: ast.ImportFrom) -> str:
        """Return the module that a `from` import names, also when it is relative."""
        if node.level == 0:
            return node.module or ""
        parts = module.split(".")
        is_package = self.root.joinpath(*parts).is_dir()
        kept = parts[: len(parts) - node.level + is_package]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def keywords(self, module: str, name: str) -> set[str]:
        """Return the names that a class can be made with: its fields, those of its bases, and what __init__ takes."""
        found = self.find(module, name)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return set()
        home, node = found
        names = set(_own_keywords(node))
        for base in node.bases:
            if isinstance(base, ast.Name):
                names |= self.keywords(home, base.id)
        return names


def _own_keywords(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
        elif isinstance(item, ast.FunctionDef) and item.name == "__init__":
            yield from (argument.arg for argument in [*item.args.args, *item.args.kwonlyargs])
