"""GRPO of all weights with a KL penalty; the sampler is divided over two GPUs, and the reward counts on CPUs."""

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.advantage import GRPOAdvantage
from twinkle.checkpoint_engine import CheckpointEngineManager
from twinkle.data_format import SamplingParams
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.loss import GSPOLoss
from twinkle.model import TransformersModel
from twinkle.sampler import vLLMSampler

model_mesh = DeviceMesh.from_sizes(world_size=8, fsdp_size=8, ulysses_size=3)
sampler_mesh = DeviceMesh.from_sizes(world_size=4, dp_size=4)
twinkle.initialize(
    mode="ray",
    nproc_per_node=8,
    groups=[
        DeviceGroup(name="actor", ranks=8, device_type="GPU"),
        DeviceGroup(name="sampler", ranks=8, device_type="GPU", gpus_per_worker=2),
    ],
)


def questions():
    found = Dataset(DatasetMeta("prompts.jsonl"))
    found.set_template("Template", model_id="Qwen/Qwen3-8B", max_length=512)
    return found


actor = TransformersModel(model_id="Qwen/Qwen3-8B", device_mesh=model_mesh, remote_group="actor")
actor.set_optimizer("AdamW", lr=1e-6)
actor.set_loss(GSPOLoss, epsilon=3e-4, epsilon_high=4e-4, beta=0.001)
reference = TransformersModel(model_id="Qwen/Qwen3-8B", device_mesh=model_mesh, remote_group="actor")
sampler = vLLMSampler(model_id="Qwen/Qwen3-8B", device_mesh=sampler_mesh, remote_group="sampler")
manager = CheckpointEngineManager(model=actor, sampler=sampler)
loader = DataLoader(dataset=questions, batch_size=64, device_mesh=model_mesh, remote_group="actor")
advantage = GRPOAdvantage()


def rewards(answers):
    return [float(one.text.endswith("yes")) for one in answers]


for batch in loader:
    manager.sync_weights()
    asked = batch * 4
    answers = sampler.sample(asked, SamplingParams(max_tokens=2048, top_p=0.95, temperature=1.0))
    inputs = [one.sequences[0].new_input_feature for one in answers]
    gains = advantage(rewards(answers), num_generations=4)
    ref = reference.forward_only(inputs=inputs)
    actor.forward_backward(inputs=inputs, advantages=gains, ref_logps=ref["logps"])
    actor.clip_grad_and_step(1.0)
