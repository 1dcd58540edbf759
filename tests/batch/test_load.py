"""Every form of batch file, and every way to break one: arrays, or one sentence."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import math
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run.batch.inspect import inspect_batch
from skill_run.batch.load import find_files, load_source
from skill_run.batch.npz import read_npz
from skill_run.batch.safetensors import read_safetensors
from skill_run.errors import EXIT_MISSING, InputError, MissingError
from skill_run.pack.reader import Dataset

FUZZ = settings(deadline=None, derandomize=True, max_examples=150)
TOKENS = list(range(8))
BATCH: dict[str, Any] = {
    "tokens": [TOKENS],
    "loss_mask": [[0, 1, 1, 0, 0, 1, 1, 0]],
    "cu_seqlens_q": [[0, 4, 8]],
    "max_seqlen_q": [[4]],
}
# Written by the safetensors library 0.8.0 out of torch tensors.
REAL_SAFETENSORS = base64.b64decode(
    "kAEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJ0b2tlbl9jb3VudCI6Ils2XSIsImZvcm1hdCI6InB0IiwidG90YWxfdG9rZW5zIjoiNiJ9LCJ0b2tl"
    "bnMiOnsiZHR5cGUiOiJJNjQiLCJzaGFwZSI6WzEsNl0sImRhdGFfb2Zmc2V0cyI6WzAsNDhdfSwiY3Vfc2VxbGVuc19xIjp7ImR0eXBlIjoiSTMy"
    "Iiwic2hhcGUiOlszXSwiZGF0YV9vZmZzZXRzIjpbNDgsNjBdfSwibWF4X3NlcWxlbl9xIjp7ImR0eXBlIjoiSTMyIiwic2hhcGUiOltdLCJkYXRh"
    "X29mZnNldHMiOls2MCw2NF19LCJsb3NzX21hc2siOnsiZHR5cGUiOiJCRjE2Iiwic2hhcGUiOlsxLDZdLCJkYXRhX29mZnNldHMiOls2NCw3Nl19"
    "LCJwYWRkaW5nX21hc2siOnsiZHR5cGUiOiJCT09MIiwic2hhcGUiOlsxLDZdLCJkYXRhX29mZnNldHMiOls3Niw4Ml19fSAgAAAAAAAAAAABAAAA"
    "AAAAAAIAAAAAAAAAAwAAAAAAAAAEAAAAAAAAAAUAAAAAAAAAAAAAAAQAAAAGAAAABAAAAAAAgD+APwAAgD8AAAAAAAAAAQ=="
)


def pack_safetensors(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(dtype: Any = "I64", shape: Any = (2,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def refused(source: str | Path, **options: Any) -> str:
    """Return the one sentence with which a source is refused."""
    with pytest.raises(InputError) as caught:
        load_source(source, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


def as_plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


# safetensors


def test_a_real_safetensors_file_gives_its_arrays_and_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "batch.safetensors"
    path.write_bytes(REAL_SAFETENSORS)
    batch = load_source(path)
    assert isinstance(batch, dict)
    assert {key: as_plain(value) for key, value in batch.items()} == {
        "token_count": [6],
        "total_tokens": 6,
        "format": "pt",
        "tokens": [[0, 1, 2, 3, 4, 5]],
        "cu_seqlens_q": [0, 4, 6],
        "max_seqlen_q": 4,
        "loss_mask": [[0.0, 1.0, 1.0, 0.0, 1.0, 0.0]],
        "padding_mask": [[False] * 5 + [True]],
    }
    assert batch["cu_seqlens_q"].dtype == np.int32
    assert batch["loss_mask"].dtype == np.float32


def test_an_array_wins_over_metadata_of_the_same_name() -> None:
    header = {"__metadata__": {"tokens": "[9]"}, "tokens": entry()}
    data = pack_safetensors(header, np.arange(2).tobytes())
    assert as_plain(read_safetensors(Path("x"), data)["tokens"]) == [0, 1]


@pytest.mark.parametrize(
    ("header", "body", "told"),
    [
        ({"tokens": entry()}, bytes(8), "truncated"),
        ({"tokens": entry()}, bytes(24), "truncated or damaged"),
        ({"a": entry(), "b": entry(offsets=(8, 24))}, bytes(24), "begin at 8"),
        ({"a": entry(), "b": entry(offsets=(24, 40))}, bytes(40), "begin at 24"),
        ({"tokens": entry(shape=(10**8,), offsets=(0, 8 * 10**8))}, bytes(16), "truncated"),
        ({"tokens": entry(shape=(10**8,))}, bytes(16), "needs 800000000 bytes"),
        ({"tokens": entry(offsets=(16, 0))}, bytes(16), "has -16"),
        ({"tokens": entry(offsets=(-16, 0))}, bytes(16), "nothing usable"),
        ({"tokens": entry(offsets=(0, True))}, bytes(16), "nothing usable"),
        ({"tokens": entry(offsets=(0,))}, bytes(16), "nothing usable"),
        ({"tokens": entry(shape="2")}, bytes(16), "nothing usable"),
        ({"tokens": entry(shape=[1] * 40)}, bytes(16), "nothing usable"),
        ({"tokens": entry(dtype="F8_E4M3")}, bytes(16), "the type"),
        ({"tokens": entry(dtype=["I64"])}, bytes(16), "the type"),
        ({"tokens": 3}, bytes(16), "nothing usable"),
        ({"__metadata__": {"a": 1}}, b"", "text to text"),
        ([1], b"", "not a mapping"),
        (b"\xff\xfe", b"", "not UTF-8"),
        (b"{", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "nested too deep"),
    ],
)
def test_a_broken_safetensors_header_is_told_in_one_sentence(
    tmp_path: Path, header: Any, body: bytes, told: str
) -> None:
    path = tmp_path / "batch.safetensors"
    path.write_bytes(pack_safetensors(header, body))
    assert told in refused(path)


@pytest.mark.parametrize("length", [2**63, 2**24 + 1, 10**6])
def test_a_header_longer_than_the_file_is_refused_before_it_is_read(tmp_path: Path, length: int) -> None:
    path = tmp_path / "batch.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + bytes(100))
    assert f"claims {length} bytes" in refused(path)


@FUZZ
@given(st.integers(0, len(REAL_SAFETENSORS) - 1))
def test_a_safetensors_file_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(InputError):
        read_safetensors(Path("x"), REAL_SAFETENSORS[:length])


@FUZZ
@given(st.integers(0, len(REAL_SAFETENSORS) - 1), st.integers(1, 255))
def test_a_safetensors_file_with_a_flipped_byte_gives_arrays_or_a_sentence(at: int, change: int) -> None:
    data = bytearray(REAL_SAFETENSORS)
    data[at] ^= change
    with contextlib.suppress(InputError):
        assert isinstance(read_safetensors(Path("x"), bytes(data)), dict)


# npz


def test_an_npz_archive_gives_its_arrays_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    columns = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.savez_compressed(path, tokens=columns, loss_mask=np.array([True, False]), total_tokens=6, qkv_format="thd")
    batch = load_source(path)
    assert isinstance(batch, dict)
    assert as_plain(batch["tokens"]) == [[0, 1, 2], [3, 4, 5]]
    assert batch["loss_mask"].dtype == np.bool_
    assert (batch["total_tokens"], batch["qkv_format"]) == (6, "thd")


def test_an_npz_with_objects_is_refused_without_unpickling(tmp_path: Path, trap: Trap) -> None:
    path = tmp_path / "batch.npz"
    np.savez(path, tokens=np.array([trap.payload(), None], dtype=object), allow_pickle=True)
    assert "would have to be unpickled" in refused(path)
    assert not trap.sprung


def test_an_npz_that_unpacks_to_too_much_is_refused_by_its_declared_size(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, tokens=np.zeros(10**6, dtype=np.int64))
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match="would unpack to 8000128 bytes"):
        read_npz(path, 10**6)


def test_an_npz_of_very_many_parts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(4097):
            archive.writestr(f"{number}.npy", b"")
    assert "4097 parts" in refused(path)


def write_npz(path: Path, member: bytes, name: str = "tokens.npy") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, member)


def npy_bytes(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin1")
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + body


@pytest.mark.parametrize(
    ("member", "told"),
    [
        (
            npy_bytes("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }", bytes(8)),
            "8000000000000 bytes",
        ),
        (npy_bytes("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }", bytes(8)), "header is not sound"),
        (
            npy_bytes("{'descr': '<c16', 'fortran_order': False, 'shape': (1,), }", bytes(16)),
            "numbers and truth values",
        ),
        (npy_bytes("{'descr': '<U9', 'fortran_order': False, 'shape': (1,), }", bytes(36)), "numbers and truth values"),
        (npy_bytes("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", b""), "claims 8 bytes"),
        (npy_bytes("{'descr': " + "(" * 4000 + ")" * 4000 + "}"), "header is not sound"),
        (npy_bytes("{'descr': '<i8', 'fortran_order': False, 'shape': (1L,)}"), "header is not sound"),
        (npy_bytes("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1,)}"), "header is not sound"),
        (npy_bytes("{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,)}"), "numbers are needed"),
        (npy_bytes("{'descr': '<i8'}"), "header is not sound"),
        (npy_bytes("{}", version=b"\x09\x00"), "no array file"),
        (b"\x93NUMPY", "no array file"),
        (b"", "no array file"),
    ],
)
def test_a_broken_array_in_an_npz_is_told_in_one_sentence(tmp_path: Path, member: bytes, told: str) -> None:
    path = tmp_path / "batch.npz"
    write_npz(path, member)
    assert told in refused(path)


def test_a_part_that_is_no_array_is_refused(tmp_path: Path) -> None:
    write_npz(tmp_path / "batch.npz", b"x", "run.sh")
    assert "run.sh" in refused(tmp_path / "batch.npz")


def test_an_encrypted_or_damaged_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    np.savez(path, tokens=np.arange(400))
    data = bytearray(path.read_bytes())
    encrypted = bytearray(data)
    at = encrypted.index(b"PK\x01\x02")
    encrypted[6] |= 1
    encrypted[at + 8] |= 1
    path.write_bytes(encrypted)
    assert "is damaged" in refused(path)
    data[300] ^= 255
    path.write_bytes(data)
    assert "is damaged" in refused(path)


def test_an_npz_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    np.savez(path, tokens=np.arange(4))
    data = path.read_bytes()
    for length in range(1, len(data), 7):
        path.write_bytes(data[:length])
        refused(path)


# JSON


def test_a_json_batch_is_loaded_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "batch.json"
    path.write_text(json.dumps(BATCH), "utf-8")
    assert load_source(path) == BATCH


def test_nan_and_infinity_of_a_json_mask_reach_the_checks(tmp_path: Path) -> None:
    path = tmp_path / "batch.json"
    path.write_text('{"tokens": [1, 2], "loss_mask": [NaN, Infinity]}', "utf-8")
    batch = load_source(str(path))
    assert isinstance(batch, dict)
    assert math.isnan(batch["loss_mask"][0])


def test_one_json_line_is_one_batch(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text(f"\n{json.dumps(BATCH)}\n\n", "utf-8")
    assert load_source(path) == BATCH


@pytest.mark.parametrize("name", ["batches.jsonl", "batches.json"])
def test_one_of_several_batches_is_picked_by_its_number(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    batches = [{**BATCH, "total_tokens": number} for number in (1, 2, 3)]
    if name.endswith("l"):
        path.write_text("\n".join(map(json.dumps, batches)), "utf-8")
    else:
        path.write_text(json.dumps(batches), "utf-8")
    assert f"holds 3 batches; name one of them: {path}#1 to {path}#3" in refused(path)
    assert load_source(f"{path}#2") == batches[1]
    assert "#4 is not there" in refused(f"{path}#4")
    assert "#0 is not there" in refused(f"{path}#0")


def test_a_number_sign_in_a_real_name_is_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "batch#1.json"
    path.write_text(json.dumps(BATCH), "utf-8")
    path.rename(tmp_path / "batch.json#1")
    (tmp_path / "batch.json").write_text("[]", "utf-8")
    assert "tells no form" in refused(tmp_path / "batch.json#1")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", b"[1, 2]", "holds no batch"),
        ("a.json", b"3", "holds no batch"),
        ("a.json", b"[]", "a list of 0 items"),
        ("a.json", b"null", "not null"),
        ("a.json", b"\xff{}", "not UTF-8"),
        ("a.json", b"{", "not valid JSON"),
        ("a.json", b"[" * 200_000, "nested too deep"),
        ("a.json", b"[" + b"9" * 5000 + b"]", "too many digits"),
        ("a.jsonl", b'{"a": 1}\n{"b"', "a.jsonl:2: this line is not valid JSON"),
        ("a.jsonl", b"{}\n" + b"[" * 200_000, "a.jsonl:2: the JSON is nested too deep"),
        ("a.json", b"", "is empty"),
        ("128_metadata.jsonl", b"[{}]", "packing metadata"),
    ],
)
def test_broken_json_is_told_in_one_sentence(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert told in refused(tmp_path / name)


def test_json_rows_of_packs_are_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"seq_start_id": [0, 7, 18], "input_ids_len": 31}\n' * 3, "utf-8")
    found = load_source(path)
    assert isinstance(found, Dataset)
    assert (found.kind, found.files) == ("json", (path,))


# Names, folders, globs


@pytest.mark.parametrize("name", ["batch.bin", "batch", "batch.yaml"])
def test_a_name_that_tells_no_form_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert "known are .safetensors" in refused(tmp_path / name)


@pytest.mark.parametrize("source", ["", "a\0b", "nothing.pt", "nothing*.pt", "x" * 5000, "nothing.pt#3"])
def test_a_source_that_is_not_there_is_refused(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(source)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".json", ".pt", ".parquet", ".npy", ".arrow"])
def test_an_empty_file_of_any_form_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.touch()
    told = refused(path, python=sys.executable)
    assert "is empty" in told or "no archive" in told


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    assert "not a regular file" in refused(tmp_path / "a.safetensors")


def test_packed_files_of_a_folder_are_one_dataset_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.pq", "a.npy", "128_metadata.jsonl", "x.jsonl.idx.npy", ".hidden.parquet", "note.txt"):
        (tmp_path / name).write_bytes(b"x")
    found = load_source(tmp_path)
    assert isinstance(found, Dataset)
    assert found.kind == "parquet"
    assert [path.name for path in found.files] == ["a.pq", "b.parquet"]


def test_a_glob_names_packed_files(tmp_path: Path) -> None:
    for name in ("shard_1.parquet", "shard_0.parquet", "other.parquet"):
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in find_files(f"{tmp_path}/shard_*.parquet").files] == [
        "shard_0.parquet",
        "shard_1.parquet",
    ]
    (tmp_path / "shard_2.npy").write_bytes(b"x")
    assert "several kinds" in refused(f"{tmp_path}/shard_*")


def test_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x", "utf-8")
    assert "names no file" in refused(tmp_path)


def test_a_folder_with_one_batch_is_that_batch_and_with_several_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(BATCH), "utf-8")
    assert load_source(tmp_path) == BATCH
    (tmp_path / "b.json").write_text(json.dumps(BATCH), "utf-8")
    assert "holds 2 files that may be batches" in refused(tmp_path)


def test_a_packed_file_has_no_numbered_batches(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    assert "inspected as a whole" in refused(f"{tmp_path}/a.parquet#1")


def test_files_of_several_ranks_are_one_batch_by_rank(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        (tmp_path / f"batch_rank{rank}_0.json").write_text(json.dumps({**BATCH, "total_tokens": rank}), "utf-8")
    (tmp_path / "info.json").write_text("{}", "utf-8")
    found = load_source(tmp_path)
    assert isinstance(found, dict)
    assert {name: batch["total_tokens"] for name, batch in found.items()} == {"rank0": 0, "rank2": 2, "rank10": 10}
    assert list(found) == ["rank0", "rank2", "rank10"]


def test_several_batches_of_each_rank_must_be_told_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        for step in (0, 1):
            (tmp_path / f"rank{rank}_{step}.json").write_text(json.dumps(BATCH), "utf-8")
    assert f"such as {tmp_path}/rank*_0.json" in refused(tmp_path)
    found = load_source(f"{tmp_path}/rank*_1.json")
    assert list(found) == ["rank0", "rank1"]  # type: ignore[arg-type]


def test_a_glob_of_files_that_are_no_ranks_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(BATCH), "utf-8")
    assert "neither packed files nor one batch of each rank" in refused(f"{tmp_path}/*.json")
    for name in ("rank0.json", "rank1.npz"):
        (tmp_path / name).write_text(json.dumps(BATCH), "utf-8")
    assert "several forms" in refused(f"{tmp_path}/rank*")


# torch


class Trap:
    """A payload that leaves a mark when it runs."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "ran"

    def payload(self, function: str = "system") -> Any:
        """Return an object whose pickle runs code when it is loaded."""
        mark = str(self.mark)

        class Payload:
            def __reduce__(self) -> tuple[Any, ...]:
                if function == "eval":
                    return eval, (f"open({mark!r}, 'w')",)
                return os.system, (f"touch {mark}",)

        return Payload()

    @property
    def sprung(self) -> bool:
        """Whether the payload ran."""
        return self.mark.exists()


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


# What torch writes for the tests, by the name of the file.
TORCH_FILES = {
    "all.pt": "{'tokens': A.reshape(2, 3), 'alias': A[1:4], 'max': torch.tensor(4, dtype=torch.int32),"
    " 'half': torch.tensor([1.5], dtype=torch.bfloat16), 'mask': torch.tensor([True, False]),"
    " 'empty': torch.zeros(0, 3), 'turned': A.reshape(2, 3).T, 'none': None, 'text': 'thd', 'nan': float('nan'),"
    " 'nested': {'list': [1, 2.5, False, None, torch.arange(2)], 3: (4,)}}",
    "small.pth": "{'tokens': torch.arange(3)}",
    "long.pt": "{'tokens': torch.arange(8)[None], 'cu_seqlens_q': torch.tensor([[0, 4, 8]]),"
    " 'max_seqlen_q': torch.tensor([[4]], dtype=torch.int32)}",
    "ranks/rank0_0.pt": "{'tokens': torch.full((2,), 0)}",
    "ranks/rank1_0.pt": "{'tokens': torch.full((2,), 1)}",
    "several.pt": "[{'tokens': torch.zeros(1)}, {'tokens': torch.ones(1)}]",
    "bare.pt": "torch.ones(1)",
    "claim.pt": "{'tokens': torch.zeros(1).expand(10**12)}",
    "shared.pt": "{'a': many([torch.zeros(1)], 12, 10)}",
    "deep.pt": "{'a': many(1, 40, 1)}",
    "sparse.pt": "{'a': torch.zeros(2, 2).to_sparse()}",
    "complex.pt": "{'a': torch.zeros(2, dtype=torch.complex64)}",
    "key.pt": "{(1, 2): 3}",
    "big.pt": "{'a': torch.zeros(10**5)}",
    "system.pt": "{'tokens': A, 'x': Payload(os.system, 'touch ran_system.pt')}",
    "eval.pt": "{'tokens': A, 'x': Payload(eval, 'open(\"ran_eval.pt\", \"w\")')}",
    "system_legacy.pt": "{'tokens': A, 'x': Payload(os.system, 'touch ran_system_legacy.pt')}",
}
WRITER = """
import json, os, sys, torch
A = torch.arange(6)
def many(item, depth, width):
    for _ in range(depth):
        item = [item] * width
    return item
class Payload:
    def __init__(self, function, argument): self.call = function, (argument,)
    def __reduce__(self): return self.call
os.mkdir("ranks")
for name, text in json.loads(sys.argv[1]).items():
    torch.save(eval(text), name, _use_new_zipfile_serialization="legacy" not in name)
"""


def run_torch(python: str, folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [python, "-W", "ignore", "-c", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def torch_files(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    run_torch(torch_python, folder, WRITER, json.dumps(TORCH_FILES))
    whole = (folder / "small.pth").read_bytes()
    (folder / "cut.pt").write_bytes(whole[:700])
    (folder / "zeros.pt").write_bytes(bytes(1000))
    with (
        zipfile.ZipFile(folder / "big.pt") as stored,
        zipfile.ZipFile(folder / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    return folder


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has no package at all."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def test_a_pt_file_without_an_interpreter_is_a_missing_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("this interpreter has torch, so it reads the file itself")
    monkeypatch.delenv("SKILL_RUN_PYTHON", raising=False)
    (tmp_path / "a.pt").write_bytes(b"x")
    with pytest.raises(MissingError, match=r"--python PATH or \$SKILL_RUN_PYTHON") as caught:
        load_source(tmp_path / "a.pt")
    assert caught.value.exit_code == EXIT_MISSING


@pytest.mark.parametrize("python", ["no-such-python", "/nowhere/python", "a\nb; touch x"])
def test_an_interpreter_that_is_not_there_is_a_missing_part(tmp_path: Path, python: str) -> None:
    (tmp_path / "a.pt").write_bytes(b"x")
    with pytest.raises(MissingError, match="is no program that can be started"):
        load_source(tmp_path / "a.pt", python=python)


def test_an_interpreter_without_torch_is_a_missing_part(tmp_path: Path, bare_python: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"x")
    with pytest.raises(MissingError, match="cannot import torch"):
        load_source(tmp_path / "a.pt", python=bare_python)


@pytest.mark.parametrize("version", ["2.5.1", "2.9.1+cu130", "1.13.0", "odd"])
def test_a_torch_whose_safe_loading_is_not_safe_is_refused(tmp_path: Path, bare_python: Path, version: str) -> None:
    (tmp_path / "a.pt").write_bytes(b"x")
    module = next(bare_python.parents[1].glob("lib/python*/site-packages")) / "torch.py"
    module.write_text(f"__version__ = {version!r}\n", "utf-8")
    try:
        with pytest.raises(MissingError, match=r"torch 2\.10 or newer"):
            load_source(tmp_path / "a.pt", python=bare_python)
    finally:
        module.unlink()


def test_a_program_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"x")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho '{\"kind\": 3}'\nexit 0\n", "utf-8")
    program.chmod(0o755)
    assert "was not read" in refused(tmp_path / "a.pt", python=program)
    program.write_text("#!/bin/sh\nkill -9 $$\n", "utf-8")
    assert "needs more memory" in refused(tmp_path / "a.pt", python=program)
    program.write_text("not a program", "utf-8")
    with pytest.raises(MissingError, match="cannot be started"):
        load_source(tmp_path / "a.pt", python=program)


def test_everything_a_batch_can_hold_survives(torch_python: str, torch_files: Path) -> None:
    batch = load_source(torch_files / "all.pt", python=torch_python)
    assert isinstance(batch, dict)
    assert math.isnan(batch.pop("nan"))
    nested = batch.pop("nested")
    assert nested["list"][4].tolist() == [0, 1]
    assert (nested["list"][:4], nested["3"]) == ([1, 2.5, False, None], [4])
    assert {key: as_plain(value) for key, value in batch.items()} == {
        "tokens": [[0, 1, 2], [3, 4, 5]],
        "alias": [1, 2, 3],
        "max": 4,
        "half": [1.5],
        "mask": [True, False],
        "empty": [],
        "turned": [[0, 3], [1, 4], [2, 5]],
        "none": None,
        "text": "thd",
    }
    assert (batch["max"].dtype, batch["empty"].shape) == (np.int32, (0, 3))


def test_the_environment_names_the_interpreter(
    torch_python: str, torch_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILL_RUN_PYTHON", torch_python)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    batch = load_source(torch_files / "small.pth")
    assert isinstance(batch, dict)
    assert as_plain(batch["tokens"]) == [0, 1, 2]


def test_the_interpreter_is_found_by_its_name_on_the_path(
    torch_python: str, torch_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(torch_python).parent))
    batch = load_source(torch_files / "small.pth", python=Path(torch_python).name)
    assert isinstance(batch, dict)
    assert as_plain(batch["tokens"]) == [0, 1, 2]


def test_a_batch_from_torch_is_inspected(torch_python: str, torch_files: Path) -> None:
    report = inspect_batch(torch_files / "long.pt", python=torch_python)
    assert [finding.rule for finding in report.findings] == ["batch-boundaries-are-int32"]


def test_files_of_several_ranks_from_torch_are_loaded_at_once(torch_python: str, torch_files: Path) -> None:
    found = load_source(torch_files / "ranks", python=torch_python)
    assert isinstance(found, dict)
    assert {name: as_plain(batch["tokens"]) for name, batch in found.items()} == {"rank0": [0, 0], "rank1": [1, 1]}


def test_one_of_several_batches_from_torch_is_picked(torch_python: str, torch_files: Path) -> None:
    assert "holds 2 batches" in refused(torch_files / "several.pt", python=torch_python)
    batch = load_source(f"{torch_files}/several.pt#2", python=torch_python)
    assert isinstance(batch, dict)
    assert as_plain(batch["tokens"]) == [1.0]


@pytest.mark.parametrize("name", ["system.pt", "eval.pt", "system_legacy.pt"])
def test_a_payload_in_a_torch_file_never_runs(torch_python: str, torch_files: Path, name: str) -> None:
    mark = torch_files / f"ran_{name}"
    told = refused(torch_files / name, python=torch_python)
    assert not mark.exists()
    assert "asks for" in told
    assert "weights_only" not in told
    # The payload is real: loaded the unsafe way, it runs.
    run_torch(torch_python, torch_files, f"import torch; torch.load({name!r}, weights_only=False)")
    assert mark.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_plain_pickle_with_the_name_of_a_torch_file_never_runs(
    tmp_path: Path, torch_python: str, trap: Trap, protocol: int
) -> None:
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(trap.payload(), protocol=protocol))
    refused(tmp_path / "evil.pt", python=torch_python)
    assert not trap.sprung
    pickle.loads((tmp_path / "evil.pt").read_bytes())
    assert trap.sprung


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bare.pt", "holds no batch"),
        ("claim.pt", "more data than a batch"),
        ("shared.pt", "too many values"),
        ("deep.pt", "nested too deep"),
        ("sparse.pt", "sparse"),
        ("complex.pt", "complex"),
        ("key.pt", "a key of type tuple"),
        ("cut.pt", "truncated"),
        ("zeros.pt", "truncated"),
        ("packed.pt", "compressed parts"),
    ],
)
def test_a_torch_file_that_is_no_batch_is_told_in_one_sentence(
    torch_python: str, torch_files: Path, name: str, told: str
) -> None:
    assert told in refused(torch_files / name, python=torch_python)
