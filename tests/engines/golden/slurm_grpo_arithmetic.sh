#!/bin/bash
#SBATCH --job-name=grpo-arithmetic
#SBATCH --output=/runs/RUN/logs/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@45
#SBATCH --no-requeue
#SBATCH --partition=cpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH hetjob
#SBATCH --partition=cpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1

export MESHCTL_IN_JOB=1
cd FOLDER || exit 4
exec PYTHON -m meshctl head --plan /runs/RUN/plan.json
