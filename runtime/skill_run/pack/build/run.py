"""`build_packs`: from a data set to the packed files that training reads, without starting training."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from skill_run.bridge import names as bridge_names
from skill_run.bridge.release import newest_release
from skill_run.bridge.version import made_for, recorded_for
from skill_run.errors import EXIT_FINDINGS, InputError
from skill_run.pack.assign import ALGORITHMS, Packs, arrange, assign_packs, bridge_packs
from skill_run.pack.assign.lengths import random_of
from skill_run.pack.build.files import write_metadata, write_rows, writes_npy
from skill_run.pack.build.names import metadata_file, packed_file, packed_folder
from skill_run.pack.build.report import PackReport, SplitReport, counts_of
from skill_run.pack.build.rows import rows_of
from skill_run.pack.samples import Preprocessing, Progress, SampleCounts, SampleOptions, read_samples
from skill_run.pack.samples.align import aligned_lengths, padding_is_trained
from skill_run.pack.samples.dataset_kwargs import options_of_kwargs
from skill_run.pack.samples.inputs import find_sources
from skill_run.pack.store import Store, StoreWriter, open_store

OnProgress = Callable[[Mapping[str, Any]], None]
SPLITS: Final = ("training", "validation")
_SPECS: Final = "dataset.offline_packing_specs"


class RefusedLossError(InputError):
    """Samples were cut, left out or have nothing to train on, and the caller refuses that."""

    exit_code = EXIT_FINDINGS


@dataclass(frozen=True, slots=True)
class _Job:
    """All that decides the files. dataset_kwargs: of the config that will read them, part of their folder's name."""

    out: Path
    options: SampleOptions
    pack_size: int
    tokenizer: Path | str | None
    tokenizer_name: str
    algorithm: str
    compat: bool
    max_sequences: int | None
    balance: bool
    seed: int
    workers: int
    skip_bad: bool
    refuse: tuple[str, ...]
    overwrite: bool
    keep_tokens: bool
    dataset_kwargs: Mapping[str, Any]
    on_progress: OnProgress

    def told(self, data: list[tuple[str, int, int]]) -> str:
        """Return a digest of the data and of all settings that decide a file's content."""
        made = (self.pack_size, self.algorithm, self.compat, self.max_sequences, self.balance, self.seed)
        return _digest([data, asdict(self.options), str(self.tokenizer), made, self.skip_bad])


def build_packs(
    data: Path | str,
    out: Path | str,
    *,
    pack_size: int,
    bridge: str | None = None,
    seq_length: int | None = None,
    pad_seq_to_mult: int | None = None,
    cp: int = 1,
    tp: int = 1,
    sp: bool = False,
    tokenizer: Path | str | None = None,
    tokenizer_name: str | None = None,
    algorithm: str | None = None,
    compat: bool = False,
    max_sequences: int | None = None,
    balance: bool = False,
    seed: int = 0,
    workers: int = 1,
    skip_bad: bool = False,
    refuse: tuple[str, ...] = (),
    overwrite: bool = False,
    keep_tokens: bool = False,
    dataset_kwargs: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    sample_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> PackReport:
    """Pack a data set into files that training reads instead of packing itself.

    data: JSON lines or Parquet, or a folder with training.jsonl and perhaps validation.jsonl. out: dataset root; files
    go where training looks for them below it. pack_size: tokens of a pack; seq_length: longest sample, the pack size
    otherwise. pad_seq_to_mult: derived from cp, tp and sp unless given. tokenizer_name: the model's name as the config
    has it, the tokenizer folder's otherwise. algorithm: as of assign_packs; compat: exactly the rows that the release
    makes for the seed. seed: dataset.seed of the config. refuse: losses that stop it (truncated, dropped, masked).
    dataset_kwargs: of the config, else {"pad_to_max_length": True} and what sample_options say. sample_options: further
    SampleOptions.

    A second call with the same data and settings makes nothing; one after an interruption goes on with the tokens that
    are whole. Raises InputError for what cannot be packed, MissingError without a package that is needed.
    """
    if not isinstance(data, str | Path):
        raise InputError(f"the data are named by a path, not by a value of type {type(data).__name__}")
    unknown = sorted(set(sample_options or ()) - {part.name for part in fields(SampleOptions)})
    if unknown:
        raise InputError(f"there is no option {', '.join(map(str, unknown))} of reading samples")
    _check_size(pack_size)
    release = made_for(bridge or newest_release())
    multiple = pad_seq_to_mult if pad_seq_to_mult is not None else _multiple(cp, tp, sp)
    kwargs = {"pad_to_max_length": True} if dataset_kwargs is None else dict(dataset_kwargs)
    options = SampleOptions(
        bridge=release,
        seq_length=seq_length or pack_size,
        pad_seq_to_mult=multiple,
        preprocessing=preprocessing,
        **{**options_of_kwargs(kwargs), **(sample_options or {})},
    )
    _check(pack_size, options, algorithm, compat, max_sequences, balance, refuse)
    splits = _splits(Path(data))
    if dataset_kwargs is None:
        kwargs |= _told_kwargs(options, read_samples(splits["training"], tokenizer=tokenizer, options=options).kind)
    random_of(seed)
    job = _Job(
        out=Path(out),
        options=options,
        pack_size=pack_size,
        tokenizer=tokenizer,
        tokenizer_name=tokenizer_name or (Path(tokenizer).name if tokenizer is not None else "unknown_tokenizer"),
        algorithm=algorithm or ("first_fit_shuffle" if compat else "histogram"),
        compat=compat,
        max_sequences=max_sequences,
        balance=balance,
        seed=seed,
        workers=workers,
        skip_bad=skip_bad,
        refuse=refuse,
        overwrite=overwrite,
        keep_tokens=keep_tokens,
        dataset_kwargs=kwargs,
        on_progress=on_progress or (lambda event: None),
    )
    if job.out.exists() and not job.out.is_dir():
        raise InputError(f"{job.out} is a file; give a folder for the packed files")
    folder = packed_folder(job.out, options, tokenizer=job.tokenizer_name, seed=seed, dataset_kwargs=job.dataset_kwargs)
    parts = [_Part(job, folder, split, path) for split, path in splits.items()]
    for part in parts if refuse else ():
        # Of all splits, before any file is written.
        _refuse(refuse, part.kept.counts if part.kept is not None else part.counts())
    made = tuple(part.report() for part in parts)
    metadata = metadata_file(folder, pack_size)
    write_metadata(metadata, [dict(split.metadata) for split in made])
    return _report(job, made, metadata)


def _told_kwargs(options: SampleOptions, kind: str) -> dict[str, Any]:
    """Return the dataset_kwargs that make training read samples in the same way, as far as options say more."""
    if options.preprocessing is not None or kind == "tokens":
        return {}
    if kind == "chat":
        return {"chat": True, "use_hf_tokenizer_chat_template": options.use_hf_tokenizer_chat_template}
    if not (options.prompt_column or options.completion_column or options.prompt_template):
        return {}
    template, label, cut = options.prompt_settings
    return {"prompt_template": template, "label_key": label, "truncation_field": cut}


def _multiple(cp: int, tp: int, sp: bool) -> int:
    if cp < 1 or tp < 1:
        raise InputError("context and tensor parallel sizes must be at least 1")
    return math.lcm(2 * cp if cp > 1 else 1, cp * tp if sp and tp > 1 else 1)


def _check_size(pack_size: object) -> None:
    if isinstance(pack_size, bool) or not isinstance(pack_size, int) or pack_size < 1:
        raise InputError(f"the pack size must be a whole number of at least 1, not {str(pack_size)[:60]}")


def _check(
    pack_size: int,
    options: SampleOptions,
    algorithm: str | None,
    compat: bool,
    max_sequences: int | None,
    balance: bool,
    refuse: tuple[str, ...],
) -> None:
    options.check()
    multiple = options.pad_seq_to_mult or 1
    if pack_size % multiple:
        raise InputError(
            f"the pack size {pack_size} is no multiple of pad_seq_to_mult {multiple}, so the padding behind the last "
            "sample could not be cut over the ranks"
        )
    if options.seq_length > pack_size:
        raise InputError(
            f"seq_length {options.seq_length} is longer than the pack of {pack_size} tokens, and upstream stops at a "
            "sample that does not fit"
        )
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise InputError(f"there is no packing algorithm '{algorithm[:60]}'; there are {', '.join(ALGORITHMS)}")
    if compat and (algorithm == "histogram" or max_sequences is not None or balance):
        raise InputError(
            "Megatron-Bridge has neither the histogram algorithm nor limits or balance, so compat excludes them"
        )
    unknown = set(refuse) - {"truncated", "dropped", "masked"}
    if unknown:
        raise InputError(f"{', '.join(sorted(unknown))} cannot be refused; truncated, dropped and masked can")


def _splits(data: Path) -> dict[str, Path]:
    """Return the splits that the data holds: training, and validation where the folder has it."""
    if data.is_dir():
        found = {split: data / f"{split}.jsonl" for split in SPLITS if (data / f"{split}.jsonl").is_file()}
        if "training" in found:
            return found
    return {"training": data}


class _Part:
    """One split of the data on its way to its file. kept: what made the file before, when nothing has changed since."""

    def __init__(self, job: _Job, folder: Path, split: str, data: Path) -> None:
        self._job = job
        self._split = split
        self._data = data
        self._path = packed_file(folder, split, job.pack_size, job.options.bridge)
        self._mark = self._path.with_name(f".{self._path.name}.skill-run.json")
        seen = _seen(data)
        self._digest = job.told(seen)
        self._scratch = _scratch(job, seen)
        self.kept = _kept(self._path, self._mark, self._digest)
        if self.kept is None and self._path.exists() and not job.overwrite:
            raise InputError(f"{self._path} is there and was made from other data or settings; --overwrite replaces it")

    def counts(self) -> SampleCounts:
        """Return what became of the samples, which are tokenised for that."""
        return counts_of(_stored(self._job, self._data, self._scratch).told["counts"])

    def report(self) -> SplitReport:
        """Make the file, unless it is there already with the same content."""
        if self.kept is not None:
            return self.kept
        report = _pack(self._job, _stored(self._job, self._data, self._scratch), self._split, self._path)
        told = {**_plain(report), "size": self._path.stat().st_size}
        self._mark.write_text(json.dumps({"digest": self._digest, "report": told}), "utf-8")
        if not self._job.keep_tokens:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return report


def _seen(data: Path) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of each file of the data."""
    files = [(str(source.path.resolve()), source.path.stat()) for source in find_sources(data)]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]


def _scratch(job: _Job, seen: list[tuple[str, int, int]]) -> Path:
    """Return the folder for the tokens of some data, read in the job's way."""
    return job.out / f".skill-run-pack-{_digest([seen, asdict(job.options), str(job.tokenizer), job.skip_bad])}"


def _kept(path: Path, mark: Path, digest: str) -> SplitReport | None:
    """Return the report of a file that was made before from the same data and settings."""
    try:
        held = json.loads(mark.read_text("utf-8"))
        if held["digest"] != digest or held["report"]["size"] != path.stat().st_size:
            return None
        told = {name: value for name, value in held["report"].items() if name != "size"}
        told["counts"] = counts_of(told["counts"])
        return SplitReport(**{**told, "made": False})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _plain(report: SplitReport) -> dict[str, Any]:
    told = {name: getattr(report, name) for name in SplitReport.__dataclass_fields__}
    return {**told, "counts": report.counts.to_dict(), "metadata": dict(report.metadata)}


def _stored(job: _Job, data: Path, scratch: Path) -> Store:
    """Return the samples of a split on disk, tokenised now or by a run before."""
    found = open_store(scratch)
    if found is not None:
        return found

    def told(progress: Progress) -> None:
        event = {"event": "progress", "text": f"{progress.samples:,} samples read", "done": progress.done_bytes}
        job.on_progress({**event, "total": progress.total_bytes})

    stream = read_samples(
        data,
        tokenizer=job.tokenizer,
        options=job.options,
        workers=job.workers,
        skip_bad=job.skip_bad,
        on_progress=told,
    )
    try:
        writer = StoreWriter(scratch)
    except OSError as error:
        raise InputError(f"{job.out} cannot be written: {error.strerror or error}") from error
    try:
        for block in stream:
            writer.add(tokens=block.tokens, masks=block.masks, lengths=block.lengths)
        counts = stream.counts.to_dict()
        writer.finish({"kind": stream.kind, "eos_id": stream.eos_id, "counts": counts})
    except OSError as error:
        raise InputError(
            f"{scratch} cannot be written: {error.strerror or error}; what is whole stays there for the next call"
        ) from error
    finally:
        writer.close()
    store = open_store(scratch)
    assert store is not None
    return store


def _pack(job: _Job, store: Store, split: str, path: Path) -> SplitReport:
    counts = counts_of(store.told["counts"])
    if not len(store.lengths):
        raise InputError(f"no sample of the {split} data is left to be packed")
    stored = aligned_lengths(store.lengths, job.options)
    runtime = stored - 1
    padded = bool((stored > store.lengths).any())
    end = store.told["eos_id"]
    if padded and end is None:
        raise InputError(
            "padding samples to the multiple needs the end-of-text token: give --tokenizer DIR or --eos-id N"
        )
    job.on_progress({"event": "progress", "text": "choosing packs", "done": 0, "total": 0})
    packs = _packs(job, runtime)
    rows = rows_of(
        store,
        packs,
        stored,
        padding=int(end or 0),
        padding_mask=int(padding_is_trained(job.options, store.told["kind"])),
    )

    def told(done: int) -> None:
        job.on_progress({"event": "progress", "text": "writing packs", "done": done, "total": len(packs)})

    write_rows(path, rows, job.options.bridge, told)
    return _figures(job, store, packs, runtime, split, path, counts)


def _packs(job: _Job, runtime: Any) -> Packs:
    if job.compat:
        return bridge_packs(runtime, job.pack_size, algorithm=job.algorithm, seed=job.seed)
    ids = assign_packs(
        runtime,
        job.pack_size,
        algorithm=job.algorithm,
        max_sequences=job.max_sequences,
        seed=job.seed,
        balance=job.balance,
    )
    return arrange(ids, seed=job.seed)


def _refuse(refused: tuple[str, ...], counts: SampleCounts) -> None:
    """Raise InputError when a kind of loss that is refused has happened; it names the first places."""
    losses = {
        "truncated": (counts.truncated,),
        "dropped": (counts.dropped_long, counts.dropped_short, counts.bad),
        "masked": (counts.all_masked,),
    }
    for kind in refused:
        for tally in losses[kind]:
            if tally.samples:
                places = ", ".join(tally.places[:5])
                raise RefusedLossError(
                    f"{tally.samples} samples are {kind}, which is refused; nothing was written ({places})"
                )


def _figures(
    job: _Job, store: Store, packs: Packs, runtime: Any, split: str, path: Path, counts: SampleCounts
) -> SplitReport:
    held = np.diff(packs.starts)
    tokens = np.add.reduceat(runtime[packs.order].astype(np.int64), packs.starts[:-1])
    total = int(tokens.sum())
    slots = len(packs) * job.pack_size
    kept = int(np.minimum(store.lengths - 1, runtime).sum(dtype=np.int64))
    metadata = {
        "dataset_max_seqlen": int(runtime.max()),
        "max_samples_per_bin": int(held.max()),
        "packing_factor": round(len(runtime) / len(packs), 2),
        "packing_efficiency": round(total / len(packs) / job.pack_size * 100, 2),
        "pack_size": job.pack_size,
        "min_packed_seqlen": int(tokens.min()),
    }
    return SplitReport(
        split=split,
        file=str(path),
        made=True,
        counts=counts,
        packs=len(packs),
        fill=kept / slots,
        alignment=(total - kept) / slots,
        sequences_mean=float(held.mean()),
        sequences_max=int(held.max()),
        metadata=metadata,
    )


def _report(job: _Job, splits: tuple[SplitReport, ...], metadata: Path) -> PackReport:
    bridge = job.options.bridge
    settings: dict[str, Any] = {
        "dataset.dataset_root": str(job.out),
        "dataset.seq_length": job.options.seq_length,
        "model.seq_length": job.options.seq_length,
        "dataset.seed": job.seed,
        **{f"dataset.dataset_kwargs.{name}": value for name, value in job.dataset_kwargs.items()},
        "dataset.enable_offline_packing": True,
        f"{_SPECS}.packed_sequence_size": job.pack_size,
        f"{_SPECS}.pad_seq_to_mult": job.options.pad_seq_to_mult,
        f"{_SPECS}.tokenizer_model_name": job.tokenizer_name,
        f"{_SPECS}.packed_train_data_path": splits[0].file,
        **{f"{_SPECS}.packed_val_data_path": split.file for split in splits if split.split == "validation"},
        f"{_SPECS}.packed_metadata_path": str(metadata),
        "train.micro_batch_size": 1,
    }
    recorded, _ = recorded_for(bridge)
    written = {
        bridge_names.to_written(name, recorded): value
        for name, value in settings.items()
        if bridge_names.exists(name, recorded)
    }
    notes = []
    if writes_npy(bridge):
        notes.append("0.3 reads .npy files only, which hold Python objects: memory grows with the data")
    return PackReport(
        bridge=bridge,
        out=str(job.out),
        pack_size=job.pack_size,
        pad_seq_to_mult=job.options.pad_seq_to_mult or 1,
        algorithm=job.algorithm + (" as upstream" if job.compat else ""),
        seed=job.seed,
        splits=splits,
        metadata_file=str(metadata),
        settings=written,
        notes=tuple(notes),
        commands=(f"skill-run inspect {splits[0].file} --bridge {bridge}",),
    )


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
