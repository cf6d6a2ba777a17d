#!/usr/bin/env python3
"""Writes a small random Llama (config.json, model.safetensors) for engine tests.

No tokenizer: engines get token ids. The weights are random but not degenerate: pages
differ between layers, positions and tokens, so that a wrong page gives wrong tokens.
Embeddings are not tied, because a tied random model repeats its input whatever the
pages hold.
"""

import argparse
import json
import pathlib

LAYERS, HEADS, HEAD_DIM, HIDDEN, VOCABULARY = 4, 4, 64, 256, 512
SPREAD = 0.08


def configuration():
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def random_weights(config, seed):
    """Normally distributed matrices; norms near one."""
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(0.1 * torch.randn_like(weight))
            else:
                weight.normal_(0.0, SPREAD)
    return {name: weight.to(torch.float32).contiguous() for name, weight in model.state_dict().items()}


def write_model(directory, seed=0):
    from safetensors.torch import save_file

    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = configuration()
    save_file(random_weights(config, seed), directory / "model.safetensors", metadata={"format": "pt"})
    fields = {**config.to_dict(), "dtype": "float32"}
    fields.pop("torch_dtype", None)
    (directory / "config.json").write_text(json.dumps(fields, indent=1, sort_keys=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_model(arguments.directory, arguments.seed)


if __name__ == "__main__":
    main()
