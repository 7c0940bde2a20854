#!/bin/bash
#SBATCH --job-name=program-ddp
#SBATCH --output=/runs/RUN/logs/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@45
#SBATCH --requeue
#SBATCH --exclusive
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1

export MESHCTL_IN_JOB=1
cd FOLDER || exit 4
exec PYTHON -m meshctl head --plan /runs/RUN/plan.json
