accelerate launch --num_processes 1 --multi_gpu --mixed_precision bf16 train.py
