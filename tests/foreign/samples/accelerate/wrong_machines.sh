NODES=3
accelerate launch \
  --multi_gpu \
  --num_processes 8 \
  --num_machines $NODES \
  --machine_rank 0 \
  --main_process_ip 10.0.0.1 --main_process_port 29500 \
  train.py --batch_size 16
