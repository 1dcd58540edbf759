"""Which Megatron-Bridge release to judge by: asked for, installed, implied by the input, or the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from packaging.version import Version

from skill_run.bridge.release import index, known_releases, load_release, matches, newest_release
from skill_run.errors import InputError
from skill_run.report.finding import BridgeChoice

DISTRIBUTION = "megatron-bridge"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Written names, class names and specifier hints of an input that tell its release.

    complete: the input is a full dump, so that a field it lacks counts against a release too.
    """

    names: Sequence[str]
    dataset_type: str | None
    hints: Sequence[tuple[str, str]]
    complete: bool = False


def normalise(asked: str) -> str:
    """Return a version a user typed in PEP 440 form (`v0.6.2`, `main`, `0.7.dev`); InputError when it is not one."""
    if not isinstance(asked, str):
        raise InputError(f"the Megatron-Bridge version must be text such as '{newest_release()}', not {asked!r:.40}")
    text = asked.strip()
    named = index()["names"].get(text.lower())
    if named is not None:
        return str(named)
    try:
        return str(Version(text))
    except ValueError as error:
        known = ", ".join(known_releases())
        raise InputError(
            f"'{asked[:60]}' is not a Megatron-Bridge version; recorded releases are {known}, and main"
        ) from error


def made_for(asked: str) -> str:
    """Return a version that something is to be made for, in PEP 440 form; InputError also when it is too old for that.

    What is read may be older than every recorded release and is judged by the oldest; what is made would be a guess.
    """
    version = normalise(asked)
    oldest = known_releases()[0]
    if Version(version).release[:2] < Version(oldest).release[:2]:
        raise InputError(f"Megatron-Bridge {version} is older than {oldest}, the oldest release that is known here")
    return version


def recorded_for(version: str) -> tuple[str, str]:
    """Return the recorded release to use for a version, and a clause that says why when it is another one.

    A release of the same minor series stands for its siblings, since names change only between minors; otherwise the
    newest recorded release not above the version, and the oldest recorded one for anything before it.
    """
    known = known_releases()
    if version in known:
        return version, ""
    wanted = Version(version)
    if not wanted.is_prerelease:
        for candidate in known:
            if Version(candidate).release[:2] == wanted.release[:2] and not Version(candidate).is_prerelease:
                return candidate, f"{version} is not recorded, {candidate} of the same series is used"
    below = [candidate for candidate in known if Version(candidate) <= wanted]
    if below:
        return below[-1], f"{version} is not recorded, {below[-1]} is the newest recorded release not above it"
    return known[0], f"{version} is older than every recorded release, {known[0]} is used"


def installed_version() -> str | None:
    """Return the version of the installed distribution from its metadata, without importing it."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def choose(asked: str | None, evidence: Evidence) -> BridgeChoice:
    """Choose the release: `asked`, else the installed one, else what the input implies, else the newest."""
    if asked is not None:
        version = normalise(asked)
        release, note = recorded_for(version)
        return BridgeChoice(version, release, note or "asked for")
    found = installed_version()
    if found is not None:
        try:
            version = normalise(found)
        except InputError:
            version = newest_release()
        release, note = recorded_for(version)
        return BridgeChoice(version, release, f"{DISTRIBUTION} {found} is installed" + (f"; {note}" if note else ""))
    return _implied(evidence)


@cache
def _known_names(version: str) -> frozenset[str]:
    return frozenset(load_release(version).written_names())


@cache
def _common_fields(version: str) -> frozenset[str]:
    fields = load_release(version).fields.items()
    sections = ("model", "ddp", "train", "checkpoint")
    return frozenset(name for name, spec in fields if not spec.foreign and name.partition(".")[0] in sections)


def _misfits(version: str, evidence: Evidence) -> list[str]:
    release = load_release(version)
    known = _known_names(version)
    wrong = [reason for specifier, reason in evidence.hints if not matches(specifier, version)] * 3
    wrong += [f"field {name}" for name in evidence.names if name not in known]
    if evidence.dataset_type is not None and evidence.dataset_type not in release.datasets:
        everywhere = {cls for known in known_releases() for cls in load_release(known).datasets}
        if evidence.dataset_type in everywhere:
            wrong += [f"class {evidence.dataset_type}"] * 3
    return wrong


def _only_known(evidence: Evidence) -> Evidence:
    everywhere = frozenset().union(*(_known_names(version) for version in known_releases()))
    told = [name for name in evidence.names if name in everywhere]
    return Evidence(told, evidence.dataset_type, evidence.hints, evidence.complete)


def implied(evidence: Evidence, wanted: str) -> BridgeChoice:
    """Return the release that an input is written for, when it is to become one for the recorded release `wanted`.

    The installed release says nothing about where a file comes from. An input that fits `wanted` as it stands is taken
    for one of it, except that a full dump lacks the fields of later releases.
    """
    best = _implied(evidence)
    known = _only_known(evidence)
    undecided = all(not _misfits(version, known) for version in known_releases()) and not evidence.complete
    if (best.release == wanted and not undecided) or _misfits(wanted, known):
        return best
    if evidence.complete and not _misfits(best.release, known):
        return best
    return BridgeChoice(wanted, wanted, f"the input fits {wanted} as it stands")


def _implied(evidence: Evidence) -> BridgeChoice:
    newest = newest_release()
    candidates = known_releases()
    evidence = _only_known(evidence)
    given = frozenset(evidence.names)
    misfits = {version: _misfits(version, evidence) for version in candidates}

    def badness(version: str) -> tuple[int, int, int]:
        missing = 0
        if evidence.complete:
            missing = len(_common_fields(version) - given)
        development = version != newest and Version(version) > Version(newest)
        return len(misfits[version]) + missing, int(development), -candidates.index(version)

    best = min(candidates, key=badness)
    fits_all = all(not misfits[version] for version in candidates if version != best)
    if fits_all and not evidence.complete:
        return BridgeChoice(
            best, best, f"nothing in the input tells the release, so the newest recorded one is used ({best})"
        )
    others = [version for version in candidates if len(misfits[version]) > len(misfits[best])]
    if others:
        example = next(
            (item for version in reversed(others) for item in misfits[version] if item not in misfits[best]), ""
        )
        return BridgeChoice(best, best, f"implied by the input: {example}; it does not fit {', '.join(others)}")
    return BridgeChoice(best, best, f"implied by the input: its fields are those of {best}")
