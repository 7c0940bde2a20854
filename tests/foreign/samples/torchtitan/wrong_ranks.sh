torchrun --nproc_per_node=8 -m torchtitan.train --model.name llama3 --model.flavor 8B \
  --model.hf_assets_path ./assets/hf/Llama-3.1-8B --training.dataset c4 --training.seq_len 8192 \
  --training.local_batch_size 1 --training.steps 500 --lr_scheduler.warmup_steps 50 \
  --parallelism.data_parallel_shard_degree 4 \
  --parallelism.tensor_parallel_degree 4
