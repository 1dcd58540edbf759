"""A draft as a complete Python script that torchrun or srun starts."""

from __future__ import annotations

from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.assignments import Writer, dataset_type
from skill_run.recipe.forms.literals import docstring, one_line
from skill_run.recipe.forms.names import home_of, recipe_symbol, step_symbol
from skill_run.recipe.forms.python_form import environment, imports


def render_script(draft: Draft) -> str:
    """Return a file that builds the config of a draft in `build()` and trains in `main()`.

    Raises InputError for a setting that names a class or function which the release does not have.
    """
    mode = "pretrain" if draft.task == "pretrain" else "finetune"
    recipe = recipe_symbol(draft.recipe, draft.bridge)
    step = step_symbol(draft, dataset_type(draft), mode)
    writer = Writer(draft)
    body = writer.write(1)
    used = {*writer.symbols, recipe, step, home_of("ConfigContainer", draft.bridge), home_of(mode, draft.bridge)}
    variables = environment(draft)
    lines = [
        docstring(_about(draft)),
        "",
        *([*variables, ""] if variables else []),
        *imports(used),
        "",
        "",
        "def build() -> ConfigContainer:",
        '    """Return the config of the recipe with the settings of this run."""',
        f"    cfg = {recipe.name}()",
        *body,
        *([""] if body else []),
        "    return cfg",
        "",
        "",
        "def main() -> None:",
        '    """Build the config and train."""',
        f"    {mode}(config=build(), forward_step_func={step.call or step.name})",
        "",
        "",
        'if __name__ == "__main__":',
        "    main()",
    ]
    return "\n".join(lines) + "\n"


def _about(draft: Draft) -> list[str]:
    where = f"{draft.world_size} {'GPU' if draft.world_size == 1 else 'GPUs'} ({one_line(draft.gpu).upper()})"
    return [
        one_line(draft.title),
        "",
        f"Megatron-Bridge {draft.bridge}, recipe {draft.recipe.name}, {where}.",
        "",
        *_launch(draft),
    ]


def _launch(draft: Draft) -> list[str]:
    """Return the torchrun line; nodes have up to 4 GPUs where a Grace CPU holds them, and up to 8 otherwise."""
    most = 4 if draft.gpu.lower().startswith("g") else 8
    per_node = next(count for count in range(most, 0, -1) if draft.world_size % count == 0)
    if draft.world_size == per_node:
        return [f"    torchrun --standalone --nproc_per_node={per_node} train.py"]
    return [
        f"    torchrun --nnodes={draft.world_size // per_node} --nproc_per_node={per_node} --node_rank=$NODE_RANK \\",
        "        --master_addr=$MASTER_ADDR --master_port=29500 train.py",
    ]
