"""Turn files that torch.save wrote into one file of plain bytes. Runs alone, in an interpreter that has torch.

`python -I read_torch.py OUT LIMIT FILE...` loads each FILE with weights_only=True, so that nothing in it can run, and
writes OUT in the safetensors form: tensors under "0", "1", ..., and the rest as JSON under the metadata key "tree".
It says what went wrong as the last line on standard output, as JSON. It must run on any Python that torch supports.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from typing import Any

# Before 2.6 weights_only let a file run code (CVE-2025-32434), before 2.10 corrupt memory (CVE-2026-24747).
OLDEST_TORCH = (2, 10)
MAX_NODES = 1_000_000
MAX_DEPTH = 16
MAX_TEXT = 2**16
EXIT_INPUT = 2
EXIT_MISSING = 3
# What loading may take beside the data itself, in bytes.
_SLACK = 2**30


class Refused(Exception):
    """The data cannot be a batch; the text says why."""


class Flattener:
    """Takes tensors out of nested dicts and lists, within a limit of bytes."""

    def __init__(self, torch: Any, limit: int) -> None:
        self.torch = torch
        self.left = limit
        self.nodes = 0
        self.tensors: list[Any] = []
        self.known: dict[int, tuple[int, Any]] = {}

    def flatten(self, value: Any, depth: int = 0) -> Any:
        """Return `value` as JSON-ready data that names tensors by number."""
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise Refused("is nested too deep or holds too many values for a batch")
        if isinstance(value, self.torch.Tensor):
            return {"t": self.tensor(value)}
        if isinstance(value, dict):
            return {"d": [[self.key(key), self.flatten(item, depth + 1)] for key, item in value.items()]}
        if isinstance(value, (list, tuple, set, frozenset)):
            if all(type(item) in PLAIN for item in value):
                self.nodes += len(value)
                return {"v": list(value)}
            return {"l": [self.flatten(item, depth + 1) for item in value]}
        if value is None or isinstance(value, (bool, int, float)):
            return {"v": value}
        return {"v": self.text(str(value))}

    def key(self, key: Any) -> str:
        """Return a key as text; a rank number may be one."""
        if not isinstance(key, (str, int)):
            raise Refused(f"has a key of type {type(key).__name__}")
        return self.text(str(key))

    def text(self, text: str) -> str:
        """Return text, counted against the limit."""
        self.left -= len(text)
        if self.left < 0:
            raise Refused("holds more data than a batch can have")
        return text[:MAX_TEXT]

    def tensor(self, tensor: Any) -> int:
        """Keep a dense tensor as it lies in memory, and return its number; one that comes again keeps its number."""
        if id(tensor) in self.known:
            return self.known[id(tensor)][0]
        torch = self.torch
        plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
        if not plain or tensor.is_meta or tensor.is_complex():
            raise Refused("holds a sparse, quantized, complex or empty tensor, which no batch has")
        # A tensor may claim any shape over few bytes, so the size counts before it is copied.
        known = str(tensor.dtype).replace("torch.", "") in TYPES
        self.left -= tensor.numel() * (tensor.element_size() if known else 4)
        if self.left < 0:
            raise Refused("holds more data than a batch can have")
        self.known[id(tensor)] = len(self.tensors), tensor
        kept = tensor if known else tensor.to(torch.float32)
        self.tensors.append(kept.detach().resolve_neg().contiguous())
        return len(self.tensors) - 1


PLAIN = (type(None), bool, int, float)
TYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


def write(path: str, tensors: list[Any], tree: Any) -> None:
    """Write tensors and tree in the safetensors form."""
    header: dict[str, Any] = {"__metadata__": {"tree": json.dumps(tree)}}
    end = 0
    for number, tensor in enumerate(tensors):
        size = tensor.numel() * tensor.element_size()
        kind = TYPES[str(tensor.dtype).replace("torch.", "")]
        header[str(number)] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode("ascii")
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            stream.write(ctypes.string_at(tensor.data_ptr(), size) if size else b"")


def bound_memory(limit: int) -> None:
    """Let the process grow by no more than the data and some slack, where the system can do that."""
    try:
        import resource

        with open("/proc/self/statm") as stream:
            used = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2 * limit + _SLACK, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        pass


def tell(kind: str, reason: str, file: int = 0) -> None:
    """Print what went wrong."""
    print("\n" + json.dumps({"kind": kind, "reason": reason[:2000], "file": file}))


def main(arguments: list[str]) -> int:
    """Run the conversion; return 0, EXIT_INPUT or EXIT_MISSING."""
    out, limit, paths = arguments[0], int(arguments[1]), arguments[2:]
    try:
        import torch
    except Exception as error:
        tell("no torch", f"{type(error).__name__}: {error}")
        return EXIT_MISSING
    version = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if version is None or (int(version[1]), int(version[2])) < OLDEST_TORCH:
        tell("old torch", str(torch.__version__))
        return EXIT_MISSING
    bound_memory(limit)
    flattener = Flattener(torch, limit)
    trees = []
    for number, path in enumerate(paths):
        try:
            trees.append(flattener.flatten(torch.load(path, map_location="cpu", weights_only=True)))
        except Refused as error:
            tell("refused", str(error), number)
            return EXIT_INPUT
        except MemoryError:
            tell("memory", "", number)
            return EXIT_INPUT
        except Exception as error:
            tell("load", f"{type(error).__name__}: {error}", number)
            return EXIT_INPUT
    write(out, flattener.tensors, trees)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
