"""Tiny packages, locks and kinds, so that the real pip builds real environments in seconds."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from skill_run.worker.kinds import Kind, Lock, Pin
from skill_run.worker.packages import Sources

TORCH = """\
__version__ = "2.0.0"
class version: cuda = None
class cuda: is_available = staticmethod(lambda: False)
class distributed: is_gloo_available = staticmethod(lambda: True)
"""
CORE = {"megatron/core/__init__.py": "__version__ = '1.0.0'\n", "megatron/core/package_info.py": "MAJOR = 1\n"}


class Packages:
    """A folder of package files that a lock can pin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    @property
    def sources(self) -> Sources:
        """Only this folder."""
        return Sources(find_links=(str(self.folder),), no_index=True)

    def wheel(self, name: str, version: str, files: Mapping[str, str | bytes]) -> Pin:
        """Write a wheel with `files` and return its pin."""
        distribution = name.replace("-", "_")
        info = f"{distribution}-{version}.dist-info"
        members = {
            **{path: data if isinstance(data, bytes) else data.encode() for path, data in files.items()},
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in members.items())
        path = self.folder / f"{distribution}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in members.items():
                archive.writestr(member, data)
            archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
        return self.pin(name, version, path)

    def source(self, name: str, version: str, files: Mapping[str, str]) -> Pin:
        """Write a source archive with `files` and return its pin."""
        path = self.folder / f"{name}-{version}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            members = {**files, "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
            for member, text in members.items():
                entry = tarfile.TarInfo(f"{name}-{version}/{member}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        return self.pin(name, version, path, source=True)

    def pin(self, name: str, version: str, path: Path, *, source: bool = False) -> Pin:
        """Return the pin of a file."""
        data = path.read_bytes()
        return Pin(name, version, hashlib.sha256(data).hexdigest(), len(data), source)

    def megatron(self) -> tuple[Pin, Pin]:
        """Write a torch and a megatron-core that do nothing, and return their pins."""
        torch = self.wheel("torch", "2.0.0", {"torch/__init__.py": TORCH})
        return torch, self.wheel("megatron-core", "1.0.0", CORE)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def kind_of(*pins: Pin, name: str = "tiny", disk_mb: int = 1) -> Kind:
    """Return a kind with one lock, for the Python that runs the tests."""
    lock = Lock("cpu", pins, disk_mb, 1)
    return Kind(name, "tests", f"{sys.version_info.major}.{sys.version_info.minor}", {"cpu": lock})
