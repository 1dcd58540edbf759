"""How many ranks a run has, and how they are shared out: the sizes of a config against the machines."""

from __future__ import annotations

from dataclasses import dataclass

from skill_run.config.config import Config
from skill_run.errors import InputError
from skill_run.rules.derived import Facts, NeedsValue


@dataclass(frozen=True, slots=True)
class Ranks:
    """Sizes of a run; `lines` shows the arithmetic."""

    world_size: int
    nodes: int
    ranks_per_node: int
    tp: int
    pp: int
    cp: int
    ep: int
    dp: int
    lines: tuple[str, ...]


def share_out(config: Config, nodes: int, ranks_per_node: int | None, *, least: bool = False) -> Ranks:
    """Return the sizes of a run on so many nodes.

    ranks_per_node: None takes what the config's world size leaves for a node, or with `least` the fewest ranks that
    its layout admits. Raises InputError when a size is not known or the layout does not fit.
    """
    facts = Facts(config)
    try:
        tp, pp, cp, ep = facts.tp, facts.pp, facts.cp, facts.ep
        fewest = facts.count("derived.min_gpus")
    except NeedsValue as missing:
        raise InputError(f"the layout is not known: {', '.join(missing.needs)} must be set") from missing
    per_node = ranks_per_node or _per_node(config, nodes, fewest, least)
    world, block = nodes * per_node, tp * pp * cp
    if world % block:
        raise InputError(
            f"{world} ranks ({nodes} x {per_node}) cannot hold TP {tp} x PP {pp} x CP {cp} = {block} ranks a model "
            f"copy; use a multiple of {block}"
        )
    if world % fewest:
        raise InputError(f"{world} ranks do not divide into groups of {fewest}, which the experts' layout needs")
    dp = world // block
    lines = [f"{world} ranks = {nodes} node{'s' if nodes > 1 else ''} x {per_node}"]
    lines.append(f"one model copy = TP {tp} x PP {pp} x CP {cp} = {block} ranks; DP = {world} / {block} = {dp}")
    if ep > 1:
        lines.append(f"experts: EP {ep}, within the {world // pp} ranks of a pipeline stage")
    lines += _batch(facts, dp)
    return Ranks(world, nodes, per_node, tp, pp, cp, ep, dp, tuple(lines))


def _per_node(config: Config, nodes: int, fewest: int, least: bool) -> int:
    world = config.world_size or (fewest if least else None)
    if world is None:
        raise InputError(
            f"the number of GPUs is not known; say --gpus-per-node (the layout needs multiples of {fewest})"
        )
    if world % nodes:
        raise InputError(f"{world} ranks cannot be shared out over {nodes} nodes; say --gpus-per-node")
    return world // nodes


def _batch(facts: Facts, dp: int) -> list[str]:
    try:
        micro, whole = facts.number("train.micro_batch_size"), facts.number("train.global_batch_size")
    except NeedsValue:
        return []
    if micro <= 0 or whole % (micro * dp):
        raise InputError(
            f"global batch {whole} is no multiple of micro batch {micro} x DP {dp} = {micro * dp}; upstream refuses it"
        )
    steps = whole // (micro * dp)
    return [f"global batch {whole} = micro batch {micro} x DP {dp} x {steps} micro-batches a step"]
