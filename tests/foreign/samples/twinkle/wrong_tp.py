"""DPO of all weights, with a reference on GPUs of its own."""

import twinkle
from pairs import interleaved
from twinkle import DeviceGroup, DeviceMesh
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.loss import DPOLoss
from twinkle.metric import DPOMetric
from twinkle.model import TransformersModel
from twinkle.processor import InputProcessor

MODEL_ID = "ms://Qwen/Qwen3-8B"
groups = [
    DeviceGroup(name="policy", ranks=[0, 1, 2, 3], device_type="GPU"),
    DeviceGroup(name="reference", ranks=[4, 5, 6, 7], device_type="GPU"),
]
policy_mesh = DeviceMesh.from_sizes(world_size=4, tp_size=2, dp_size=2)
ref_mesh = DeviceMesh.from_sizes(world_size=4, dp_size=4)
twinkle.initialize(mode="ray", nproc_per_node=8, groups=groups)


def preferences():
    dataset = Dataset(DatasetMeta("pairs.jsonl"))
    dataset.set_template("Template", model_id=MODEL_ID, max_length=2048)
    dataset.encode()
    return dataset


dataloader = DataLoader(dataset=preferences, batch_size=8, min_batch_size=8, device_mesh=policy_mesh)
policy = TransformersModel(model_id=MODEL_ID, device_mesh=policy_mesh, remote_group="policy")
policy.set_optimizer("AdamW", lr=5e-7, weight_decay=0.01)
policy.set_lr_scheduler("LinearWarmupScheduler", num_warmup_steps=20, num_training_steps=900)
policy.set_loss(DPOLoss(beta=0.2, label_smoothing=0.1))
policy.add_metric(DPOMetric, beta=0.2)
policy.set_processor(InputProcessor)
policy.set_template("Template", model_id=MODEL_ID)
reference = TransformersModel(model_id=MODEL_ID, device_mesh=ref_mesh, remote_group="reference")
reference.set_template("Template", model_id=MODEL_ID)

for epoch in range(2):
    for batch in dataloader:
        batch = interleaved(batch)
        outputs = reference.forward_only(inputs=batch)
        policy.forward_backward(inputs=batch, ref_outputs=outputs, gradient_accumulation_steps=4)
        policy.clip_grad_and_step(gradient_accumulation_steps=4)
policy.save("dpo")
