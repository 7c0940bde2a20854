"""GRPO with an adapter: four GPUs train, four sample."""

import twinkle
from peft import LoraConfig
from score import Score
from twinkle import DeviceGroup, DeviceMesh
from twinkle.advantage import GRPOAdvantage
from twinkle.checkpoint_engine import CheckpointEngineManager
from twinkle.data_format import SamplingParams
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.sampler import vLLMSampler

MODEL = "ms://Qwen/Qwen3-8B"
TRAIN, SAMPLE = 4, 4
GPUS = TRAIN + SAMPLE
ANSWERS = 8
STEPS = 300

twinkle.initialize(
    mode="ray",
    nproc_per_node=GPUS,
    groups=[
        DeviceGroup(name="train", ranks=list(range(TRAIN)), device_type="GPU"),
        DeviceGroup(name="rollout", ranks=list(range(TRAIN, GPUS)), device_type="GPU"),
    ],
    lazy_collect=False,
    seed=7,
)
mesh = DeviceMesh.from_sizes(world_size=TRAIN, fsdp_size=TRAIN)
samplers = DeviceMesh.from_sizes(world_size=SAMPLE, dp_size=SAMPLE)


def prompts():
    data = Dataset(DatasetMeta("prompts.jsonl"))
    data.set_template("Template", model_id=MODEL, max_length=1024, truncation_strategy="delete")
    data.encode(add_generation_prompt=True)
    return data


def main():
    model = TransformersModel(model_id=MODEL, device_mesh=mesh, remote_group="train")
    lora = LoraConfig(r=32, lora_alpha=64, lora_dropout=0.05, target_modules="all-linear")
    model.add_adapter_to_model("default", lora, gradient_accumulation_steps=1)
    model.set_optimizer("AdamW", lr=2e-5, weight_decay=0.1)
    model.set_lr_scheduler("CosineAnnealingLR", T_max=STEPS, eta_min=1e-6)
    model.set_loss("GRPOLoss", epsilon=0.2, epsilon_high=0.28)
    model.set_template("Template", model_id=MODEL)
    sampler = vLLMSampler(
        model_id=MODEL,
        engine_args={"max_model_len": 4096, "gpu_memory_utilization": 0.8},
        device_mesh=samplers,
        remote_group="rollout",
    )
    sampler.set_template("Template", model_id=MODEL)
    weights = CheckpointEngineManager(model=model, sampler=sampler)
    loader = DataLoader(
        dataset=prompts, batch_size=32, min_batch_size=32, device_mesh=mesh, remote_group="train"
    )
    advantages, score = GRPOAdvantage(), Score()
    parameters = SamplingParams(max_tokens=3072, temperature=0.9, num_samples=1, logprobs=1)
    for step, batch in enumerate(loader):
        if step >= STEPS:
            break
        weights.sync_weights()
        sampler.reset_prefix_cache()
        asked = [one for one in batch for _ in range(ANSWERS)]
        found = [one.sequences[0] for one in sampler.sample(asked, parameters)]
        inputs = [one.new_input_feature for one in found]
        gains = advantages(score(inputs), num_generations=ANSWERS, scale="group")
        old = [[one[0][1] for one in answer.logprobs] for answer in found]
        model.forward_backward(inputs=inputs, old_logps=old, advantages=gains.tolist())
        model.clip_grad_and_step()
    model.save("answers")


if __name__ == "__main__":
    main()
