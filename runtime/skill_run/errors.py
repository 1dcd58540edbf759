"""The errors that reach a user, and the exit code each one stands for."""

from __future__ import annotations

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
EXIT_INPUT = 2
EXIT_MISSING = 3


class SkillRunError(Exception):
    """Base of every error that is shown to a user: its text is one clear sentence."""

    exit_code = EXIT_INPUT


class InputError(SkillRunError):
    """The input cannot be used: unreadable, of a wrong type, out of range or not known."""


class BundleError(SkillRunError):
    """A card or a rule is wrong; the text starts with `file:line: `."""


class MissingError(SkillRunError):
    """A worker, an engine or an optional package that the call needs is not there."""

    exit_code = EXIT_MISSING
