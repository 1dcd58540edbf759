"""The environment variables of a run, each with its reason, by the rules of variables.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml
from cel_expr_python import cel

from skill_run.config.config import Config
from skill_run.config.model import State
from skill_run.errors import BundleError, InputError
from skill_run.jobs.model import Variable
from skill_run.launch.arithmetic import Ranks
from skill_run.launch.options import LaunchOptions

_TYPES: Final = {
    "gpu": cel.Type.STRING,
    **dict.fromkeys(("cpu", "fsdp", "nccl_ub", "offload", "deep_ep", "packed_data"), cel.Type.BOOL),
    **dict.fromkeys(("tp", "cp", "pp", "dp", "nodes"), cel.Type.INT),
}
_GENERATIONS: Final = (
    ("blackwell", re.compile(r"g?b[123]00|gb\d+|blackwell")),
    ("hopper", re.compile(r"gh200|h[12]00|h20|h800|hopper")),
    ("older", re.compile(r"a100|a800|v100|l40s?|a\d+|ampere|ada")),
)
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL")


def generation(gpu: str | None) -> str:
    """Return hopper, blackwell or older for a kind of GPU; unknown for none. Raises InputError for another word."""
    if gpu is None:
        return "unknown"
    for name, pattern in _GENERATIONS:
        if pattern.fullmatch(gpu.lower().replace("-", "").replace("_", "")):
            return name
    raise InputError(f"{gpu[:40]!r} is not a known kind of GPU; say h100, h200, b200, gb200, a100 or the like")


def variables_for(
    config: Config, ranks: Ranks, options: LaunchOptions, *, folder: str, cpu: bool
) -> dict[str, Variable]:
    """Return the variables of a run: the user's own, then those of the config and its recipe, then those by rule.

    Raises InputError for a secret, which a plan must not hold.
    """
    found: dict[str, Variable] = {}
    for name, value in options.env.items():
        if _SECRET.search(name):
            raise InputError(
                f"{name} looks like a secret, and a plan is kept on disk: export it where the job is started instead"
            )
        found[name] = Variable(value, "given by the user")
    if not cpu:
        for name, value in (config.env or {}).items():
            if not _SECRET.search(name):
                found.setdefault(name, Variable(str(value), "set by the config or its recipe"))
    facts = _facts(config, ranks, options, cpu)
    places = {"{folder}": folder, "{packed_data}": options.packed_data or ""}
    for name, condition, value, reason in _rules():
        if name not in found and bool(condition.eval(data=facts).value()):
            for place, path in places.items():
                value = value.replace(place, path)
            found[name] = Variable(value, reason)
    return found


def _facts(config: Config, ranks: Ranks, options: LaunchOptions, cpu: bool) -> dict[str, Any]:
    flexible = _value(config, "model.moe_token_dispatcher_type") == "flex"
    return {
        "gpu": generation(options.gpu or config.gpu),
        "cpu": cpu,
        "tp": ranks.tp,
        "cp": ranks.cp,
        "pp": ranks.pp,
        "dp": ranks.dp,
        "nodes": ranks.nodes,
        "fsdp": any(_value(config, f"{section}.use_megatron_fsdp") is True for section in ("ddp", "dist")),
        "nccl_ub": _value(config, "ddp.nccl_ub") is True,
        "offload": _value(config, "model.fine_grained_activation_offloading") is True,
        "deep_ep": flexible or _value(config, "model.moe_enable_deepep") is True,
        "packed_data": options.packed_data is not None,
    }


def _value(config: Config, field: str) -> Any:
    found = config.get(field)
    return None if found.state is State.UNKNOWN else found.value


@cache
def _rules() -> tuple[tuple[str, Any, str, str], ...]:
    environment = cel.NewEnv(variables=_TYPES)
    text = (files("skill_run.launch") / "variables.yaml").read_text("utf-8")
    found = []
    for entry in yaml.safe_load(text):
        found.append((entry["name"], _compiled(environment, entry["when"]), entry["value"], entry["reason"]))
    return tuple(found)


def _compiled(environment: Any, expression: str) -> Any:
    try:
        return environment.compile(expression)
    except (RuntimeError, ValueError, TypeError) as error:
        raise BundleError(f"variables.yaml: `{expression}` does not compile: {str(error)[:200]}") from error


def reasons(variables: Mapping[str, Variable]) -> list[tuple[str, str, str]]:
    """Return name, value and reason of each variable, by name."""
    return [(name, each.value, each.reason) for name, each in sorted(variables.items())]
