"""Run in a worker: write a job's folder for another Bridge release and train it on two ranks by its entry script.

`python old_release.py PACKAGE_FOLDER JOB_FOLDER`, with $SKILL_RUN_RELEASE naming the release's packages. train.py and
what it imports are in the folder already.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

package = types.ModuleType("skill_run")
package.__path__ = [sys.argv[1]]
sys.modules["skill_run"] = package
sys.path.insert(0, os.environ["SKILL_RUN_RELEASE"])
STEPS = 3


def main() -> int:
    """Return the exit code of the ranks."""
    from skill_run.worker.inside import bridge_on_cpu, bridge_samples, cuda_on_cpu
    from skill_run.worker.inside.partition import install_partition

    folder = Path(sys.argv[2])
    os.environ["SKILL_RUN_SCRATCH"] = str(folder / "prepared")
    (folder / "prepared").mkdir()
    cuda_on_cpu.install()
    bridge_on_cpu.install()
    from skill_run.worker.inside import bridge_loop

    seen = {"sentinels": 0, "wrong_indices": 0, "without_boundaries": 0}
    # These releases hand on boundaries that end with -1, which our own index refuses and the kernel takes.
    install_partition(bridge_loop._watched_index(seen))
    from skill_run.worker.inside.bridge_parity import LAYOUTS
    from skill_run.worker.inside.launch_files import entry_script
    from skill_run.worker.inside.launch_ranks import be_ranks

    layout = LAYOUTS["cp2"]
    bridge_samples.write_tokenizer(folder / "tokenizer")
    bridge_samples.write_samples(folder / layout.data, ragged=layout.ragged)
    config = bridge_loop._config(layout, folder, seen)
    spec = config.model.transformer_layer_spec
    # A function of this file is none that a config may name.
    config.model.transformer_layer_spec = None
    config.to_yaml(str(folder / "config.yaml"))
    run = {
        "base": {"container": True},
        "settings": [{"field": "train.train_iters", "value": STEPS, "old": 1, "why": "a test"}],
        "function": "pretrain",
        "world_size": layout.ranks,
        "pack": True,
        "capture": 2,
        "checkpoints": str(folder / "checkpoints"),
        "resume": None,
    }
    (folder / "run.json").write_text(json.dumps(run), "ascii")
    (folder / "overrides.json").write_text("[]", "ascii")

    def change(config: Any) -> None:
        config.model.transformer_layer_spec = spec
        config.scheduler.lr_decay_iters = STEPS + 1

    import skill_run.worker.inside.launch_ranks as ranks

    ranks.change = change
    entry = entry_script(folder)
    sys.argv = [str(folder / "train.py"), "--pack"]
    entry.main(change)
    return be_ranks(folder, layout.ranks)


if __name__ == "__main__":
    sys.exit(main())
