"""Keep what an assistant asks to read inside the folders that the user allowed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from skill_run.errors import InputError
from skill_run.report.safe import clip, printable

_SHOWN = 200


class Roots:
    """The allowed folders, and the only way from a name in a request to a path.

    Every path is followed to its real place first, so that neither `..` nor a symbolic link leads out.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        """Take the folders to allow; InputError when there is none or one is not a folder."""
        if not folders:
            raise InputError("name at least one folder that may be read")
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"{folder} is not a folder")
        self.folders = tuple(dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders))

    def find(self, name: str) -> Path:
        """Return the real path of an existing file or folder; a relative name is looked up in each root in turn.

        Raises InputError when the name leads out of the roots, whether or not something is there, or to nothing.
        """
        inside = False
        for candidate in self._candidates(name):
            if self.hold(candidate):
                inside = True
                if os.path.lexists(candidate):
                    return candidate
        if inside:
            raise InputError(f"{_shown(name)} is not there: no such file in {self}")
        raise InputError(
            f"{_shown(name)} is outside the folders that may be read ({self}); --root DIR allows another one"
        )

    def find_files(self, name: str) -> Path:
        """Return the real path of an existing file, or of a folder none of whose entries leads out of the roots."""
        found = self.find(name)
        if found.is_dir():
            self._check_files(found)
        return found

    def place(self, name: str) -> Path:
        """Return the real path of a folder to write to, which need not exist; a relative name lies in the first root.

        Raises InputError when the name, or a link in what is there already, leads out of the roots.
        """
        place = self._candidates(name)[0]
        if not self.hold(place):
            raise InputError(f"{_shown(name)} is outside the folders that may be written ({self})")
        for folder, below, files in os.walk(place):
            for entry in (*below, *files):
                path = os.path.join(folder, entry)
                if os.path.islink(path) and not self.hold(Path(os.path.realpath(path))):
                    raise InputError(f"{path} leads outside the folders that may be written ({self})")
        return place

    def find_model(self, name: str) -> str:
        """Return a model id as it is, or the real path of a folder or a config.json that `name` leads to.

        Raises InputError when it leads out of the roots.
        """
        try:
            found = self.find(name)
        except InputError:
            climbs = ".." in name.replace("\\", "/").split("/")
            if climbs or name.startswith((".", "/", "~")) or name.endswith(".json") or os.path.exists(name):
                raise
            return name
        if not self.hold(Path(os.path.realpath(found / "config.json"))):
            raise InputError(f"config.json in {_shown(name)} leads outside the folders that may be read ({self})")
        return str(found)

    def hold(self, path: Path) -> bool:
        """Tell whether a path that was already followed to its real place lies in a root."""
        return any(path == root or root in path.parents for root in self.folders)

    def house_folder(self, config: Path | None) -> Path | None:
        """Return the folder of house rules for a config (for text: of a root), None when there is none in the roots.

        Raises InputError when one of the rule files is a link that leads out.
        """
        from skill_run.bundle.load import house_folder

        starts = [config] if config is not None else [root / "config" for root in self.folders]
        for start in starts:
            found = house_folder(start)
            if found is not None and self.hold(real := Path(os.path.realpath(found))):
                self._check_files(real)
                return real
        return None

    def _check_files(self, folder: Path) -> None:
        for path in folder.iterdir():
            if not self.hold(Path(os.path.realpath(path))):
                raise InputError(f"{path} leads outside the folders that may be read ({self})")

    def _candidates(self, name: str) -> list[Path]:
        if not name.strip():
            raise InputError("the path is empty")
        try:
            paths = [name] if os.path.isabs(name) else [os.path.join(root, name) for root in self.folders]
            return [Path(os.path.realpath(path)) for path in paths]
        except (OSError, ValueError) as error:
            raise InputError(f"{_shown(name)} is not a path: {error}") from error

    def __str__(self) -> str:
        return ", ".join(map(str, self.folders))


def _shown(name: str) -> str:
    return printable(clip(name, _SHOWN))
