"""Megatron: data, pipeline and tensor parallelism under Ray, on two nodes."""

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import MegatronModel

groups = [DeviceGroup(name="default", ranks=16, device_type="cuda")]
mesh = DeviceMesh.from_sizes(dp_size=1, pp_size=1, tp_size=16, sequence_parallel=True)
twinkle.initialize("ray", nproc_per_node=8, groups=groups, global_device_mesh=mesh, name="chats")

data = Dataset(DatasetMeta("chats.jsonl"))
data.set_template("Template", model_id="ms://Qwen/Qwen3-8B", max_length=2048)
data.encode()
loader = DataLoader(data, batch_size=64)
model = MegatronModel(
    model_id="ms://Qwen/Qwen3-8B", device_mesh=mesh, remote_group="default", mixed_precision="bf16"
)
model.set_optimizer("default", lr=1e-5)
model.set_lr_scheduler("default", lr_decay_steps=500, max_lr=1e-5)
for step, batch in enumerate(loader):
    if step == 500:
        break
    model.forward_backward(inputs=batch, micro_batch_size=4)
    model.clip_grad_and_step()
model.save("out")
