#!/bin/bash
# Eight tasks a node, and every task starts torchrun: the mistake that the reader must report.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8   # H100
#SBATCH --time=04:00:00

SCRIPT_NAME="run_recipe.py"
RECIPE="llama32_1b_sft_config"
OVERRIDES="train.train_iters=1000 optimizer.lr=0.0002"
MOUNTS=""

export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export NCCL_NVLS_ENABLE=0 HF_HOME=$HOME/hf
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}

if [ -n "$HF_TOKEN" ]; then
    echo "token set"
fi
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ ! -f "$HERE/$SCRIPT_NAME" ]; then
    echo "no script" >&2
    exit 1
fi

CMD="torchrun"
CMD="$CMD --nproc_per_node=$SLURM_GPUS_PER_NODE"
CMD="$CMD --nnodes=$SLURM_JOB_NUM_NODES"
CMD="$CMD --node_rank=\$SLURM_PROCID"
CMD="$CMD --master_addr=\$(scontrol show hostname \$SLURM_NODELIST | head -n1)"
CMD="$CMD $HERE/$SCRIPT_NAME --recipe $RECIPE"
if [ -n "$OVERRIDES" ]; then
    CMD="$CMD $OVERRIDES"
fi
LAUNCH="srun --mpi=pmix"
if [ -n "$MOUNTS" ]; then
    for mount in $MOUNTS; do
        LAUNCH="$LAUNCH --container-mounts=$mount"
    done
fi
$LAUNCH bash -c "$CMD"
