"""A worker's tasks that compute attention and partition indices on small numbers, for tests to look at.

Started as `python numeric_tasks.py ... BOOT TASK`, like any worker, by an interpreter that has torch and Megatron.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

BOUNDARIES = (0, 8, 8, 24, 40, 48, 64)
HEADS, GROUPS, SIZE, VALUE_SIZE = 4, 4, 8, 6
CASES: dict[str, dict[str, Any]] = {
    "one rank": {"cp": 1},
    "all_gather": {"cp": 2, "cp_comm_type": "all_gather"},
    "p2p": {"cp": 2, "cp_comm_type": "p2p"},
    "a2a": {"cp": 2, "cp_comm_type": "a2a"},
    "all_gather, 4 ranks": {"cp": 4, "cp_comm_type": "all_gather"},
    "p2p, 4 ranks": {"cp": 4, "cp_comm_type": "p2p"},
    "a2a+p2p, 4 ranks": {"cp": 4, "cp_comm_type": "a2a+p2p"},
    "shared keys": {"cp": 2, "cp_comm_type": "p2p", "groups": 2},
    "shared keys, a2a": {"cp": 2, "cp_comm_type": "a2a", "groups": 2},
    "window": {"cp": 2, "cp_comm_type": "all_gather", "window_size": [5, 0]},
    "window, one rank": {"cp": 1, "window_size": [5, 0]},
    "window and learnable sinks": {"cp": 2, "cp_comm_type": "p2p", "window_size": [5, 0], "softmax_type": "learnable"},
    "learnable sinks, a2a": {"cp": 2, "cp_comm_type": "a2a", "softmax_type": "learnable"},
    "off-by-one sinks": {"cp": 2, "cp_comm_type": "all_gather", "softmax_type": "off-by-one"},
    "full attention": {"cp": 2, "cp_comm_type": "all_gather", "mask": "padding"},
    "values of another size": {"cp": 2, "cp_comm_type": "p2p", "value_size": VALUE_SIZE},
    "tail after the last boundary": {"cp": 2, "cp_comm_type": "p2p", "boundaries": [0, 8, 24]},
    "dense": {"cp": 1, "dense": True},
    "dense, 2 ranks": {"cp": 2, "cp_comm_type": "p2p", "dense": True},
    "float32": {"cp": 2, "cp_comm_type": "p2p", "dtype": "float32"},
    "bfloat16": {"cp": 2, "cp_comm_type": "all_gather", "dtype": "bfloat16"},
}


def config_of(case: Mapping[str, Any], dtype: Any) -> Any:
    from megatron.core.transformer import TransformerConfig

    window = case.get("window_size")
    return TransformerConfig(
        num_layers=1,
        hidden_size=HEADS * SIZE,
        num_attention_heads=HEADS,
        num_query_groups=case.get("groups", GROUPS),
        attention_dropout=0.0,
        params_dtype=dtype,
        window_size=tuple(window) if window else None,
        softmax_type=case.get("softmax_type", "vanilla"),
        context_parallel_size=case["cp"],
        use_cpu_initialization=True,
    )


def direct(q: Any, k: Any, v: Any, boundaries: list[int], case: Mapping[str, Any], sinks: Any) -> Any:
    """Attention token by token over the whole pack, in float64."""
    import torch

    times = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    token = torch.arange(q.size(0))
    sequence = torch.bucketize(token, torch.tensor(boundaries), right=True)
    seen = sequence[:, None] == sequence[None]
    if case.get("mask", "causal") == "causal":
        seen &= token[None] <= token[:, None]
    if "window_size" in case:
        seen &= token[None] >= token[:, None] - case["window_size"][0]
    scores = torch.einsum("qhd,khd->hqk", q, k) / SIZE**0.5
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(-1, 1, 1).expand(-1, q.size(0), 1)], -1)
    weights = scores.softmax(-1)[..., : k.size(0)]
    return torch.einsum("hqk,khd->qhd", weights, v)


VARLEN: dict[str, dict[str, Any]] = {
    "one rank": {"cp": 1},
    "2 ranks": {"cp": 2, "cp_comm_type": "p2p"},
    "4 ranks": {"cp": 4, "cp_comm_type": "all_gather"},
    "heads travel": {"cp": 2, "cp_comm_type": "a2a", "groups": 2},
    "window": {"cp": 2, "cp_comm_type": "p2p", "window_size": [5, 0]},
    "values of another size": {"cp": 2, "cp_comm_type": "p2p", "value_size": VALUE_SIZE},
}


def varlen_on_cpu(
    q: Any,
    k: Any,
    v: Any,
    cu_seq_q: Any,
    cu_seq_k: Any,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
) -> Any:
    """What torch documents of varlen_attn, whose kernels need a GPU: each run's mask ends at its last key."""
    import torch

    outputs = []
    for (start, end), (first, last) in zip(pairs(cu_seq_q), pairs(cu_seq_k), strict=True):
        assert end - start <= max_q
        assert last - first <= max_k
        query = torch.arange(end - start)[:, None] + (last - first) - (end - start)
        key = torch.arange(last - first)[None]
        seen = key <= query + window_size[1]
        if window_size[0] >= 0:
            seen &= key >= query - window_size[0]
        scores = torch.einsum("qhd,khd->hqk", q[start:end], k[first:last]) * scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v[first:last]))
    return torch.cat(outputs)


def pairs(boundaries: Any) -> list[tuple[int, int]]:
    at = boundaries.tolist()
    return list(pairwise(at))


def error_of(case: Mapping[str, Any], rank: int) -> float:
    """Return the largest error of a case's output and gradients on one rank."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.enums import AttnMaskType

    from skill_run.worker.inside import varlen
    from skill_run.worker.inside.attention import CPUAttention
    from skill_run.worker.inside.partition import thd_partition_indices
    from skill_run.worker.inside.ranks import start_gloo

    cp = case["cp"]
    start_gloo(rank, cp)
    inner = {"hierarchical_context_parallel_sizes": [2, 2]} if case.get("cp_comm_type") == "a2a+p2p" else {}
    parallel_state.initialize_model_parallel(context_parallel_size=cp, **inner)
    dtype = getattr(torch, case.get("dtype", "float64"))
    tokens = BOUNDARIES[-1]
    boundaries = [0, tokens] if case.get("dense") else case.get("boundaries", list(BOUNDARIES))
    torch.manual_seed(1)
    q, k = torch.randn(tokens, HEADS, SIZE), torch.randn(tokens, case.get("groups", GROUPS), SIZE)
    v = torch.randn(tokens, case.get("groups", GROUPS), case.get("value_size", SIZE))
    weight = torch.randn(tokens, HEADS, v.size(-1))
    q, k, v, weight = (x.to(dtype).double() for x in (q, k, v, weight))
    varlen.varlen.varlen_attn = varlen_on_cpu
    attention = (varlen.VarlenAttention if case.get("varlen") else CPUAttention)(
        config_of(case, dtype),
        1,
        AttnMaskType[case.get("mask", "causal")],
        "self",
        cp_comm_type=case.get("cp_comm_type"),
    )
    sinks = attention.softmax_offset
    if sinks is not None:
        sinks = (torch.arange(HEADS) / 4.0 if case["softmax_type"] == "learnable" else torch.zeros(HEADS)).double()
        with torch.no_grad():
            attention.softmax_offset.copy_(sinks)
        sinks.requires_grad_()
    for x in (q, k, v):
        x.requires_grad_()
    ends = boundaries if boundaries[-1] == tokens else [*boundaries, tokens]
    expected = direct(q, k, v, ends, case, sinks)
    (expected * weight).sum().backward()

    cu_seqlens = torch.tensor(ends, dtype=torch.int32)
    mine = thd_partition_indices(cu_seqlens, tokens, cp, rank).long() if cp > 1 else torch.arange(tokens)
    local = [x.detach()[mine].to(dtype).requires_grad_() for x in (q, k, v)]
    if case.get("dense"):
        output = attention(*(x[:, None] for x in local))[:, 0]
    else:
        given = torch.tensor(boundaries, dtype=torch.int32)
        packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=given, cu_seqlens_kv=given)
        output = attention(*local, packed_seq_params=packed)
    (output.reshape(weight[mine].shape) * weight[mine].to(dtype)).sum().backward()
    pairs = [(output.detach().reshape(weight[mine].shape), expected.detach()[mine])]
    pairs += [(x.grad, y.grad[mine]) for x, y in zip(local, (q, k, v), strict=True)]
    if case.get("softmax_type") == "learnable":
        total = attention.softmax_offset.grad.clone()
        dist.all_reduce(total)
        pairs.append((total, sinks.grad))
    return max(float((a.double() - b).norm() / b.norm().clamp(min=1e-300)) for a, b in pairs)


def run(request: Mapping[str, Any], channel: Any) -> dict[str, Any]:
    """Return {"errors": by case, "refused": sentence, "partition": what the index functions give}."""
    from skill_run.worker.inside import cuda_on_cpu
    from skill_run.worker.inside.errors import RankFailure
    from skill_run.worker.inside.ranks import run_ranks

    first = cuda_on_cpu.install()
    twice = cuda_on_cpu.install() == first
    import skill_run.worker.inside.attention  # noqa: F401

    def errors(case: Mapping[str, Any]) -> list[float]:
        return run_ranks(case["cp"], lambda rank, tell: error_of(case, rank))

    try:
        refused = str(errors({"cp": 2, "cp_comm_type": "p2p", "boundaries": [0, 10, 64]}))
    except RankFailure as error:
        refused = str(error)
    return {
        "errors": {name: max(errors(case)) for name, case in CASES.items()},
        "varlen": {name: max(errors({**case, "varlen": True})) for name, case in VARLEN.items()},
        "refused": refused,
        "partition": partition(),
        "installed_twice": twice,
    }


def partition() -> dict[str, Any]:
    """Return indices of both forms: on even boundaries, with -1 among them, and for lengths that cannot be cut."""
    import megatron.core.utils
    import torch

    from skill_run.worker.inside.errors import RefusedError
    from skill_run.worker.inside.partition import install_partition, te_kernel_indices, thd_partition_indices

    def indices(function: Any, boundaries: list[int], total: int, cp: int) -> list[list[int]]:
        cu_seqlens = torch.tensor(boundaries, dtype=torch.int32)
        return [function(cu_seqlens, total, cp, rank).tolist() for rank in range(cp)]

    refused = []
    for boundaries, total in (([0, 6, 16], 16), ([0, 8], 16), ([0, 8, 4, 16], 16)):
        try:
            refused.append(str(indices(thd_partition_indices, boundaries, total, 2)))
        except RefusedError as error:
            refused.append(str(error))
    install_partition(te_kernel_indices)
    even = [0, 8, 8, 24, 48]
    return {
        "even": {str(cp): indices(thd_partition_indices, even, 48, cp) for cp in (1, 2, 4)},
        "even_kernel": {str(cp): indices(te_kernel_indices, even, 48, cp) for cp in (1, 2, 4)},
        "sentinels": indices(te_kernel_indices, [0, 8, 16, -1, -1, -1], 16, 2),
        "uneven": indices(te_kernel_indices, [0, 1, 22, 30, 41, 44], 44, 2),
        "refused": refused,
        "type": str(thd_partition_indices(torch.tensor([0, 8]), 8, 2, 0).dtype),
        "installed": [
            megatron.core.utils.tex.thd_get_partitioned_indices is te_kernel_indices,
            sys.modules["transformer_engine_torch"].thd_get_partitioned_indices is te_kernel_indices,
            megatron.core.utils.is_te_min_version("9.9"),
        ],
    }


def main() -> int:
    """Run the task that the command line names."""
    package = types.ModuleType("skill_run")
    package.__path__ = [str(Path(sys.argv[-2]).parents[2])]
    sys.modules["skill_run"] = package
    sys.modules["numeric_tasks"] = sys.modules["__main__"]
    from skill_run.worker.inside import serve

    serve.TASKS["numeric"] = "numeric_tasks"  # type: ignore[index]
    return serve.serve(sys.argv[-1])


if __name__ == "__main__":
    sys.exit(main())
