"""The errors that reach a user: one family, each with its documented exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from skill_run import errors
from skill_run.errors import BundleError, InputError, MissingError, SkillRunError


@pytest.mark.parametrize(("kind", "code"), [(SkillRunError, 2), (InputError, 2), (BundleError, 2), (MissingError, 3)])
def test_an_error_has_its_exit_code(kind: type[SkillRunError], code: int) -> None:
    assert kind("a sentence").exit_code == code


def test_every_error_of_the_module_is_a_skill_run_error() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(kinds) == 4
    assert all(issubclass(kind, SkillRunError) for kind in kinds)


def test_the_text_of_an_error_is_its_sentence() -> None:
    assert str(InputError("conf.yaml is empty")) == "conf.yaml is empty"


def test_the_exit_codes_are_those_that_the_help_names() -> None:
    done = subprocess.run([sys.executable, "-m", "skill_run.cli", "--help"], capture_output=True, text=True, check=True)
    told = " ".join(done.stdout.split())
    assert f"{errors.EXIT_CLEAN} clean" in told
    assert f"{errors.EXIT_FINDINGS} findings at or above the asked level" in told
    assert f"{errors.EXIT_INPUT} wrong usage or unreadable input" in told
    assert f"{errors.EXIT_MISSING} something that the call needs is not installed" in told
