"""Set-ups with the real pip and real environments, from tiny locks: whole or not listed, resumable, in plain words."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from held_pipes import is_closed
from tiny_packages import CORE, Packages, kind_of

from skill_run.errors import EXIT_MISSING, InputError, MissingError
from skill_run.worker.environments import FOLDER_ENVIRONMENT, RECORD, Worker, list_workers
from skill_run.worker.install import build_worker, register_worker, remove_worker, setup_worker
from skill_run.worker.kinds import Kind, Pin
from skill_run.worker.packages import Progress, Sources, batches

# A build of a package that says it has begun, and then waits until it may go on.
BACKEND = """\
import os, zipfile
def build_wheel(folder, settings=None, metadata=None):
    if not os.path.exists({go!r}):
        os.write(os.open({begun!r}, os.O_WRONLY), b"begun")
        open({wait!r}).read()
    name = "slow-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("slow.py", "")
        archive.writestr("slow-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n")
        archive.writestr("slow-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        archive.writestr("slow-1.0.dist-info/RECORD", "")
    return name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
# The tool in a process of its own: what it is to build comes on standard input.
SET_UP = """
import pickle, sys
from skill_run.worker.install import build_worker
kind, sources = pickle.load(sys.stdin.buffer)
build_worker(kind, sources=sources)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """A worker that was built once for the tests that only look at it."""
    root = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_ENVIRONMENT, str(root / "workers"))
        packages = Packages(root / "packages")
        kind = kind_of(*packages.megatron())
        steps: list[Progress] = []
        worker = build_worker(kind, sources=packages.sources, on_progress=steps.append)
        yield Built(root / "workers", packages, kind, worker, steps)


@dataclasses.dataclass
class Built:
    """A worker, where it is and what was told meanwhile."""

    folder: Path
    packages: Packages
    kind: Kind
    worker: Worker
    steps: list[Progress]


def test_a_set_up_ends_with_a_worker_that_is_listed(built: Built) -> None:
    assert built.worker.versions == {"torch": "2.0.0", "megatron-core": "1.0.0"}
    assert list_workers() == [built.worker]
    record = json.loads((built.folder / "tiny" / RECORD).read_text("utf-8"))
    assert record["built"] is True
    assert record["lock"] == built.kind.locks["cpu"].digest
    assert sorted(path.name for path in (built.folder / "tiny").iterdir()) == ["venv", RECORD]


def test_a_set_up_tells_its_size_first_and_then_how_far_it_is(built: Built) -> None:
    first, *steps = built.steps
    assert first.note
    assert "MB to download, 1 MB on disk" in first.text
    done = [(step.packages_done, step.bytes_done) for step in steps if step.bytes]
    total = sum(pin.size for pin in built.kind.locks["cpu"].pins)
    assert done[-1] == (2, total)
    assert done == sorted(done)


def test_a_second_set_up_finds_it_ready_and_does_nothing(built: Built) -> None:
    steps: list[Progress] = []
    assert build_worker(built.kind, sources=Sources(no_index=True), on_progress=steps.append) == built.worker
    assert steps == []


def test_an_environment_that_is_there_becomes_a_worker_and_outlives_its_removal(built: Built) -> None:
    worker = register_worker(built.worker.command[0], name="mine")
    assert (worker.built, worker.versions) == (False, built.worker.versions)
    assert worker in list_workers()
    with pytest.raises(InputError, match="there is a worker mine already"):
        register_worker(built.worker.command[0], name="mine")
    with pytest.raises(InputError, match="worker mine is registered, not built"):
        build_worker(built.kind, name="mine")
    assert remove_worker("mine") is False
    assert list_workers() == [built.worker]
    assert Path(worker.command[0]).exists()


def test_a_container_command_becomes_a_worker_although_it_has_no_variables(built: Built, tmp_path: Path) -> None:
    """A stand-in for `docker run`: it drops the environment and the folder that it was started in."""
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\nshift 3\ncd /\nexec env -i {built.worker.command[0]} "$@"\n', "utf-8")
    program.chmod(0o755)
    worker = register_worker(f"{program} run 'my image' python", name="boxed", container=True)
    assert worker.command == (str(program), "run", "my image", "python")
    assert remove_worker("boxed") is False


def test_a_container_that_does_not_see_the_package_is_told_how_to_mount_it(built: Built, tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\nshift 3\ncd /\nexec {sys.executable} -s -P /elsewhere/$3\n", "utf-8")
    program.chmod(0o755)
    with pytest.raises(MissingError, match=r"worker container does not see \S+/skill_run; mount it there, such as -v"):
        register_worker(f"{program} run image python", container=True)
    assert list_workers() == [built.worker]


def test_an_environment_without_torch_cannot_be_a_worker(workers: Path) -> None:
    with pytest.raises(MissingError, match="has no torch and no megatron-core; a worker needs it"):
        register_worker(sys.executable)
    assert list_workers() == []


@pytest.mark.parametrize(
    ("command", "container", "sentence"),
    [
        ("/nowhere/python", False, "/nowhere/python is not a program that can be run"),
        ("/bin/cat", False, "/bin/cat is not a Python interpreter"),
        ("docker 'run", True, "--command cannot be read: No closing quotation"),
        ("", True, "must name a program"),
    ],
)
def test_a_command_that_is_none_is_refused(workers: Path, command: str, container: bool, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        register_worker(command, container=container)


def test_a_changed_lock_builds_anew(workers: Path, packages: Packages) -> None:
    torch, core = packages.megatron()
    build_worker(kind_of(torch, core), sources=packages.sources)
    more = packages.wheel("more", "1.0", {"more.py": ""})
    worker = build_worker(kind_of(torch, core, more), sources=packages.sources)
    assert list((workers / "tiny").glob("venv/lib/python*/site-packages/more.py"))
    assert list_workers() == [worker]
    assert remove_worker("tiny") is True
    assert [path.name for path in workers.iterdir()] == [".tiny.lock"]


def test_a_file_that_is_not_the_pinned_one_is_refused_and_what_is_left_can_be_removed(
    workers: Path, packages: Packages
) -> None:
    torch, core = packages.megatron()
    other = dataclasses.replace(core, digest="0" * 64)
    with pytest.raises(
        MissingError, match=r"the file of megatron-core 1\.0\.0 is not the one that the lock "
    ) as caught:
        build_worker(kind_of(torch, other), sources=packages.sources)
    assert caught.value.exit_code == EXIT_MISSING
    assert list_workers() == []
    assert (workers / "tiny").is_dir()
    assert remove_worker("tiny") is True
    assert not (workers / "tiny").exists()


def test_a_cut_download_is_told_and_the_next_set_up_goes_on(workers: Path, packages: Packages) -> None:
    torch, core = packages.megatron()
    path = next(packages.folder.glob("megatron_core*"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MissingError, match=r"the file of megatron-core 1\.0\.0 .* it was cut on its way"):
        build_worker(kind_of(torch, core), sources=packages.sources)
    assert list_workers() == []
    # A package that was being installed looks complete to pip.
    site = next((workers / "tiny").glob("venv/lib/python*/site-packages"))
    half = site / "megatron_core-1.0.0.dist-info"
    half.mkdir()
    (half / "METADATA").write_text("Metadata-Version: 2.1\nName: megatron-core\nVersion: 1.0.0\n", "utf-8")
    path.write_bytes(whole)
    steps: list[Progress] = []
    worker = build_worker(kind_of(torch, core), sources=packages.sources, on_progress=steps.append)
    assert "going on with a set-up that was cut: 1 packages are there" in [step.text for step in steps]
    assert list_workers() == [worker]
    assert (site / "megatron" / "core" / "__init__.py").is_file()


def test_a_package_that_does_not_work_is_never_listed(workers: Path, packages: Packages) -> None:
    torch = packages.wheel("torch", "2.0.0", {"torch/__init__.py": "raise OSError('libtorch.so: no such file')"})
    core = packages.wheel("megatron-core", "1.0.0", CORE)
    with pytest.raises(MissingError, match=r"the new worker does not work: OSError: libtorch\.so"):
        build_worker(kind_of(torch, core), sources=packages.sources)
    assert list_workers() == []


def test_a_set_up_that_is_killed_leaves_no_process_and_is_taken_up_again(workers: Path, packages: Packages) -> None:
    go, begun, wait = (str(packages.folder / name) for name in ("go", "begun", "wait"))
    os.mkfifo(begun)
    os.mkfifo(wait)
    backend = BACKEND.format(go=go, begun=begun, wait=wait)
    slow = packages.source("slow", "1.0", {"pyproject.toml": PROJECT, "backend.py": backend})
    kind = kind_of(*packages.megatron(), slow)
    tool = subprocess.Popen([sys.executable, "-c", SET_UP], stdin=subprocess.PIPE)
    assert tool.stdin is not None
    pickle.dump((kind, packages.sources), tool.stdin)
    tool.stdin.close()
    with open(begun, "rb") as stream:
        assert stream.read(5) == b"begun"
        tool.send_signal(signal.SIGKILL)
        tool.wait()
        # The end comes when the last process that the set-up started is gone.
        assert is_closed(stream.fileno())
    assert list_workers() == []
    torch = next((workers / "tiny").glob("venv/lib/python*/site-packages/torch")).stat().st_ino
    Path(go).touch()
    worker = build_worker(kind, sources=packages.sources)
    assert list_workers() == [worker]
    assert next((workers / "tiny").glob("venv/lib/python*/site-packages/torch")).stat().st_ino == torch


def test_two_set_ups_at_once_are_told_apart(workers: Path, packages: Packages) -> None:
    workers.mkdir()
    with open(workers / ".tiny.lock", "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(MissingError, match="worker tiny is being set up or removed by another process"):
            build_worker(kind_of(*packages.megatron()), sources=packages.sources)


def test_without_its_python_nothing_is_begun(
    workers: Path, packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(packages.folder))
    kind = dataclasses.replace(kind_of(*packages.megatron()), python="3.1")
    with pytest.raises(MissingError, match=r"Python 3\.1 with its venv module is not on PATH or in pyenv; install it"):
        build_worker(kind, sources=packages.sources)
    assert not (workers / "tiny").exists()


def test_a_disk_without_room_is_told_before_anything_is_made(workers: Path, packages: Packages) -> None:
    with pytest.raises(MissingError, match=r"MB free, and the set-up needs 1000000000000 MB; make room, or let"):
        build_worker(kind_of(*packages.megatron(), disk_mb=10**12), sources=packages.sources)
    assert not (workers / "tiny").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_is_told(small_disk: Path, packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_ENVIRONMENT, str(small_disk / "workers"))
    large = packages.wheel("large", "1.0", {"large.bin": bytes(64_000_000)})
    with pytest.raises(MissingError, match=r"the disk is full; make room where .* is, then run the same command again"):
        build_worker(kind_of(*packages.megatron(), large), sources=packages.sources)
    assert list_workers() == []


def test_a_folder_that_cannot_be_written_is_told(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_ENVIRONMENT, "/proc/skill-run")
    with pytest.raises(
        MissingError, match=r"/proc/skill-run cannot be written .*SKILL_RUN_WORKERS names another folder"
    ):
        build_worker(kind_of(*packages.megatron()), sources=packages.sources)


def test_the_second_build_of_torch_is_taken_where_the_first_is_not_to_be_had(workers: Path, packages: Packages) -> None:
    torch, core = packages.megatron()
    absent = Pin("torch", "2.0.0+cpu", "0" * 64, 1)
    first = kind_of(absent, core).locks["cpu"]
    second = dataclasses.replace(kind_of(torch, core).locks["cpu"], build="cuda-build")
    kind = dataclasses.replace(kind_of(torch, core), locks={"cpu": first, "cuda-build": second})
    with pytest.raises(
        MissingError, match=r"has torch 2\.0\.0\+cpu; .* or take --torch cuda-build \(0 MB to download\)"
    ):
        build_worker(kind, build="cpu", sources=packages.sources)
    steps: list[Progress] = []
    worker = build_worker(kind, sources=packages.sources, on_progress=steps.append)
    assert worker.versions["torch"] == "2.0.0"
    assert [step.text for step in steps if step.note and "the build for GPUs is taken: 0 MB" in step.text]


def test_a_folder_that_no_set_up_made_is_never_deleted(workers: Path, packages: Packages) -> None:
    kind = kind_of(*packages.megatron())
    precious = workers / kind.name / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("kept", "utf-8")
    with pytest.raises(InputError, match=r"is no worker's folder \(precious is there\)"):
        build_worker(kind, sources=packages.sources)
    assert precious.read_text("utf-8") == "kept"


def test_no_worker_is_built_through_a_link(workers: Path, packages: Packages, tmp_path: Path) -> None:
    kind = kind_of(*packages.megatron())
    (tmp_path / "elsewhere").mkdir()
    workers.mkdir()
    (workers / kind.name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link, so no worker is built there"):
        build_worker(kind, sources=packages.sources)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_names_kinds_and_builds_that_are_none_are_refused(workers: Path, packages: Packages) -> None:
    kind = kind_of(*packages.megatron())
    with pytest.raises(InputError, match=r"there is no kind of worker 'huge'; there are core-0\.16\.1 and cpu-0\.6\.2"):
        setup_worker("huge")
    with pytest.raises(InputError, match="tiny has no lock for --torch cuda-build; it has cpu"):
        build_worker(kind, build="cuda-build")
    for name in ("../tiny", "", ".hidden", "a/b", "x" * 65):
        with pytest.raises(InputError, match="cannot be a worker's name"):
            build_worker(kind, name=name)
    with pytest.raises(InputError, match="there is no worker 'tiny'"):
        remove_worker("tiny")


def test_pip_and_torch_come_first_and_sources_last() -> None:
    pins = [
        Pin(name, "1", "0" * 64, size) for name, size in (("a", 1), ("pip", 1), ("b", 10**9), ("c", 1), ("torch", 1))
    ]
    source = Pin("s", "1", "0" * 64, 1, source=True)
    order = [[pin.name for pin in batch] for batch in batches([source, *pins])]
    assert order == [["pip"], ["torch"], ["a"], ["b"], ["c"], ["s"]]


def test_a_file_on_this_machine_is_followed_like_one_from_an_index(built: Built) -> None:
    texts = [step.text for step in built.steps]
    assert "fetching torch 2.0.0" in texts
    assert "installing torch" in texts
