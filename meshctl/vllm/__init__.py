"""Samplers on the engine vLLM. They need the extra `vllm`, installed in an
interpreter of its own, because vLLM and the extra `hf` need different versions of transformers."""

from meshctl.vllm.errors import SamplerError as SamplerError
from meshctl.vllm.sampler import Sampler as Sampler

__all__ = ["Sampler", "SamplerError"]
