#!/bin/bash
#SBATCH --job-name=grpo
#SBATCH --output=/runs/RUN/logs/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@45
#SBATCH --no-requeue
#SBATCH --time=0-04:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH hetjob
#SBATCH --time=0-04:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1

export MESHCTL_IN_JOB=1
cd FOLDER || exit 4
exec PYTHON -m meshctl head --plan /runs/RUN/plan.json
