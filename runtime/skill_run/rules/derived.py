"""The named values that rules may use beside plain fields: packing.*, derived.* (all sizes in tokens or ranks).

Each function takes a Facts and returns a plain value. Asking Facts for an unknown field raises NeedsValue with the
inputs that are lacking, so a derived value is unknown exactly when something it really uses is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from skill_run.bridge.release import by_version, index, matches
from skill_run.config.config import Config
from skill_run.config.model import Plain, State

ACTIVATION_BYTES: Final = 34
FULL_RECOMPUTE_BYTES: Final = 2
LOGIT_BYTES: Final = 4
FP8_MULTIPLE: Final = 16
MXFP8_MULTIPLE: Final = 32


class NeedsValue(Exception):
    """A derived value lacks inputs; `needs` names them (canonical fields, world_size, env.NAME, te, gpu)."""

    def __init__(self, *needs: str) -> None:
        super().__init__(", ".join(needs))
        self.needs = needs


Function = Callable[["Facts"], Plain]
_F = TypeVar("_F", bound=Function)
DERIVED: Final[dict[str, tuple[str, Function]]] = {}


def derived(name: str, kind: str) -> Callable[[_F], _F]:
    """Register a derived value under its CEL name with its type (int, bool, str)."""

    def register(function: _F) -> _F:
        DERIVED[name] = (kind, function)
        return function

    return register


class Facts:
    """Typed access to a Config for derived functions, with every derived value computed at most once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._cache: dict[str, Plain | NeedsValue] = {}

    def value(self, field: str) -> Plain:
        """Return a field's value (None when null); NeedsValue when it is unknown."""
        found = self.config.get(field)
        if found.state is State.UNKNOWN:
            raise NeedsValue(field)
        return found.value

    def number(self, field: str) -> int:
        """Return a field that must be a whole number; NeedsValue when it is null or unknown."""
        found = self.value(field)
        if isinstance(found, bool) or not isinstance(found, int):
            raise NeedsValue(field)
        return found

    def flag(self, field: str) -> bool:
        """Return a boolean field; null counts as false."""
        return bool(self.value(field))

    def given(self, field: str) -> bool:
        """Tell whether a field or section has a value; NeedsValue when unknown."""
        found = self.config.is_given(field)
        if found is None:
            raise NeedsValue(field)
        return found

    def derived(self, name: str) -> Plain:
        """Return a derived value by its CEL name."""
        if name not in self._cache:
            try:
                self._cache[name] = DERIVED[name][1](self)
            except NeedsValue as lacking:
                self._cache[name] = lacking
        found = self._cache[name]
        if isinstance(found, NeedsValue):
            raise found
        return found

    def count(self, name: str) -> int:
        """Return a derived whole number."""
        found = self.derived(name)
        assert isinstance(found, int)
        return found

    def test(self, name: str) -> bool:
        """Return a derived boolean."""
        return bool(self.derived(name))

    def any_of(self, *tests: Callable[[], bool]) -> bool:
        """Three-valued or: true as soon as one test is true, NeedsValue only when none is and some are unknown."""
        needs: list[str] = []
        for test in tests:
            try:
                if test():
                    return True
            except NeedsValue as lacking:
                needs += lacking.needs
        if needs:
            raise NeedsValue(*dict.fromkeys(needs))
        return False

    def all_of(self, *tests: Callable[[], bool]) -> bool:
        """Three-valued and: false as soon as one test is false."""
        return not self.any_of(*(lambda test=test: not test() for test in tests))

    def release_is(self, specifier: str) -> bool:
        """Tell whether the user's version satisfies a specifier."""
        return matches(specifier, self.config.version)

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.number("model.tensor_model_parallel_size")

    @property
    def pp(self) -> int:
        """Pipeline parallel size."""
        return self.number("model.pipeline_model_parallel_size")

    @property
    def cp(self) -> int:
        """Context parallel size."""
        return self.number("model.context_parallel_size")

    @property
    def ep(self) -> int:
        """Expert parallel size."""
        return self.number("model.expert_model_parallel_size")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        if self.config.world_size is None:
            raise NeedsValue("world_size")
        return self.config.world_size


def _dataset_is(facts: Facts, group: str) -> bool:
    dataset_type = facts.config.dataset_type
    classes = by_version(index()["dataset_classes"][group], facts.config.version) or []
    if dataset_type is not None:
        return dataset_type in classes
    inside = {name in classes for name in facts.config.release.datasets}
    if len(inside) != 1:
        raise NeedsValue("dataset.type")
    return inside.pop()


@derived("derived.cp_comm_type_is_list", "bool")
def cp_comm_type_is_list(facts: Facts) -> bool:
    """Whether model.cp_comm_type is a list, whose entries upstream counts, and not one name for all layers."""
    held = facts.value("model.cp_comm_type")
    return isinstance(held, list) and (len(held) > 1 or facts.config.get("model.cp_comm_type").as_list)


@derived("derived.weight_decay_without_ends", "bool")
def weight_decay_without_ends(facts: Facts) -> bool:
    """An end of the weight decay schedule is null: written so, or left out of a whole config, which no recipe fills."""
    whole = facts.config.base == "complete"
    fields = ("scheduler.start_weight_decay", "scheduler.end_weight_decay")
    return any(facts.value(name) is None and (whole or facts.config.get(name).state is State.SET) for name in fields)


@derived("derived.sft_dataset", "bool")
def sft_dataset(facts: Facts) -> bool:
    """The dataset is an instance of the release's SFT dataset classes."""
    return _dataset_is(facts, "sft")


@derived("derived.text_sft_dataset", "bool")
def text_sft_dataset(facts: Facts) -> bool:
    """The dataset is the text SFT class that can be packed offline."""
    return _dataset_is(facts, "text_sft")


@derived("derived.gpt_dataset", "bool")
def gpt_dataset(facts: Facts) -> bool:
    """The dataset is GPTDatasetConfig or its mock."""
    return _dataset_is(facts, "gpt")


@derived("derived.declarative_sft_dataset", "bool")
def declarative_sft_dataset(facts: Facts) -> bool:
    """The dataset is DirectHFSFT, Energon or MockVLM (0.6 and later)."""
    return _dataset_is(facts, "declarative")


@derived("derived.provider_dataset", "bool")
def provider_dataset(facts: Facts) -> bool:
    """The dataset is a VLM or Energon DatasetProvider (before 0.6)."""
    return _dataset_is(facts, "provider")


@derived("derived.seq_length_checked", "bool")
def seq_length_checked(facts: Facts) -> bool:
    """validate() compares this dataset's sequence length with the model's."""
    return _dataset_is(facts, "compared")


@derived("packing.offline", "bool")
def packing_offline(facts: Facts) -> bool:
    """Offline packing takes effect: the 0.6 switch, or before it packing specs with a positive pack size."""
    if facts.release_is(">=0.6.dev0"):
        return facts.flag("dataset.enable_offline_packing")
    specs = "dataset.offline_packing_specs"
    return facts.given(specs) and facts.number(f"{specs}.packed_sequence_size") > 0


@derived("packing.in_batch_requested", "bool")
def in_batch_requested(facts: Facts) -> bool:
    """The in-batch packing flag is set, whatever the dataset class."""
    return facts.flag("dataset.enable_in_batch_packing")


@derived("packing.in_batch", "bool")
def packing_in_batch(facts: Facts) -> bool:
    """In-batch packing takes effect: the flag is set on a dataset class that implements it."""
    return facts.all_of(lambda: facts.test("packing.in_batch_requested"), lambda: _dataset_is(facts, "in_batch"))


@derived("packing.native", "bool")
def packing_native(facts: Facts) -> bool:
    """Energon's own packing is asked for."""
    return facts.given("dataset.packing_buffer_size")


@derived("packing.any", "bool")
def packing_any(facts: Facts) -> bool:
    """Any kind of packing takes effect."""
    return facts.any_of(
        *(lambda name=name: facts.test(f"packing.{name}") for name in ("offline", "in_batch", "native"))
    )


@derived("derived.sequence_parallel", "bool")
def sequence_parallel(facts: Facts) -> bool:
    """Sequence parallelism takes effect (it needs TP > 1)."""
    return facts.all_of(lambda: facts.tp > 1, lambda: facts.flag("model.sequence_parallel"))


@derived("derived.model_parallel_size", "int")
def model_parallel_size(facts: Facts) -> int:
    """TP * PP * CP."""
    return facts.tp * facts.pp * facts.cp


@derived("derived.data_parallel_size", "int")
def data_parallel_size(facts: Facts) -> int:
    """world_size / (TP * PP * CP); unknown when that is not a whole number."""
    ranks, block = facts.world_size, facts.count("derived.model_parallel_size")
    if ranks % block:
        # world-size-divisible reports it; no other rule can say more.
        raise NeedsValue("world_size")
    return ranks // block


@derived("derived.cp_chunks", "int")
def cp_chunks(facts: Facts) -> int:
    """Chunks that context parallelism cuts a sequence into: 2 * CP."""
    return 2 * facts.cp


@derived("derived.cp_multiple", "int")
def cp_multiple(facts: Facts) -> int:
    """Length multiple that CP needs: 2 * CP, 1 without CP."""
    return 2 * facts.cp if facts.cp > 1 else 1


@derived("derived.sp_multiple", "int")
def sp_multiple(facts: Facts) -> int:
    """Length multiple that sequence parallelism needs: CP * TP, 1 without it."""
    return facts.cp * facts.tp if facts.test("derived.sequence_parallel") else 1


@derived("derived.pad_multiple", "int")
def pad_multiple(facts: Facts) -> int:
    """Length multiple that satisfies CP and sequence parallelism together."""
    return math.lcm(facts.count("derived.cp_multiple"), facts.count("derived.sp_multiple"))


@derived("derived.pack_multiple", "int")
def pack_multiple(facts: Facts) -> int:
    """Multiple for a whole pack: pad_multiple together with the configured pad_seq_to_mult."""
    configured = facts.value("dataset.offline_packing_specs.pad_seq_to_mult")
    alignment = configured if isinstance(configured, int) and configured > 0 else 1
    return math.lcm(facts.count("derived.pad_multiple"), alignment)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@derived("derived.aligned_seq_length", "int")
def aligned_seq_length(facts: Facts) -> int:
    """model.seq_length rounded up to pad_multiple."""
    return _round_up(facts.number("model.seq_length"), facts.count("derived.pad_multiple"))


@derived("derived.aligned_pack_size", "int")
def aligned_pack_size(facts: Facts) -> int:
    """packed_sequence_size rounded up to pack_multiple."""
    size = facts.number("dataset.offline_packing_specs.packed_sequence_size")
    return _round_up(size, facts.count("derived.pack_multiple"))


@derived("derived.expert_tensor_parallel_size", "int")
def expert_tensor_parallel_size(facts: Facts) -> int:
    """Expert tensor parallel size in effect: unset means TP before 0.6, and 1 from 0.6 on when EP > 1."""
    configured = facts.value("model.expert_tensor_parallel_size")
    if isinstance(configured, int):
        return configured
    if facts.release_is(">=0.6.dev0") and facts.ep > 1:
        return 1
    return facts.tp


@derived("derived.expert_block", "int")
def expert_block(facts: Facts) -> int:
    """ETP * EP * PP, which must divide the world size."""
    return facts.count("derived.expert_tensor_parallel_size") * facts.ep * facts.pp


@derived("derived.min_gpus", "int")
def min_gpus(facts: Facts) -> int:
    """Fewest ranks that fit both the dense and the expert grid."""
    experts = facts.count("derived.expert_block")
    return math.lcm(facts.count("derived.model_parallel_size"), experts)


@derived("derived.eval_context_parallel_size", "int")
def eval_context_parallel_size(facts: Facts) -> int:
    """Context parallel size of evaluation (training's unless set; 0.6 and later)."""
    configured = facts.value("dist.eval_context_parallel_size")
    return configured if isinstance(configured, int) and facts.release_is(">=0.6.dev0") else facts.cp


@derived("derived.eval_data_parallel_size", "int")
def eval_data_parallel_size(facts: Facts) -> int:
    """Data parallel size of evaluation."""
    block = facts.tp * facts.pp * facts.count("derived.eval_context_parallel_size")
    return max(1, facts.world_size // block)


def _evaluation(facts: Facts, name: str) -> int:
    configured = facts.value(f"validation.eval_{name}")
    return configured if isinstance(configured, int) else facts.number(f"train.{name}")


@derived("derived.eval_global_batch_size", "int")
def eval_global_batch_size(facts: Facts) -> int:
    """Global batch of evaluation (training's unless set)."""
    return _evaluation(facts, "global_batch_size")


@derived("derived.eval_micro_batch_size", "int")
def eval_micro_batch_size(facts: Facts) -> int:
    """Micro batch of evaluation (training's unless set)."""
    return _evaluation(facts, "micro_batch_size")


@derived("derived.collate_multiple", "int")
def collate_multiple(facts: Facts) -> int:
    """pad_multiple over the context parallel sizes of training and evaluation."""
    found = facts.count("derived.pad_multiple")
    cp = facts.count("derived.eval_context_parallel_size")
    shards = cp * facts.tp if facts.test("derived.sequence_parallel") else 1
    return math.lcm(found, 2 * cp if cp > 1 else 1, shards)


@derived("derived.micro_batches", "int")
def micro_batches(facts: Facts) -> int:
    """Micro batches per step and data parallel rank."""
    per_step = facts.number("train.micro_batch_size") * facts.count("derived.data_parallel_size")
    return facts.number("train.global_batch_size") // per_step


@derived("derived.next_global_batch_size", "int")
def next_global_batch_size(facts: Facts) -> int:
    """Smallest global batch not below the configured one that splits evenly."""
    per_step = facts.number("train.micro_batch_size") * facts.count("derived.data_parallel_size")
    return _round_up(facts.number("train.global_batch_size"), per_step)


@derived("derived.heads_per_tp", "int")
def heads_per_tp(facts: Facts) -> int:
    """Attention heads on one tensor parallel rank."""
    return facts.number("model.num_attention_heads") // facts.tp


@derived("derived.groups_per_tp", "int")
def groups_per_tp(facts: Facts) -> int:
    """Query groups (KV heads) on one tensor parallel rank, at least 1; as many as heads when not set."""
    groups = facts.value("model.num_query_groups")
    total = groups if isinstance(groups, int) else facts.number("model.num_attention_heads")
    return max(1, total // facts.tp)


@derived("derived.hierarchical_product", "int")
def hierarchical_product(facts: Facts) -> int:
    """Product of hierarchical_context_parallel_sizes."""
    sizes = facts.value("model.hierarchical_context_parallel_sizes")
    if not isinstance(sizes, list):
        raise NeedsValue("model.hierarchical_context_parallel_sizes")
    return math.prod(size for size in sizes if isinstance(size, int))


def _precision(facts: Facts) -> str:
    found = facts.value("mixed_precision")
    return found.lower() if isinstance(found, str) else ""


@derived("derived.fp8", "bool")
def fp8(facts: Facts) -> bool:
    """FP8 GEMMs are on, through the model or a mixed-precision recipe."""
    return facts.any_of(
        lambda: facts.given("model.fp8"),
        lambda: "fp8" in _precision(facts),
        lambda: facts.given("mixed_precision.fp8"),
    )


@derived("derived.mxfp8", "bool")
def mxfp8(facts: Facts) -> bool:
    """FP8 with MXFP8 blocks."""
    recipes = ("model.fp8_recipe", "mixed_precision.fp8_recipe")
    return facts.any_of(
        lambda: "mxfp8" in _precision(facts),
        lambda: facts.test("derived.fp8") and any(facts.value(name) == "mxfp8" for name in recipes),
    )


@derived("derived.fp8_multiple", "int")
def fp8_multiple(facts: Facts) -> int:
    """Multiple of the whole pack so that every rank's FP8 GEMM dimension is legal."""
    block = MXFP8_MULTIPLE if facts.test("derived.mxfp8") else FP8_MULTIPLE
    return block * facts.cp * (facts.tp if facts.test("derived.sequence_parallel") else 1)


@derived("derived.pad_to_max_length", "bool")
def pad_to_max_length(facts: Facts) -> bool:
    """Batches are padded to one static width."""
    return facts.any_of(
        lambda: facts.flag("dataset.dataset_kwargs.pad_to_max_length"), lambda: facts.flag("dataset.pad_to_max_length")
    )


@derived("derived.parquet_packs", "bool")
def parquet_packs(facts: Facts) -> bool:
    """The packed training set is parquet (always .npy before 0.4)."""
    if facts.release_is("<0.4"):
        return False
    path = facts.value("dataset.offline_packing_specs.packed_train_data_path")
    return not (isinstance(path, str) and path.endswith(".npy"))


@derived("derived.moe", "bool")
def moe(facts: Facts) -> bool:
    """The model has experts."""
    return facts.given("model.num_moe_experts")


@derived("derived.fsdp", "bool")
def fsdp(facts: Facts) -> bool:
    """Megatron-FSDP is on."""
    return facts.any_of(lambda: facts.flag("dist.use_megatron_fsdp"), lambda: facts.flag("ddp.use_megatron_fsdp"))


@derived("derived.ep_overlap", "bool")
def ep_overlap(facts: Facts) -> bool:
    """Expert all-to-all overlap is asked for."""
    name = "overlap_moe_expert_parallel_comm"
    return facts.any_of(lambda: facts.flag(f"model.{name}"), lambda: facts.flag(f"comm_overlap.{name}"))


@derived("derived.tp_overlap", "bool")
def tp_overlap(facts: Facts) -> bool:
    """Tensor parallel communication overlap is asked for."""
    return facts.any_of(lambda: facts.flag("comm_overlap.tp_comm_overlap"), lambda: facts.flag("model.tp_comm_overlap"))


@derived("derived.cuda_graphs", "bool")
def cuda_graphs(facts: Facts) -> bool:
    """CUDA graphs are on for training."""
    return facts.value("model.cuda_graph_impl") not in (None, "none")


def _graph_modules(facts: Facts) -> list[str]:
    found = facts.value("model.cuda_graph_modules")
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


@derived("derived.full_iteration_graphs", "bool")
def full_iteration_graphs(facts: Facts) -> bool:
    """One CUDA graph covers the whole iteration (also in its old spelling, `local` with that scope)."""
    implementation = facts.value("model.cuda_graph_impl")
    return implementation == "full_iteration" or (
        implementation == "local" and "full_iteration" in _graph_modules(facts)
    )


@derived("derived.attention_graphs", "bool")
def attention_graphs(facts: Facts) -> bool:
    """CUDA graphs capture attention."""
    if facts.test("derived.full_iteration_graphs"):
        return True
    if facts.value("model.cuda_graph_impl") != "transformer_engine":
        return False
    modules = _graph_modules(facts)
    return not modules or bool({"full", "attn"} & set(modules))


@derived("derived.mtp", "bool")
def mtp(facts: Facts) -> bool:
    """Multi-token prediction is on."""
    layers = facts.value("model.mtp_num_layers")
    return isinstance(layers, int) and layers > 0


@derived("derived.hybrid_model", "bool")
def hybrid_model(facts: Facts) -> bool:
    """The model has Mamba layers."""
    model_type = facts.config.model_type or ""
    if any(part in model_type for part in ("Mamba", "Hybrid", "NemotronH", "Nemotron3", "NemotronNano")):
        return True
    return facts.flag("model.is_hybrid_model")


@derived("derived.tokens_per_rank", "int")
def tokens_per_rank(facts: Facts) -> int:
    """Tokens of one micro batch on one context parallel rank."""
    if facts.config.tokens_per_rank is not None:
        return facts.config.tokens_per_rank
    if facts.test("packing.offline"):
        return facts.number("dataset.offline_packing_specs.packed_sequence_size") // facts.cp
    return facts.number("model.seq_length") * facts.number("train.micro_batch_size") // facts.cp


@derived("derived.activation_gib", "int")
def activation_gib(facts: Facts) -> int:
    """Activation memory of a dense transformer on one rank in GiB, by the published per-layer estimates for BF16.

    34 bytes per token and hidden unit and layer with selective or no recompute (attention itself is never stored by
    fused kernels), 2 with full recompute; divided by TP under sequence parallelism. Source: arXiv 2205.05198, table 2.
    """
    layers = -(-facts.number("model.num_layers") // facts.pp)
    unit = facts.number("model.hidden_size") * facts.count("derived.tokens_per_rank") * layers
    per_unit = FULL_RECOMPUTE_BYTES if facts.value("model.recompute_granularity") == "full" else ACTIVATION_BYTES
    shards = facts.tp if facts.test("derived.sequence_parallel") else 1
    return per_unit * unit // shards // 2**30


def _logits_gib(facts: Facts, rows: int) -> int:
    tokens = facts.config.tokens_per_rank or facts.number("model.seq_length") * rows // facts.cp
    return LOGIT_BYTES * tokens * facts.number("model.vocab_size") // facts.tp // 2**30


@derived("derived.logits_gib", "int")
def logits_gib(facts: Facts) -> int:
    """Memory of one FP32 copy of the logits on the last pipeline stage, per rank, in GiB."""
    return _logits_gib(facts, facts.number("train.micro_batch_size"))


@derived("derived.min_logits_gib", "int")
def min_logits_gib(facts: Facts) -> int:
    """The same for one row, which no micro batch goes below."""
    return _logits_gib(facts, 1)


@derived("derived.gpu_memory_gib", "int")
def gpu_memory_gib(facts: Facts) -> int:
    """Memory of one GPU in GiB: as given, by GPU type, else that of the smallest type training is run on."""
    if facts.config.gpu_memory_gib is not None:
        return facts.config.gpu_memory_gib
    table: dict[str, int] = index()["gpu_memory_gib"]
    return table.get(facts.config.gpu or "", min(table.values()))


@derived("derived.ranks_per_sequence_needed", "int")
def ranks_per_sequence_needed(facts: Facts) -> int:
    """Context parallel ranks that a sequence needs under the token budget of one rank."""
    budget = facts.config.max_tokens_per_rank
    if budget is None:
        budget = facts.number("model.max_seqlen_per_dp_cp_rank")
    return -(-facts.number("model.seq_length") // max(1, budget))


@derived("derived.family", "str")
def family(facts: Facts) -> str:
    """Slug of the model family, "" when the model is known and has no opt-out."""
    config = facts.config
    if not config.family and not config.model_named:
        raise NeedsValue("model")
    return config.family
