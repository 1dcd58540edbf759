"""Expressions and calls of a Python config script, evaluated as far as they can be told; nothing is executed."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from skill_run.config.model import Location, Unknown
from skill_run.config.overrides import parse_override
from skill_run.config.python_heap import (
    MISSING,
    SEQUENCES,
    Cell,
    Func,
    Heap,
    LocalClass,
    Obj,
    Perhaps,
    Scope,
    reachable,
)
from skill_run.config.python_values import (
    MAX_ITEMS,
    MAX_TEXT,
    PURE,
    Dotted,
    PathText,
    attribute_of_name,
    binary,
    call_pure,
    compare,
    formatted,
    is_class_name,
    is_plain,
    path_attribute,
    text_method,
    unary,
)
from skill_run.errors import InputError

MAX_STEPS: Final = 300_000
MAX_PLAIN_DEPTH: Final = 32

COMMAND_LINE: Final = "comes from the command line"
_BUILTINS: Final = frozenset(dir(builtins))
_LAUNCHES: Final = {"finetune": 2, "pretrain": 1}
# What neither a model's own code nor its Hugging Face config sets: parallel sizes start at one.
_PROVIDER_DEFAULTS: Final = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "sequence_parallel": False,
}
_RECIPE_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "seq_length": ("model.seq_length", "dataset.seq_length"),
    "tensor_model_parallel_size": ("model.tensor_model_parallel_size",),
    "tensor_parallelism": ("model.tensor_model_parallel_size",),
    "pipeline_model_parallel_size": ("model.pipeline_model_parallel_size",),
    "pipeline_parallelism": ("model.pipeline_model_parallel_size",),
    "virtual_pipeline_model_parallel_size": ("model.virtual_pipeline_model_parallel_size",),
    "virtual_pipeline_parallelism": ("model.virtual_pipeline_model_parallel_size",),
    "context_parallel_size": ("model.context_parallel_size",),
    "context_parallelism": ("model.context_parallel_size",),
    "expert_model_parallel_size": ("model.expert_model_parallel_size",),
    "expert_parallelism": ("model.expert_model_parallel_size",),
    "expert_tensor_parallel_size": ("model.expert_tensor_parallel_size",),
    "sequence_parallel": ("model.sequence_parallel",),
    "sequence_parallelism": ("model.sequence_parallel",),
    "global_batch_size": ("train.global_batch_size",),
    "micro_batch_size": ("train.micro_batch_size",),
    "train_iters": ("train.train_iters",),
    "lr": ("optimizer.lr",),
    "min_lr": ("optimizer.min_lr",),
    "lr_warmup_iters": ("scheduler.lr_warmup_iters",),
    "pretrained_checkpoint": ("checkpoint.pretrained_checkpoint",),
}
# Recipe arguments that choose names, places or an adapter of the same shape.
_INERT_RECIPE_ARGUMENTS: Final = {
    *("name", "dir", "hf_path", "peft_scheme", "wandb_project", "wandb_entity", "wandb_exp_name", "save_interval"),
    *("log_interval", "eval_interval", "eval_iters", "seed"),
}
_POSITIONAL: Final = {"PackedSequenceSpecs": ("packed_sequence_size",)}
_HARMLESS: Final = {
    *("print", "pprint", "repr", "str", "format", "id", "type", "isinstance", "issubclass", "hasattr", "len", "bool"),
    *("callable", "asdict", "astuple", "fields", "is_dataclass", "dumps", "dump", "safe_dump", "warn", "print_rank_0"),
    *("print_yaml", "to_yaml", "to_dict", "to_cfg_dict", "validate", "finalize", "get_data_parallel_size", "deepcopy"),
    *("debug", "info", "warning", "error", "exception", "critical", "log", "write", "save_config", "pformat"),
}
_ENDS: Final = {"sys.exit", "exit", "quit", "os._exit"}


class TooMuchWorkError(Exception):
    """The script needs more steps than a reader may take."""


class LostError(Exception):
    """Control flow that cannot be followed; the nearest loop or call treats what it touches as unknown."""


@dataclass(slots=True)
class Arguments:
    """The arguments of a call. vague: `*x` or `**x` of something unknown is among them."""

    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, Cell] = field(default_factory=dict)
    vague: bool = False

    def values(self) -> list[Any]:
        return [*self.positional, *(cell.value for cell in self.keywords.values())]

    def get(self, index: int, name: str, default: Any = MISSING) -> Any:
        """Return one parameter by place or name."""
        if name in self.keywords:
            return self.keywords[name].value
        return self.positional[index] if index < len(self.positional) else default


@dataclass(frozen=True, slots=True)
class Started:
    """A training that the script starts: how much it counts, and its config as it was at that time."""

    rank: int
    snapshot: Any


class Evaluator:
    """Evaluates expressions over a heap. The subclass follows functions and statements."""

    def __init__(
        self, name: str, known_recipes: Callable[[str], bool], take_snapshot: Callable[[Any, Evaluator], Any]
    ) -> None:
        self.name = name
        self.known_recipes = known_recipes
        self.take_snapshot = take_snapshot
        self.heap = Heap()
        self.module = self.heap.scope()
        self.environ = self.heap.new("dict", environ=True)
        self.started: list[Started] = []
        self.steps = MAX_STEPS

    def call_function(self, function: Func, arguments: Arguments, node: ast.AST, own: Obj | None = None) -> Any:
        raise NotImplementedError

    def tick(self, amount: int = 1) -> None:
        self.steps -= amount
        if self.steps < 0:
            raise TooMuchWorkError

    def location(self, node: ast.AST) -> Location:
        line: int | None = getattr(node, "lineno", None)
        return Location(self.name, line, node.col_offset + 1 if line is not None else None)  # type: ignore[attr-defined]

    def opaque(self, reason: str, **meta: Any) -> Obj:
        return self.heap.new("opaque", reason=reason, **meta)

    # What values mean

    def describe(self, value: Any) -> str:
        """Return a clause that says why a value is not known."""
        if isinstance(value, Unknown):
            return value.reason
        if isinstance(value, Perhaps):
            return self.describe(value.part)
        if isinstance(value, Dotted):
            return f"is {value.name}, which is not plain data"
        if not isinstance(value, Obj):
            return "is not plain data"
        path: list[str] = []
        top = value
        while top.kind == "inherited" and "home" in top.meta and len(path) < MAX_PLAIN_DEPTH:
            top, name = top.meta["home"]
            path.append(name)
        where = ".".join(reversed(path))
        if top.kind == "opaque":
            reason = str(top.meta["reason"])
            return f"{reason} ({where})" if reason == COMMAND_LINE and where else reason
        if top.meta.get("recipe"):
            return f"is what the recipe sets for {where}" if where else "is a whole config"
        return f"is the default of {where}" if where else f"is a {top.meta.get('cls') or top.kind}"

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Return a value as plain Python data, Unknown when any part of it is not known."""
        if is_plain(value) or isinstance(value, Unknown):
            return value
        if not isinstance(value, Obj) or value.has_attributes or value.kind == "oneof" or depth > MAX_PLAIN_DEPTH:
            return Unknown(self.describe(value))
        self.tick()
        if value.kind == "dict":
            found: dict[Any, Any] = {}
            if value.meta.get("reason"):
                return Unknown(value.meta["reason"])
            for key, cell in value.fields.items():
                found[key] = self.plain(cell.value, depth + 1)
                if isinstance(found[key], Unknown):
                    return found[key]
            return found
        if value.items is None:
            return value.fields["items"]
        items = [self.plain(item, depth + 1) for item in value.items]
        return next((item for item in items if isinstance(item, Unknown)), items)

    def truth(self, value: Any) -> bool | None:
        """Return whether a value counts as true, None when that is unknown."""
        if is_plain(value):
            return bool(value)
        if isinstance(value, Func | LocalClass):
            return True
        if isinstance(value, Obj):
            if value.kind in SEQUENCES:
                return bool(value.items) if value.items is not None else None
            if value.kind == "dict":
                return True if value.fields else None if value.meta.get("reason") else False
            return True if value.kind == "object" else None
        return None

    def iterate(self, value: Any) -> list[Any] | None:
        """Return what a loop over a value sees, None when that is unknown or too much."""
        if isinstance(value, Obj) and value.kind in SEQUENCES:
            return list(value.items) if value.items is not None else None
        if isinstance(value, Obj) and value.kind == "dict" and not value.meta.get("reason"):
            return list(value.fields)
        if isinstance(value, str) and len(value) <= MAX_ITEMS:
            return list(value)
        return None

    def attribute(self, base: Any, name: str) -> Any:
        """Return `base.name`."""
        if isinstance(base, Perhaps):
            base = base.part
        if isinstance(base, Dotted):
            if base.name == "os" and name == "environ":
                return self.environ
            if base.name == "sys" and name == "argv":
                return self.opaque(COMMAND_LINE)
            return attribute_of_name(base.name, name)
        if isinstance(base, Obj):
            if base.has_attributes:
                return base.fields[name].value if name in base.fields else self.heap.child(base, name)
            return self.opaque(self.describe(base))
        if isinstance(base, LocalClass):
            return base.fields[name].value if name in base.fields else base.methods.get(name, Unknown("is not set"))
        if isinstance(base, PathText):
            return path_attribute(base, name)
        return self.opaque(self.describe(base))

    def set_attribute(self, base: Any, name: str, value: Any, location: Location) -> None:
        """Apply `base.name = value`."""
        if isinstance(base, Perhaps):
            base = base.part
        if not isinstance(base, Obj):
            return
        if base.kind == "oneof":
            for target in base.meta["targets"]:
                self.set_attribute(target, name, Unknown(base.meta["reason"]), location)
        elif base.has_attributes:
            self.heap.put(base, base.fields, name, Cell(value, location))

    def set_path(self, root: Obj, path: str, value: Any, location: Location) -> None:
        """Assign to a dotted path below an object."""
        *sections, leaf = path.split(".")
        target: Any = root
        for section in sections:
            inner = self.attribute(target, section)
            if not isinstance(inner, Obj):
                inner = self.opaque(self.describe(inner)) if inner is not None else self.heap.new("dict")
                self.set_attribute(target, section, inner, location)
            target = inner
        if isinstance(target, Obj) and target.kind == "dict":
            self.heap.put(target, target.fields, leaf, Cell(value, location))
        else:
            self.set_attribute(target, leaf, value, location)

    # Expressions

    def eval(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression."""
        self.tick()
        method = getattr(self, f"_{type(node).__name__}", None)
        return method(node, scope) if method is not None else Unknown("is an expression that is not read")

    def _Constant(self, node: ast.Constant, scope: Scope) -> Any:  # noqa: N802
        value = node.value
        if isinstance(value, int) and value.bit_length() > MAX_TEXT:
            return Unknown("is a number too large to use")
        return value if is_plain(value) else Unknown("is not plain data")

    def _Name(self, node: ast.Name, scope: Scope) -> Any:  # noqa: N802
        found = scope.find(node.id)
        if found is not MISSING:
            return found
        if node.id in _BUILTINS:
            return Dotted(node.id)
        if node.id == "__file__":
            return Unknown("is the path of the script")
        made = self.heap.root("opaque", reason=f"{node.id} is not defined in this file")
        self.module.variables[node.id] = made
        return made

    def _Attribute(self, node: ast.Attribute, scope: Scope) -> Any:  # noqa: N802
        return self.attribute(self.eval(node.value, scope), node.attr)

    def _Subscript(self, node: ast.Subscript, scope: Scope) -> Any:  # noqa: N802
        base = self.eval(node.value, scope)
        if isinstance(base, Dotted):
            return base
        key = self.plain(self.eval(node.slice, scope)) if not isinstance(node.slice, ast.Slice) else MISSING
        if isinstance(base, Perhaps):
            base = base.part
        if isinstance(base, Obj) and base.kind == "dict":
            return self._item(base, key)
        if isinstance(base, Obj) and base.has_attributes:
            return self.attribute(base, key) if isinstance(key, str) else self.opaque(self.describe(base))
        held = base.items if isinstance(base, Obj) else base
        if not isinstance(held, tuple | str):
            return self.opaque(self.describe(base))
        index = key if key is not MISSING else self._slice(node.slice, scope)
        if isinstance(index, Unknown):
            return index
        try:
            found = held[index]
        except (LookupError, TypeError, ValueError):
            return Unknown("is outside its list")
        return self.heap.sequence("list", found) if isinstance(found, tuple) and isinstance(index, slice) else found

    def _item(self, base: Obj, key: Any) -> Any:
        if isinstance(key, Unknown) or not is_plain(key):
            return self.opaque(self.describe(key))
        if key in base.fields:
            return base.fields[key].value
        if base.meta.get("environ"):
            return Unknown(f"comes from the environment variable {key}")
        return Unknown(base.meta.get("reason") or f"is not in its mapping ({key!r})")

    def _slice(self, node: ast.expr, scope: Scope) -> Any:
        assert isinstance(node, ast.Slice)
        ends = [
            self.plain(self.eval(end, scope)) if end is not None else None
            for end in (node.lower, node.upper, node.step)
        ]
        return next((end for end in ends if isinstance(end, Unknown)), slice(*ends))

    def _BinOp(self, node: ast.BinOp, scope: Scope) -> Any:  # noqa: N802
        left, right = self.eval(node.left, scope), self.eval(node.right, scope)
        if is_plain(left) and is_plain(right):
            return binary(type(node.op), left, right)
        return self._combined(node.op, left, right)

    def _combined(self, op: ast.operator, left: Any, right: Any) -> Any:
        """Apply an operator to lists and mappings."""
        sides = [side for side in (left, right) if isinstance(side, Obj)]
        if isinstance(op, ast.Add) and len(sides) == 2 and left.kind == right.kind and left.kind in SEQUENCES:
            if left.items is not None and right.items is not None and len(left.items) + len(right.items) <= MAX_ITEMS:
                return self.heap.sequence(left.kind, left.items + right.items)
        elif isinstance(op, ast.Mult) and len(sides) == 1 and sides[0].items is not None:
            count = right if sides[0] is left else left
            if isinstance(count, int) and len(sides[0].items) * max(count, 0) <= MAX_ITEMS:
                return self.heap.sequence(sides[0].kind, sides[0].items * count)
        elif isinstance(op, ast.BitOr) and len(sides) == 2 and left.kind == right.kind == "dict":
            made = self.heap.new("dict", reason=left.meta.get("reason") or right.meta.get("reason"))
            made.fields = {**left.fields, **right.fields}
            return made
        return Unknown(self.describe(left if not is_plain(left) else right))

    def _UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Any:  # noqa: N802
        value = self.eval(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return Unknown(self.describe(value)) if truth is None else not truth
        return unary(type(node.op), value) if is_plain(value) else Unknown(self.describe(value))

    def _BoolOp(self, node: ast.BoolOp, scope: Scope) -> Any:  # noqa: N802
        stops_at = isinstance(node.op, ast.Or)
        undecided: list[Any] = []
        value: Any = None
        for operand in node.values:
            value = self.eval(operand, scope)
            truth = self.truth(value)
            if truth is None or (undecided and truth is stops_at):
                undecided.append(value)
            if truth is stops_at:
                break
        if not undecided:
            return value
        if value is not undecided[-1]:
            undecided.append(value)
        parts = [item.part if isinstance(item, Perhaps) else item for item in undecided]
        if (
            stops_at
            and isinstance(undecided[0], Perhaps)
            and all(isinstance(p, Obj) and p.has_attributes for p in parts)
        ):
            reason = "is set on one of two parts, whichever this release has"
            return self.heap.new("oneof", targets=parts, reason=reason)
        return Unknown(self.describe(undecided[0]))

    def _Compare(self, node: ast.Compare, scope: Scope) -> Any:  # noqa: N802
        left = self.eval(node.left, scope)
        unknown: Any = None
        for op, operand in zip(node.ops, node.comparators, strict=True):
            right = self.eval(operand, scope)
            result = self._compared(op, left, right)
            if result is False:
                return False
            if result is None:
                unknown = unknown or Unknown(self.describe(left if not is_plain(left) else right))
            left = right
        return unknown if unknown is not None else True

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> bool | None:
        if isinstance(op, ast.Is | ast.IsNot) and (left is None or right is None):
            other = right if left is None else left
            if is_plain(other):
                return (other is None) is isinstance(op, ast.Is)
            decided = isinstance(other, Func | LocalClass) or (isinstance(other, Obj) and self._exists(other))
            return isinstance(op, ast.IsNot) if decided else None
        if isinstance(left, Dotted) and isinstance(right, Dotted) and left == right:
            return isinstance(op, ast.Eq | ast.Is)
        left, right = self.plain(left), self.plain(right)
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return None
        return compare(type(op), left, right)

    def _exists(self, obj: Obj) -> bool:
        return not obj.has_attributes or obj.kind == "object" or bool(obj.meta.get("recipe"))

    def _IfExp(self, node: ast.IfExp, scope: Scope) -> Any:  # noqa: N802
        truth = self.truth(self.eval(node.test, scope))
        if truth is not None:
            return self.eval(node.body if truth else node.orelse, scope)
        first, second = self.eval(node.body, scope), self.eval(node.orelse, scope)
        return self.heap.merge(first, second, f"depends on a condition in line {node.lineno}", {})

    def _JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> Any:  # noqa: N802
        pieces: list[str] = []
        for part in node.values:
            value = self.eval(part, scope)
            if not isinstance(value, str):
                return Unknown(self.describe(value))
            pieces.append(value)
        text = "".join(pieces)
        return text if len(text) <= MAX_TEXT else Unknown("is too large to compute")

    def _FormattedValue(self, node: ast.FormattedValue, scope: Scope) -> Any:  # noqa: N802
        value = self.eval(node.value, scope)
        spec = self.eval(node.format_spec, scope) if node.format_spec is not None else ""
        if not is_plain(value) or not isinstance(spec, str):
            return Unknown(self.describe(value if not is_plain(value) else spec))
        return formatted(value, node.conversion, spec)

    def _elements(self, nodes: Sequence[ast.expr], scope: Scope) -> Any:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.eval(node.value, scope)
                more = self.iterate(value)
                if more is None:
                    return Unknown(self.describe(value))
                items += more
            else:
                items.append(self.eval(node, scope))
        return items

    def _made(self, kind: Any, nodes: Sequence[ast.expr], scope: Scope) -> Obj:
        items = self._elements(nodes, scope)
        made = self.heap.new(kind)
        made.fields["items"] = items if isinstance(items, Unknown) else tuple(items)
        return made

    def _List(self, node: ast.List, scope: Scope) -> Any:  # noqa: N802
        return self._made("list", node.elts, scope)

    def _Tuple(self, node: ast.Tuple, scope: Scope) -> Any:  # noqa: N802
        return self._made("tuple", node.elts, scope)

    def _Set(self, node: ast.Set, scope: Scope) -> Any:  # noqa: N802
        return self._made("set", node.elts, scope)

    def _Dict(self, node: ast.Dict, scope: Scope) -> Any:  # noqa: N802
        made = self.heap.new("dict")
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.eval(value_node, scope)
            if key_node is None:
                self._update(made, value)
                continue
            key = self.plain(self.eval(key_node, scope))
            if isinstance(key, Unknown) or not is_plain(key):
                made.meta["reason"] = self.describe(key)
            else:
                made.fields[key] = Cell(value, self.location(value_node))
        return made

    def _update(self, target: Obj, value: Any) -> None:
        """Apply `target.update(value)`."""
        if isinstance(value, Obj) and value.kind == "dict":
            for key, cell in value.fields.items():
                self.heap.put(target, target.fields, key, cell)
            if not value.meta.get("reason"):
                return
        self.heap.put(target, target.meta, "reason", self.describe(value))

    def _Lambda(self, node: ast.Lambda, scope: Scope) -> Any:  # noqa: N802
        return Func("lambda", node, scope)

    def _NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Any:  # noqa: N802
        value = self.eval(node.value, scope)
        self.heap.put(scope, scope.variables, node.target.id, value)
        return value

    def _Await(self, node: ast.Await, scope: Scope) -> Any:  # noqa: N802
        return self.eval(node.value, scope)

    def _comprehended(self, node: Any, scope: Scope, element: Callable[[Scope], Any]) -> list[Any] | Unknown:
        """Run the loops of a comprehension and collect what `element` returns for each round."""
        found: list[Any] = []
        inner = self.heap.scope(scope)

        def rounds(index: int) -> Unknown | None:
            if index == len(node.generators):
                found.append(element(inner))
                return None if len(found) <= MAX_ITEMS else Unknown("is too large to compute")
            generator = node.generators[index]
            over = self.eval(generator.iter, inner)
            items = self.iterate(over)
            if items is None:
                return Unknown(self.describe(over))
            for item in items:
                self.bind(generator.target, item, inner)
                for test in generator.ifs:
                    value = self.eval(test, inner)
                    truth = self.truth(value)
                    if truth is None:
                        return Unknown(self.describe(value))
                    if not truth:
                        break
                else:
                    problem = rounds(index + 1)
                    if problem is not None:
                        return problem
            return None

        return rounds(0) or found

    def _ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope) -> Any:  # noqa: N802
        items = self._comprehended(node, scope, lambda inner: self.eval(node.elt, inner))
        made = self.heap.new("set" if isinstance(node, ast.SetComp) else "list")
        made.fields["items"] = items if isinstance(items, Unknown) else tuple(items)
        return made

    _SetComp = _ListComp
    _GeneratorExp = _ListComp

    def _DictComp(self, node: ast.DictComp, scope: Scope) -> Any:  # noqa: N802
        pairs = self._comprehended(
            node, scope, lambda inner: (self.plain(self.eval(node.key, inner)), self.eval(node.value, inner))
        )
        made = self.heap.new("dict")
        if isinstance(pairs, Unknown):
            made.meta["reason"] = pairs.reason
            return made
        for key, value in pairs:
            if isinstance(key, Unknown) or not is_plain(key):
                made.meta["reason"] = self.describe(key)
            else:
                made.fields[key] = Cell(value, self.location(node))
        return made

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind a value to the target of an assignment."""
        location = self.location(target)
        if isinstance(target, ast.Name):
            owner = self.module if target.id in scope.globals else scope
            self.heap.put(owner, owner.variables, target.id, value)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.owner_of(target.value, scope), target.attr, value, location)
        elif isinstance(target, ast.Subscript):
            self._set_item(target, value, scope, location)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, Unknown(self.describe(value)), scope)
        elif isinstance(target, ast.Tuple | ast.List):
            items = self.iterate(value)
            starred = any(isinstance(element, ast.Starred) for element in target.elts)
            if items is None or starred or len(items) != len(target.elts):
                items = [self.opaque(self.describe(value)) for _ in target.elts]
            for element, item in zip(target.elts, items, strict=True):
                self.bind(element, item, scope)

    def owner_of(self, node: ast.expr, scope: Scope) -> Any:
        """Return the object that an attribute is set on; one that is unknown becomes an object so that it can be."""
        owner = self.eval(node, scope)
        if isinstance(owner, Unknown) or owner is None:
            owner = self.opaque(self.describe(owner) if owner is not None else "was None before")
            if isinstance(node, ast.Name | ast.Attribute):
                self.bind(node, owner, scope)
        return owner

    def _set_item(self, target: ast.Subscript, value: Any, scope: Scope, location: Location) -> None:
        base = self.eval(target.value, scope)
        if isinstance(base, Perhaps):
            base = base.part
        if not isinstance(base, Obj):
            return
        key = self.plain(self.eval(target.slice, scope)) if not isinstance(target.slice, ast.Slice) else Unknown("")
        known = not isinstance(key, Unknown) and is_plain(key)
        if base.kind == "dict" and known:
            self.heap.put(base, base.fields, key, Cell(value, location))
        elif base.has_attributes and isinstance(key, str):
            self.set_attribute(base, key, value, location)
        elif (
            base.kind in SEQUENCES and isinstance(key, int) and base.items and -len(base.items) <= key < len(base.items)
        ):
            items = list(base.items)
            items[key] = value
            self.heap.put(base, base.fields, "items", tuple(items))
        else:
            self.heap.taint(base, f"is set under a key that is not known in line {location.line}")

    # Calls

    def arguments(self, node: ast.Call, scope: Scope) -> Arguments:
        found = Arguments()
        for item in node.args:
            if isinstance(item, ast.Starred):
                more = self.iterate(self.eval(item.value, scope))
                found.vague = found.vague or more is None
                found.positional += more or []
            else:
                found.positional.append(self.eval(item, scope))
        for keyword in node.keywords:
            value = self.eval(keyword.value, scope)
            if keyword.arg is not None:
                found.keywords[keyword.arg] = Cell(value, self.location(keyword))
            elif isinstance(value, Obj) and value.kind == "dict" and not value.meta.get("reason"):
                found.keywords.update({key: cell for key, cell in value.fields.items() if isinstance(key, str)})
            else:
                found.vague = True
        return found

    def _Call(self, node: ast.Call, scope: Scope) -> Any:  # noqa: N802
        function = node.func
        if isinstance(function, ast.Attribute):
            receiver = self.eval(function.value, scope)
            if isinstance(receiver, Dotted):
                return self.call_named(f"{receiver.name}.{function.attr}", self.arguments(node, scope), node)
            return self.call_method(receiver, function.attr, self.arguments(node, scope), node)
        callee = self.eval(function, scope)
        arguments = self.arguments(node, scope)
        if isinstance(callee, Func):
            return self.call_function(callee, arguments, node)
        if isinstance(callee, LocalClass):
            return self._construct_local(callee, arguments, node)
        if isinstance(callee, Dotted):
            return self.call_named(callee.name, arguments, node)
        if isinstance(function, ast.Name):
            return self.call_named(function.id, arguments, node)
        return self.unfollowed("a function chosen at run time", arguments)

    def call_named(self, name: str, arguments: Arguments, node: ast.Call) -> Any:
        """Call an imported or built-in name."""
        last = name.rpartition(".")[2]
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, arguments, node)
        if name in PURE:
            return self._pure(name, arguments)
        if last in _LAUNCHES:
            return self._launch(last, arguments)
        launched = next((v for v in arguments.positional if isinstance(v, Dotted) and v.last in _LAUNCHES), None)
        if launched is not None and "config" in arguments.keywords:
            return self._launch(launched.last, arguments)
        if self.known_recipes(last):
            return self._recipe(last, arguments, node)
        if last == "ConfigContainer":
            return self._construct(last, arguments, node, root=True)
        if ".ConfigContainer." in f".{name}":
            return self.heap.root("opaque", reason=f"ConfigContainer.{last}() reads another file")
        if last == "process_config_with_overrides":
            return self._overridden(arguments, node)
        if is_class_name(last):
            return self._construct(last, arguments, node)
        return self.unfollowed(last, arguments)

    def unfollowed(self, name: str, arguments: Arguments, receiver: Obj | None = None) -> Obj:
        """Call something that is not in the file: what it was given may have changed."""
        shown = name if " " in name else f"{name}()"
        if name not in _HARMLESS:
            for value in arguments.values():
                for obj in reachable(value):
                    self.heap.taint(obj, f"may be changed by {shown}, which is not in this file")
                if isinstance(value, Obj) and value.kind in ("list", "dict"):
                    self.heap.taint(value, f"may be changed by {shown}, which is not in this file")
            if receiver is not None:
                self.heap.taint(receiver, f"may be changed by {shown}, which is not in this file")
        return self.heap.root("opaque", reason=f"comes from {shown}", call=shown)

    def call_method(self, receiver: Any, method: str, arguments: Arguments, node: ast.Call) -> Any:
        """Call a method of a value."""
        if isinstance(receiver, Perhaps):
            receiver = receiver.part
        if isinstance(receiver, PathText):
            return self._path_method(receiver, method, arguments)
        if isinstance(receiver, str):
            values = [self.plain(value) for value in arguments.positional]
            unknown = next((value for value in values if isinstance(value, Unknown)), None)
            found = unknown or text_method(receiver, method, values)
            return self.heap.sequence("list", found) if isinstance(found, list) else found
        if isinstance(receiver, Obj) and receiver.kind == "dict":
            return self._dict_method(receiver, method, arguments, node)
        if isinstance(receiver, Obj) and receiver.kind in SEQUENCES:
            return self._list_method(receiver, method, arguments)
        if isinstance(receiver, Obj) and receiver.has_attributes:
            return self._object_method(receiver, method, arguments, node)
        if isinstance(receiver, LocalClass) and method in receiver.methods:
            return self.call_function(receiver.methods[method], arguments, node)
        return self.unfollowed(method, arguments)

    def _object_method(self, receiver: Obj, method: str, arguments: Arguments, node: ast.Call) -> Any:
        held = receiver.fields.get(method)
        if held is not None and isinstance(held.value, Func):
            return self.call_function(held.value, arguments, node)
        local = receiver.meta.get("local")
        if local is not None and method in local.methods:
            return self.call_function(local.methods[method], arguments, node, own=receiver)
        if self.known_recipes(method):
            return self._recipe(method, arguments, node)
        if method in ("parse_args", "parse_known_args", "parse_cli_args"):
            return self.opaque(COMMAND_LINE)
        if method == "to_megatron_provider":
            return self._provider(node)
        if method in _HARMLESS:
            return self.opaque(f"comes from {method}()")
        if receiver.kind == "opaque" and method in _LAUNCHES:
            return self._launch(method, arguments)
        return self.unfollowed(method, arguments, receiver)

    def _provider(self, node: ast.Call) -> Obj:
        """A model provider made from a Hugging Face config: its architecture is unknown, parallel sizes start at one."""
        made = self.opaque("comes from the model's Hugging Face config")
        for name, value in _PROVIDER_DEFAULTS.items():
            made.fields[name] = Cell(value, self.location(node))
        return made

    def _path_method(self, path: PathText, method: str, arguments: Arguments) -> Any:
        values = [self.plain(value) for value in arguments.positional]
        if method == "joinpath" and all(isinstance(value, str) for value in values):
            return PathText(call_pure("os.path.join", [path, *values], {}))
        if method in ("as_posix", "resolve", "absolute", "expanduser"):
            return path
        return Unknown(f"comes from the path method {method}()")

    def _dict_method(self, receiver: Obj, method: str, arguments: Arguments, node: ast.Call) -> Any:
        key = self.plain(arguments.get(0, "key", None))
        usable = is_plain(key)
        known = not receiver.meta.get("reason") and not receiver.meta.get("environ")
        if method in ("items", "keys", "values") and known:
            kinds: dict[str, Callable[[Any, Cell], Any]] = {
                "items": lambda name, cell: self.heap.sequence("tuple", (name, cell.value)),
                "keys": lambda name, cell: name,
                "values": lambda name, cell: cell.value,
            }
            return self.heap.sequence("list", [kinds[method](name, cell) for name, cell in receiver.fields.items()])
        if method == "get" and usable:
            if key in receiver.fields:
                return receiver.fields[key].value
            return arguments.get(1, "default", None) if known else self._item(receiver, key)
        if method == "setdefault" and usable:
            if key not in receiver.fields:
                value = arguments.get(1, "default", None)
                self.heap.put(receiver, receiver.fields, key, Cell(value, self.location(node)))
            return receiver.fields[key].value
        if method == "pop" and usable:
            found = receiver.fields[key].value if key in receiver.fields else arguments.get(1, "default", None)
            self.heap.put(receiver, receiver.fields, key, MISSING)
            return found
        if method == "update":
            for value in arguments.positional:
                self._update(receiver, value)
            for name, cell in arguments.keywords.items():
                self.heap.put(receiver, receiver.fields, name, cell)
            return None
        if method == "copy":
            return self.copied(receiver)
        return self.unfollowed(method, arguments, receiver)

    def _list_method(self, receiver: Obj, method: str, arguments: Arguments) -> Any:
        items = receiver.items
        more = self.iterate(arguments.get(0, "", None)) if method == "extend" else arguments.positional[:1]
        if method in ("append", "extend") and items is not None and more is not None and len(items) <= MAX_ITEMS:
            self.heap.put(receiver, receiver.fields, "items", (*items, *more))
            return None
        if method == "copy":
            return self.copied(receiver)
        if method in ("index", "count"):
            return Unknown(f"comes from {method}()")
        self.heap.put(receiver, receiver.fields, "items", Unknown(f"is changed by {method}()"))
        return self.opaque(f"comes from {method}()")

    def _pure(self, name: str, arguments: Arguments) -> Any:
        values = [self.plain(value) for value in arguments.positional]
        keywords = {key: self.plain(cell.value) for key, cell in arguments.keywords.items()}
        for value in [*values, *keywords.values()]:
            if isinstance(value, Unknown):
                return value
        if arguments.vague:
            return Unknown(f"comes from {name}()")
        if any(isinstance(value, str) and len(value) > 400 for value in values) and name in ("int", "float"):
            return Unknown("is a number too large to use")
        found = call_pure(name, values, keywords)
        return found if is_plain(found) or isinstance(found, Unknown) else self.from_plain(found)

    def from_plain(self, value: Any) -> Any:
        """Return plain Python data as values of this reader."""
        if isinstance(value, list | tuple):
            return self.heap.sequence("list", [self.from_plain(item) for item in value])
        if isinstance(value, dict):
            made = self.heap.new("dict")
            made.fields = {key: Cell(self.from_plain(item)) for key, item in value.items()}
            return made
        return value

    def _launch(self, name: str, arguments: Arguments) -> Any:
        config = arguments.get(0, "config", arguments.get(0, "cfg", None))
        if isinstance(config, Dotted):
            config = arguments.get(1, "config", None)
        self.started.append(Started(_LAUNCHES[name], self.take_snapshot(config, self)))
        return Unknown(f"comes from {name}()")

    def _recipe(self, name: str, arguments: Arguments, node: ast.Call) -> Obj:
        root = self.heap.root("inherited", recipe=name, where=self.location(node))
        if arguments.positional or arguments.vague:
            root.meta["vague"] = f"{name}() is called with arguments that cannot be told"
        for keyword, cell in arguments.keywords.items():
            if keyword in _RECIPE_ARGUMENTS:
                for path in _RECIPE_ARGUMENTS[keyword]:
                    self.set_path(root, path, cell.value, cell.location)
            elif keyword == "peft" and (cell.value is None or not is_plain(cell.value)):
                self.set_path(root, "peft", cell.value, cell.location)
            elif keyword not in _INERT_RECIPE_ARGUMENTS and keyword != "peft":
                root.meta["vague"] = f"the argument {keyword}= of {name}() changes more than can be told"
        return root

    def _construct(self, name: str, arguments: Arguments, node: ast.Call, root: bool = False) -> Any:
        if name in ("Path", "PurePath", "PosixPath"):
            values = [self.plain(value) for value in arguments.positional]
            known = all(isinstance(value, str) for value in values)
            return (
                PathText(call_pure("os.path.join", values or ["."], {})) if known else Unknown(self.describe(values[0]))
            )
        for value in arguments.values():
            for obj in reachable(value):
                if obj in self.heap.roots and obj.kind != "opaque":
                    self.heap.taint(obj, f"may be changed by {name}(), which is not in this file")
        make = self.heap.root if root else self.heap.new
        made = make("object", cls=name, where=self.location(node))
        names = _POSITIONAL.get(name, ())
        if arguments.vague or len(arguments.positional) > len(names):
            made.meta.update(kind="opaque", reason=f"{name}() is called with arguments that cannot be told")
        for field_name, value in zip(names, arguments.positional, strict=False):
            made.fields[field_name] = Cell(value, self.location(node))
        made.fields.update(arguments.keywords)
        return made

    def _construct_local(self, cls: LocalClass, arguments: Arguments, node: ast.Call) -> Obj:
        made = self.heap.new("object", cls=cls.name, local=cls, where=self.location(node))
        made.fields.update(cls.fields)
        if "__init__" in cls.methods:
            self.call_function(cls.methods["__init__"], arguments, node, own=made)
            return made
        for name, value in zip(cls.fields, arguments.positional, strict=False):
            made.fields[name] = Cell(value, self.location(node))
        made.fields.update(arguments.keywords)
        if arguments.vague:
            self.heap.taint(made, f"{cls.name}() is called with arguments that cannot be told")
        return made

    def _overridden(self, arguments: Arguments, node: ast.Call) -> Any:
        """process_config_with_overrides(config, config_filepath=..., cli_overrides=...): returns the config, changed."""
        config = arguments.get(0, "config", None)
        if not isinstance(config, Obj) or not config.has_attributes:
            return self.opaque(self.describe(config))
        file = arguments.get(1, "config_filepath", None)
        tokens = self.plain(arguments.get(2, "cli_overrides", None))
        if file is not None or isinstance(tokens, Unknown) or arguments.vague:
            self.heap.taint(config, "may be changed by overrides from a file or the command line")
            return config
        for token in tokens or []:
            try:
                found = parse_override(str(token), self.location(node))
            except InputError:
                self.heap.taint(config, f"is overridden by {str(token)[:40]!r}, which Hydra refuses")
                break
            for item in found:
                value = item.value if isinstance(item.value, Unknown) else self.from_plain(item.value)
                self.set_path(config, item.path, value, item.location)
        return config

    def copied(self, value: Any, seen: dict[int, Any] | None = None) -> Any:
        """Return a deep copy of a value."""
        if not isinstance(value, Obj):
            return value
        seen = seen if seen is not None else {}
        if id(value) in seen:
            return seen[id(value)]
        self.tick()
        made = self.heap.new(value.kind)
        made.meta = dict(value.meta)
        seen[id(value)] = made
        if value in self.heap.roots:
            self.heap.roots.append(made)
        for name, part in value.children.items():
            made.children[name] = self.copied(part, seen)
            made.children[name].meta["home"] = (made, name)
        for key, cell in value.fields.items():
            if isinstance(cell, Cell):
                made.fields[key] = Cell(self.copied(cell.value, seen), cell.location)
            else:
                made.fields[key] = tuple(self.copied(item, seen) for item in cell) if isinstance(cell, tuple) else cell
        return made


def _setattr(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    if len(arguments.positional) != 3:
        return self.unfollowed("setattr", arguments)
    target, name, value = arguments.positional
    if isinstance(name, str):
        self.set_attribute(target, name, value, self.location(node))
    else:
        for obj in reachable(target):
            self.heap.taint(obj, f"is set under a name that is not known in line {node.lineno}")
    return None


def _delattr(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    return _setattr(self, Arguments([*arguments.positional, Unknown("is deleted")]), node)


def _getattr(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    if len(arguments.positional) < 2:
        return self.opaque("comes from getattr()")
    target, name = arguments.positional[:2]
    if not isinstance(name, str):
        return self.opaque(self.describe(name))
    if (
        isinstance(target, Obj)
        and target.has_attributes
        and len(arguments.positional) > 2
        and name not in target.fields
    ):
        return Perhaps(self.heap.child(target, name))
    return self.attribute(target, name)


def _hasattr(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    target, name = (*arguments.positional, None, None)[:2]
    if isinstance(target, Obj) and target.has_attributes and isinstance(name, str) and name in target.fields:
        return True
    return Unknown(f"depends on whether the release has {name}" if isinstance(name, str) else "comes from hasattr()")


def _isinstance(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    target, cls = (*arguments.positional, None, None)[:2]
    if isinstance(target, Obj) and isinstance(cls, Dotted) and target.meta.get("cls") == cls.last:
        return True
    types = {"int": int, "str": str, "float": float, "bool": bool}
    if is_plain(target) and isinstance(cls, Dotted) and cls.name in types:
        return isinstance(target, types[cls.name])
    return Unknown("depends on a type")


def _len(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    value = arguments.get(0, "", None)
    if isinstance(value, str):
        return len(value)
    items = self.iterate(value)
    return len(items) if items is not None else Unknown(self.describe(value))


def _range(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    values = [self.plain(value) for value in arguments.positional]
    made = self.heap.new("list")
    made.fields["items"] = Unknown("is a range that is not known or too long")
    if all(isinstance(value, int) and abs(value) < 2**60 for value in values) and 1 <= len(values) <= 3:
        found = range(*values) if len(values) < 3 or values[2] else range(0)
        if len(found) <= MAX_ITEMS:
            made.fields["items"] = tuple(found)
    return made


def _converted(kind: Any) -> Callable[[Evaluator, Arguments, ast.Call], Any]:
    def convert(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
        made = self.heap.new(kind)
        value = arguments.get(0, "", MISSING)
        items = [] if value is MISSING else self.iterate(value)
        made.fields["items"] = tuple(items) if items is not None else Unknown(self.describe(value))
        return made

    return convert


def _dict(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    made = self.heap.new("dict", reason="comes from dict()" if arguments.vague else None)
    for value in arguments.positional:
        pairs = self.iterate(value) if isinstance(value, Obj) and value.kind in SEQUENCES else None
        if pairs is None:
            self._update(made, value)
            continue
        for pair in pairs:
            items = self.iterate(pair)
            if items is None or len(items) != 2 or not is_plain(items[0]):
                made.meta["reason"] = "comes from dict()"
            else:
                made.fields[items[0]] = Cell(items[1], self.location(node))
    made.fields.update(arguments.keywords)
    return made


def _paired(join: Callable[..., Iterator[Any]]) -> Callable[[Evaluator, Arguments, ast.Call], Any]:
    def pair(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
        made = self.heap.new("list")
        lists = [self.iterate(value) for value in arguments.positional]
        if any(items is None for items in lists) or arguments.keywords:
            made.fields["items"] = Unknown("is a list that is not known")
        else:
            made.fields["items"] = tuple(self.heap.sequence("tuple", pair) for pair in join(*lists))
        return made

    return pair


def _reversed(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    made = _converted("list")(self, arguments, node)
    if made.items is not None:
        made.fields["items"] = made.items[::-1]
    return made


def _sorted(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    made = _converted("list")(self, arguments, node)
    values = self.plain(made)
    try:
        made.fields["items"] = Unknown("is sorted by a key") if arguments.keywords else tuple(sorted(values))
    except TypeError:
        made.fields["items"] = Unknown("cannot be sorted")
    return made


def _replace(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    target = arguments.get(0, "obj", None)
    if not isinstance(target, Obj) or not target.has_attributes:
        return self.opaque("comes from replace()")
    made = self.copied(target)
    made.fields.update(arguments.keywords)
    if arguments.vague:
        self.heap.taint(made, "comes from replace() with arguments that cannot be told")
    return made


def _copy(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    return self.copied(arguments.get(0, "x", None))


def _getenv(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    return self.call_method(self.environ, "get", arguments, node)


def _putenv(self: Evaluator, arguments: Arguments, node: ast.Call) -> Any:
    name, value = (*arguments.positional, None, None)[:2]
    if isinstance(name, str):
        self.heap.put(self.environ, self.environ.fields, name, Cell(value, self.location(node)))
    return None


_Special = Callable[[Evaluator, Arguments, ast.Call], Any]
_SPECIAL: Final[dict[str, _Special]] = {
    "setattr": _setattr,
    "delattr": _delattr,
    "getattr": _getattr,
    "hasattr": _hasattr,
    "isinstance": _isinstance,
    "len": _len,
    "range": _range,
    "list": _converted("list"),
    "tuple": _converted("tuple"),
    "set": _converted("set"),
    "frozenset": _converted("set"),
    "iter": _converted("list"),
    "dict": _dict,
    "zip": _paired(lambda *lists: zip(*lists, strict=False)),
    "enumerate": _paired(lambda items, start=0: enumerate(items, start if isinstance(start, int) else 0)),
    "reversed": _reversed,
    "sorted": _sorted,
    "dataclasses.replace": _replace,
    "replace": _replace,
    "copy.replace": _replace,
    "copy.deepcopy": _copy,
    "copy.copy": _copy,
    "os.getenv": _getenv,
    "os.putenv": _putenv,
}


def ends_the_program(name: str) -> bool:
    """Tell whether calling a name leaves the program."""
    return name in _ENDS
