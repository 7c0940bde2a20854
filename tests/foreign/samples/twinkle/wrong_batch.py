"""Fine-tuning under torchrun: `torchrun --nproc_per_node 8 sft_local.py`."""

import twinkle
from peft import LoraConfig
from twinkle import DeviceMesh, get_logger
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel

logger = get_logger()
mesh = DeviceMesh.from_sizes(fsdp_size=4, dp_size=2)
twinkle.initialize(mode="local", global_device_mesh=mesh)


def train():
    data = Dataset(dataset_meta=DatasetMeta(dataset_id="chats.jsonl"))
    data.set_template(
        "Qwen3Template", model_id="hf://Qwen/Qwen3-8B", max_length=4096, truncation_strategy="right"
    )
    data.encode()
    loader = DataLoader(dataset=data, batch_size=12)
    model = TransformersModel(model_id="hf://Qwen/Qwen3-8B")
    config = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"])
    model.add_adapter_to_model("default", config, gradient_accumulation_steps=2)
    model.set_optimizer(optimizer_cls="AdamW", lr=1e-4)
    model.set_lr_scheduler(
        scheduler_cls="CosineWarmupScheduler", num_warmup_steps=5, num_training_steps=len(loader)
    )
    for step, batch in enumerate(loader):
        model.forward_backward(inputs=batch)
        model.clip_grad_and_step(max_grad_norm=0.5)
        if step % 20 == 0:
            logger.info(model.calculate_metric(is_training=True))
    model.save("last", save_optimizer=True)


train()
