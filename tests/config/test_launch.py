"""Which command of a shell text starts the training."""

from __future__ import annotations

import pytest

from skill_run.config.launch import MAX_WRAPPERS, find_launch
from skill_run.config.shell import Script
from skill_run.errors import InputError


@pytest.mark.parametrize("wrapper", ["srun", "env"])
def test_wrappers_up_to_the_limit_are_followed(wrapper: str) -> None:
    launch = find_launch(Script(f"{wrapper} " * MAX_WRAPPERS + "python train.py a=1", "job.sh"), "job.sh")
    assert launch is not None
    assert launch.script.text == "train.py"


@pytest.mark.parametrize("wrapper", ["srun", "env", "srun env", "/usr/bin/srun --nodes=2"])
def test_wrappers_beyond_the_limit_are_refused_with_the_line(wrapper: str) -> None:
    script = Script("\n" + f"{wrapper} " * 20_000 + "python train.py", "job.sh")
    with pytest.raises(InputError, match=r"^job.sh:2: a command starts srun or env more than 16 times; "):
        find_launch(script, "job.sh")
