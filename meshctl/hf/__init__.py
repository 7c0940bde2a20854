"""Models and samplers of transformers, as components. They need the extra `hf`:
`pip install '.[hf]'` in a checkout."""

from meshctl.runtime.extras import extra

with extra("hf"):
    from meshctl.hf.errors import ModelError as ModelError
    from meshctl.hf.model import Model as Model
    from meshctl.hf.sampler import Sampler as Sampler

__all__ = ["Model", "ModelError", "Sampler"]
