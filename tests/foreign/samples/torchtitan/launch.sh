#!/bin/bash
# Overrides of the TOML, and the ranks.
torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint head:29500 \
  --local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train \
  --job.config_file llama3_pretrain.toml --training.steps 800 --parallelism.tensor_parallel_degree 4
