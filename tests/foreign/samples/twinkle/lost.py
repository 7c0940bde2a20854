"""Losses that meshctl does not have, and rows that code changes: the training would differ."""

import twinkle
from twinkle import DeviceMesh
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor

twinkle.initialize(mode="local", global_device_mesh=DeviceMesh.from_sizes(dp_size=4))
data = Dataset(DatasetMeta("ms://swift/self-cognition", data_slice=range(500)))
data.set_template("Qwen3Template", model_id="ms://Qwen/Qwen3-8B")
data.map(SelfCognitionProcessor("a model", "a lab"))
data.encode()
loader = DataLoader(dataset=data, batch_size=8)
model = TransformersModel(model_id="ms://Qwen/Qwen3-8B", mixed_precision="fp16")
model.set_optimizer("AdamW", lr=1e-5)
model.set_loss("CrossEntropyLoss")
for batch in loader:
    model.forward_backward(inputs=batch)
    model.clip_grad_and_step()
