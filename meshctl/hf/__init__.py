"""Models of transformers as components. They need the extra `hf`: `pip install 'meshctl[hf]'`."""

from meshctl.runtime.extras import extra

with extra("hf"):
    from meshctl.hf.errors import ModelError as ModelError
    from meshctl.hf.model import Model as Model

__all__ = ["Model", "ModelError"]
