"""A tree of config data to assignments: nested mappings become dotted paths, `_target_` stays data."""

from __future__ import annotations

from skill_run.config.model import Assignment, Location, Plain
from skill_run.config.tree import Leaf, Mapping, Node, Sequence, to_plain

_INSTANTIATION_KEYS = frozenset({"_target_", "_call_", "_args_", "_name_", "_partial_", "_recursive_", "_convert_"})


def _reference(node: Mapping) -> Plain | None:
    """Return the name behind an enum, dtype or function as the library writes it, None for a config object."""
    name = node.items.get("_name_")
    if isinstance(name, Leaf) and isinstance(name.value, str):
        return name.value
    call = node.items.get("_call_")
    target = node.items.get("_target_")
    if isinstance(call, Leaf) and call.value is False and isinstance(target, Leaf):
        return target.value
    return None


def flatten(root: Mapping, name: str | None) -> list[Assignment]:
    """Return one assignment per leaf, in file order.

    A mapping with `_target_` gives `path._target_`; an enum, dtype or function reference gives its name; a list is one
    value; an empty mapping is the value {}.
    """
    found: list[Assignment] = []

    def walk(path: str, node: Node) -> None:
        where = Location(name, node.line or None, node.column or None)
        if isinstance(node, Leaf):
            found.append(Assignment(path, node.value, where))
        elif isinstance(node, Sequence):
            found.append(Assignment(path, _list(node), where))
        else:
            reference = _reference(node) if "_target_" in node.items else None
            if reference is not None:
                found.append(Assignment(path, reference, where))
                return
            target = node.items.get("_target_")
            if isinstance(target, Leaf):
                found.append(Assignment(f"{path}._target_", target.value, where))
            elif not node.items:
                found.append(Assignment(path, {}, where))
            for key, child in node.items.items():
                if key not in _INSTANTIATION_KEYS:
                    walk(f"{path}.{key}", child)

    for key, child in root.items.items():
        if key not in _INSTANTIATION_KEYS:
            walk(key, child)
    return found


def _list(node: Sequence) -> list[Plain]:
    items: list[Plain] = []
    for item in node.items:
        reference = _reference(item) if isinstance(item, Mapping) and "_target_" in item.items else None
        items.append(reference if reference is not None else to_plain(item))
    return items
