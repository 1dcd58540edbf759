"""Calls in a Python config script: recipes, config classes, known functions, and what is not followed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from skill_run.config.model import CONDITION, Unknown
from skill_run.config.overrides import parse_override
from skill_run.config.python.expressions import Evaluator
from skill_run.config.python.heap import (
    MISSING,
    SEQUENCES,
    Cell,
    Func,
    LocalClass,
    Obj,
    OneOf,
    Scope,
    targets_of,
)
from skill_run.config.python.objects import COMMAND_LINE, SIZE_OF_STEP, EndedError
from skill_run.config.python.snapshot import Snapshot, take_snapshot
from skill_run.config.python.values import (
    MAX_ITEMS,
    PURE,
    TEXT_METHODS,
    Dotted,
    PathText,
    call_pure,
    is_class_name,
    is_plain,
    text_method,
    weight,
)
from skill_run.errors import InputError

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
    *("log_interval", "seed"),
}
_POSITIONAL: Final = {"PackedSequenceSpecs": ("packed_sequence_size",)}
_HARMLESS: Final = {
    *("print", "pprint", "repr", "str", "format", "id", "type", "isinstance", "issubclass", "hasattr", "len", "bool"),
    *("callable", "asdict", "astuple", "fields", "is_dataclass", "dumps", "dump", "safe_dump", "warn", "print_rank_0"),
    *("print_yaml", "to_yaml", "to_dict", "to_cfg_dict", "validate", "finalize", "get_data_parallel_size", "deepcopy"),
    *("provide_distributed_model", "initialize_model_parallel", "set_device", "init_process_group"),
    *("debug", "info", "warning", "error", "exception", "critical", "log", "write", "save_config", "pformat"),
}
_LAST_OF_PURE: Final = {name.rpartition(".")[2] for name in PURE} | {"len", "range", "list", "tuple", "set", "dict"}
_REACHES_ALL: Final = {"exec", "eval", "globals", "locals"}
_ENDS: Final = {"sys.exit", "exit", "quit", "os._exit"}


def is_harmless(name: str) -> bool:
    """Tell whether calling a name, wherever it comes from, changes nothing it is given."""
    return name in _HARMLESS or name in _LAST_OF_PURE or name in TEXT_METHODS


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
    snapshot: Snapshot


Special = Callable[["Caller", Arguments, ast.Call], Any]


class Caller(Evaluator):
    """Follows calls.

    known_recipes: tells whether a function name is a recipe of some release. special: how to call library functions.
    """

    def __init__(self, name: str, known_recipes: Callable[[str], bool], special: Mapping[str, Special]) -> None:
        super().__init__(name)
        self.known_recipes = known_recipes
        self.special = special
        self.started: list[Started] = []

    def poison(self, reason: str) -> None:
        """Make every config unknown."""
        self.tick(len(self.heap.roots))
        for root in list(self.heap.roots.values()):
            self.heap.taint(root, reason)

    def call_function(self, function: Func, arguments: Arguments, node: ast.AST, own: Obj | None = None) -> Any:
        raise NotImplementedError

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
                self.charge(len(value.fields))
                found.keywords.update({key: cell for key, cell in value.fields.items() if isinstance(key, str)})
            else:
                found.vague = True
        return found

    def _call(self, node: ast.Call, scope: Scope) -> Any:
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
        if name in _ENDS:
            raise EndedError
        if name in _REACHES_ALL:
            self.poison(f"may be changed by {name}()")
            return self.opaque(f"comes from {name}()")
        special = self.special.get(name)
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

    def unfollowed(self, name: str, arguments: Arguments, receiver: Any = None) -> Obj:
        """Call something that is not in the file: what it was given may have changed."""
        shown = name if " " in name else f"{name}()"
        if name not in _HARMLESS:
            reason = f"may be changed by {shown}, which is not in this file"
            for value in arguments.values():
                for obj in self.reached(value):
                    self.heap.taint(obj, reason)
            if receiver is not None:
                self.heap.taint(receiver, reason)
        return self.heap.root("opaque", reason=f"comes from {shown}", call=shown)

    def call_method(self, receiver: Any, method: str, arguments: Arguments, node: ast.Call) -> Any:
        """Call a method of a value."""
        if isinstance(receiver, OneOf):
            return (
                self.opaque(f"comes from {method}()")
                if method in _HARMLESS
                else self.unfollowed(method, arguments, receiver)
            )
        if isinstance(receiver, PathText):
            return self._path_method(receiver, method, arguments)
        if isinstance(receiver, str):
            values = [self.plain(value) for value in arguments.positional]
            unknown = next((value for value in values if isinstance(value, Unknown)), None)
            if unknown is not None or not self.affords(receiver, values):
                return unknown or Unknown("is too large to compute")
            found = text_method(receiver, method, values)
            return self.from_plain(found)
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
        """A model provider made from a Hugging Face config: unknown but for its parallel sizes, which start at one."""
        made = self.opaque("comes from the model's Hugging Face config")
        for name, value in _PROVIDER_DEFAULTS.items():
            made.fields[name] = Cell(value, self.location(node))
        return made

    def _path_method(self, path: PathText, method: str, arguments: Arguments) -> Any:
        values = [self.plain(value) for value in arguments.positional]
        if method == "joinpath" and all(isinstance(value, str) for value in values) and self.affords(path, values):
            return PathText(call_pure("os.path.join", [path, *values], {}))
        if method in ("as_posix", "resolve", "absolute", "expanduser"):
            return path
        return Unknown(f"comes from the path method {method}()")

    def _dict_method(self, receiver: Obj, method: str, arguments: Arguments, node: ast.Call) -> Any:
        key = self.plain(arguments.get(0, "key", None))
        usable = is_plain(key)
        known = not receiver.meta.get("reason") and not receiver.meta.get("environ")
        if method in ("items", "keys", "values") and known:
            self.tick(len(receiver.fields))
            kinds: dict[str, Callable[[Any, Cell], Any]] = {
                "items": lambda name, cell: self.heap.sequence("tuple", (name, cell.value)),
                "keys": lambda name, cell: name,
                "values": lambda name, cell: cell.value,
            }
            return self.heap.sequence("list", [kinds[method](name, cell) for name, cell in receiver.fields.items()])
        if method == "get" and usable:
            if key in receiver.fields:
                return receiver.fields[key].value
            return arguments.get(1, "default", None) if known else self._entry(receiver, key)
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
            self.charge(len(items) // SIZE_OF_STEP)
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
        if not self.affords(values, keywords):
            return Unknown("is too large to compute")
        found = call_pure(name, values, keywords)
        return found if is_plain(found) or isinstance(found, Unknown) else self.from_plain(found)

    def _launch(self, name: str, arguments: Arguments) -> Any:
        config = arguments.get(0, "config", arguments.get(0, "cfg", None))
        self.started.append(Started(_LAUNCHES[name], take_snapshot(config, self)))
        return Unknown(f"comes from {name}()")

    def _recipe(self, name: str, arguments: Arguments, node: ast.Call) -> Obj:
        root = self.heap.root("inherited", recipe=name, where=self.location(node))
        if arguments.positional or arguments.vague:
            root.meta["vague"] = f"{name}() is called with arguments that cannot be told"
        for keyword, cell in arguments.keywords.items():
            if keyword in _RECIPE_ARGUMENTS:
                for path in _RECIPE_ARGUMENTS[keyword]:
                    self.set_path(root, path, cell.value, cell.location)
            elif keyword in ("eval_interval", "eval_iters"):
                for section in ("train", "validation"):
                    reason = f"{CONDITION} on the release, which has it on train or on validation"
                    self.set_path(root, f"{section}.{keyword}", Unknown(reason), cell.location)
            elif keyword == "peft" and (cell.value is None or not is_plain(cell.value)):
                self.set_path(root, "peft", cell.value, cell.location)
            elif keyword not in _INERT_RECIPE_ARGUMENTS and keyword != "peft":
                root.meta["vague"] = f"the argument {keyword}= of {name}() changes more than can be told"
        return root

    def _construct(self, name: str, arguments: Arguments, node: ast.Call, root: bool = False) -> Any:
        if name in ("Path", "PurePath", "PosixPath"):
            values = [self.plain(value) for value in arguments.positional]
            known = all(isinstance(value, str) for value in values) and self.affords(values)
            return (
                PathText(call_pure("os.path.join", values or ["."], {})) if known else Unknown(self.describe(values[0]))
            )
        for value in arguments.values():
            for obj in self.reached(value):
                if self.heap.is_root(obj) and obj.kind != "opaque":
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
        self.tick(len(cls.body.fields))
        made.fields.update(cls.body.fields)
        if "__init__" in cls.methods:
            self.call_function(cls.methods["__init__"], arguments, node, own=made)
            return made
        for name, value in zip(cls.body.fields, arguments.positional, strict=False):
            made.fields[name] = Cell(value, self.location(node))
        made.fields.update(arguments.keywords)
        if arguments.vague:
            self.heap.taint(made, f"{cls.name}() is called with arguments that cannot be told")
        return made

    def _overridden(self, arguments: Arguments, node: ast.Call) -> Any:
        """Apply Bridge's process_config_with_overrides(config, config_filepath, cli_overrides); returns the config."""
        config = arguments.get(0, "config", None)
        if not targets_of(config):
            return self.opaque(self.describe(config))
        file = arguments.get(1, "config_filepath", None)
        tokens = self.plain(arguments.get(2, "cli_overrides", None))
        if file is not None or isinstance(tokens, Unknown) or arguments.vague:
            self.heap.taint(config, "may be changed by overrides from a file or the command line")
            return config
        for token in tokens or []:
            self.charge(weight(token))
            try:
                found = parse_override(str(token), self.location(node))
            except InputError:
                self.heap.taint(config, f"is overridden by {str(token)[:40]!r}, which Hydra refuses")
                break
            for item in found:
                value = item.value if isinstance(item.value, Unknown) else self.from_plain(item.value)
                self.set_path(config, item.path, value, item.location)
        return config
