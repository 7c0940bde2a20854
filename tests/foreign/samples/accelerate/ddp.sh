#!/bin/bash
#SBATCH --job-name=captions
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
export HF_HUB_OFFLINE=1
GPUS_PER_NODE=8
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun accelerate launch \
    --multi_gpu \
    --num_machines 2 \
    --num_processes 16 \
    --machine_rank $SLURM_NODEID \
    --main_process_ip $HEAD \
    --main_process_port 29400 \
    --rdzv_backend c10d \
    --mixed_precision bf16 \
    --max_restarts 2 \
    train.py --model Qwen/Qwen3-8B --lr 2e-5 --epochs 3 --gradient_checkpointing
