"""Run a few training steps through Megatron's schedules, DDP, gradient scaling and optimizer, packed or unpacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

from skill_run.worker.inside.case import Case, Outcome
from skill_run.worker.inside.global_weights import draw_weights, gather_full, named_parameters
from skill_run.worker.inside.gpt_model import build_config, build_models
from skill_run.worker.inside.partition import install_partition, thd_partition_indices
from skill_run.worker.inside.rank_batch import on_this_rank
from skill_run.worker.inside.samples import Sample, alone, pack_samples

LEARNING_RATE: Final = 1e-3


class Run:
    """A case on this rank: the model with its weights, its batches, and the optimizer.

    attention: the core attention of packed runs; own_index: put an index function where Transformer Engine's would be.
    The default process group must exist; Megatron's groups are made here.
    """

    def __init__(self, case: Case, attention: type, *, own_index: bool = True) -> None:
        self.case = case
        case.layout.start()
        if own_index or case.variation.partition is not thd_partition_indices:
            install_partition(case.variation.partition)
        tensor_parallel.random.model_parallel_cuda_manual_seed(1 + case.seed)
        dtype = getattr(torch, case.dtype)
        per_token = case.variation.loss == "per-token"
        self.config = build_config(case.shape, case.layout, dtype, per_token_loss=per_token)
        self.models = build_models(
            case.shape, self.config, case.layout, case.pack_size, dtype, attention if case.packed else None
        )
        if case.device == "cuda":
            self.models = [model.cuda() for model in self.models]
        self.parameters = named_parameters(self.models)
        draw_weights(self.parameters, case.seed, gated=case.shape.gated)
        self.wrapped: list[Any] = []

    def train(self) -> Outcome:
        """Compute one gradient, and take the case's optimizer steps with it and what follows."""
        self._wrap()
        optimizer = self._optimizer() if self.case.steps else None
        losses: list[float] = []
        outcome = Outcome(losses, 0)
        # The last step's loss is taken once more, with the weights that it left.
        for step in range(self.case.steps + 1):
            self._zero_gradients(optimizer)
            total, tokens = self._forward_backward()
            losses.append(total / tokens if tokens else 0.0)
            if step == 0:
                outcome.tokens = tokens
                outcome.gradients = self._gathered({n: p.main_grad for n, p in self.parameters.items()})
            if optimizer is not None and step < self.case.steps:
                optimizer.step()
        if optimizer is not None:
            outcome.weights = self._gathered(self.parameters)
        return outcome

    def steps(self) -> Iterator[None]:
        """Take one whole training step for each value that is asked for, without end."""
        self._wrap()
        optimizer = self._optimizer()
        while True:
            self._zero_gradients(optimizer)
            self._forward_backward()
            optimizer.step()
            yield

    def _wrap(self) -> None:
        ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=self.case.dtype == "bfloat16")
        self.wrapped = [
            DistributedDataParallel(self.config, ddp, model, disable_bucketing=number > 0)
            for number, model in enumerate(self.models)
        ]

    def _zero_gradients(self, optimizer: Any) -> None:
        for model in self.wrapped:
            model.zero_grad_buffer()
        if optimizer is not None:
            # Without this the first microbatch of every later step counts twice.
            optimizer.zero_grad()

    def _optimizer(self) -> Any:
        half = self.case.dtype == "bfloat16"
        config = OptimizerConfig(
            optimizer="adam",
            lr=LEARNING_RATE,
            weight_decay=0.01,
            # A gradient that is zero but for rounding, such as that of a key's bias, must not become a step.
            adam_eps=1e-5,
            bf16=half,
            params_dtype=getattr(torch, self.case.dtype),
            # The norm to clip by is computed in float32, whatever the gradients are.
            clip_grad=0.0,
        )
        return get_megatron_optimizer(config, self.wrapped)

    def _gathered(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        return gather_full(self.parameters, values, gated=self.case.shape.gated)

    def _forward_backward(self) -> tuple[float, int]:
        """Return the summed loss and the counted tokens of all ranks."""
        batches = self._batches()
        told = get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=[iter(batches) for _ in self.wrapped] if self.case.layout.vpp else iter(batches),
            model=self.wrapped if self.case.layout.vpp else self.wrapped[0],
            num_microbatches=len(batches),
            seq_length=self.case.pack_size,
            micro_batch_size=1,
            forward_only=False,
        )
        sums = torch.zeros(2, dtype=torch.float64)
        if told and parallel_state.get_tensor_model_parallel_rank() == 0:
            sums = torch.stack([each["sums"] for each in told]).sum(0).double().cpu()
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, sums.tolist())
        return sum(part[0] for part in parts), round(sum(part[1] for part in parts))

    def _batches(self) -> list[tuple[dict[str, Any], Any]]:
        case = self.case
        rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
        mine = case.samples[rank::size]
        if not case.packed:
            return [(self._placed(alone(sample)), None) for samples in mine for sample in samples]
        return [self.packed_batch(samples) for samples in mine]

    def packed_batch(self, samples: Sequence[Sample], tokens_T: Any = None) -> tuple[dict[str, Any], Any]:
        """Return this rank's part of a pack and its PackedSeqParams; tokens_T: other tokens for the whole pack."""
        pack = pack_samples(samples, self.case.pack_size, self.case.multiple)
        fields = pack.fields if tokens_T is None else {**pack.fields, "tokens": tokens_T[None]}
        group = parallel_state.get_context_parallel_group()
        return on_this_rank(self._placed(fields), pack, self.case.variation, group)

    def _placed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value.to(self.case.device) for name, value in fields.items()}

    def forward(self, model: Any, fields: Mapping[str, Any], packed_seq_params: Any) -> Any:
        """Return the loss of every token that this rank holds, or what the next stage needs."""
        if self.case.variation.deaf_middle and _is_middle_stage():
            packed_seq_params = None
        length = fields["tokens"].size(1)
        mask = None
        if not self.case.packed:
            mask = torch.ones(1, 1, length, length, device=self.case.device).triu(1).bool()
        more = {"loss_mask": fields["loss_mask"]} if self.case.shape.predicts_more else {}
        return model(
            fields["tokens"],
            fields["position_ids"],
            mask,
            labels=fields["labels"],
            packed_seq_params=packed_seq_params,
            **more,
        )

    def _forward_step(self, batches: Iterator[tuple[dict[str, Any], Any]], model: Any) -> tuple[Any, Any]:
        fields, packed_seq_params = next(batches)
        output = self.forward(model, fields, packed_seq_params)
        return output, partial(_loss, fields["loss_mask"], self.case.variation.loss)


def _is_middle_stage() -> bool:
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=True)
    return not first and not parallel_state.is_pipeline_last_stage(ignore_virtual=True)


def _loss(loss_mask: Any, kind: str, losses: Any) -> tuple[Any, ...]:
    """Return what a schedule expects of a loss function, as Bridge's own has it (training/losses.py)."""
    total = (losses.reshape(-1) * loss_mask.reshape(-1).to(losses.dtype)).sum()
    tokens = loss_mask.sum().to(torch.int)
    told = {"sums": torch.stack([total.detach().double(), tokens.double()])}
    if kind == "local-mean":
        return total / tokens.clamp(min=1), told
    return total, tokens, told
