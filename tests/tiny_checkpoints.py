"""Make a two-layer random checkpoint of one architecture, in the engine interpreter.

    python tests/tiny_checkpoints.py llama|qwen3|exaone|hyperclovax FOLDER

The tokenizer is byte-level; special tokens, the chat template's shape and, for EXAONE, the
configuration class by `auto_map`, are like the real repository's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SPECIALS = {
    "llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>",
              "<|start_header_id|>", "<|end_header_id|>"],
    "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "exaone": ["[BOS]", "[|endofturn|]", "[|system|]", "[|user|]", "[|assistant|]"],
    "hyperclovax": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|endofturn|>", "<|stop|>"],
}  # fmt: skip
BOS = {"llama": "<|begin_of_text|>", "exaone": "[BOS]"}
EOS = {"llama": "<|eot_id|>", "qwen3": "<|im_end|>", "exaone": "[|endofturn|]",
       "hyperclovax": "<|endofturn|>"}  # fmt: skip
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
)
TEMPLATES = {
    "llama": (
        "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}"
        "{% endif %}{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}"
        "<|end_header_id|>\n\n{% if m.role == 'system' %}Today: {{ date_string }}\n{% endif %}"
        "{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "qwen3": CHATML + "{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}",
    "hyperclovax": CHATML + "{% endif %}",
    "exaone": (
        "{% for m in messages %}[|{{ m.role }}|]{{ m.content }}"
        "{% if m.role != 'user' %}[|endofturn|]{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}[|assistant|]{% endif %}"
    ),
}
EXAONE_CONFIGURATION = '''"""Configuration class that only this repository has."""

from transformers import PretrainedConfig


class ExaoneConfig(PretrainedConfig):
    model_type = "exaone"
    attribute_map = {"num_hidden_layers": "num_layers"}

    def __init__(self, num_layers=2, **more):
        self.num_layers = num_layers
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
                     "num_key_value_heads", "head_dim", "rope_theta", "layer_norm_epsilon",
                     "max_position_embeddings", "activation_function"):
            setattr(self, name, more.pop(name, None))
        super().__init__(**more)
'''
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS = 256, 512, 4, 2, 2
HEAD_SIZE = {"llama": 64, "qwen3": 128, "exaone": 80, "hyperclovax": 128}


def write_tokenizer(family: str, folder: Path) -> int:
    """Byte-level tokenizer with the family's special tokens; returns the vocabulary's size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIALS[family]])
    bos = BOS.get(family)
    if family == "llama":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=EOS[family],
        chat_template=TEMPLATES[family],
    )  # fmt: skip
    fast.save_pretrained(folder)
    return 256 + len(SPECIALS[family]) + (-len(SPECIALS[family])) % 64


def write_model(family: str, folder: Path, vocabulary: int) -> None:
    """Random BF16 weights from a fixed seed, with the names that the architecture uses."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    head = HEAD_SIZE[family]
    common = {
        "vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": head,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "rope_theta": 10000.0, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    if family == "exaone":
        (folder / "configuration_exaone.py").write_text(EXAONE_CONFIGURATION)
        config = common | {
            "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "num_layers": LAYERS,
            "layer_norm_epsilon": 1e-5, "activation_function": "silu",
            "auto_map": {"AutoConfig": "configuration_exaone.ExaoneConfig"},
        }  # fmt: skip
    else:
        qwen = family == "qwen3"
        config = common | {
            "architectures": ["Qwen3ForCausalLM" if qwen else "LlamaForCausalLM"],
            "model_type": "qwen3" if qwen else "llama", "num_hidden_layers": LAYERS,
            "rms_norm_eps": 1e-5, "hidden_act": "silu",
        }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns) * 0.05).to(torch.bfloat16)

    def ones(size: int = HIDDEN) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    queries, keys = HEADS * head, KV_HEADS * head
    exaone = family == "exaone"
    stem = "transformer.h" if exaone else "model.layers"
    attention = "attn.attention" if exaone else "self_attn"
    output = "out_proj" if exaone else "o_proj"
    mlp = ("c_fc_0", "c_fc_1", "c_proj") if exaone else ("gate_proj", "up_proj", "down_proj")
    norms = ("ln_1", "ln_2") if exaone else ("input_layernorm", "post_attention_layernorm")
    tensors = {
        "transformer.wte.weight" if exaone else "model.embed_tokens.weight": matrix(
            vocabulary, HIDDEN
        ),
        "transformer.ln_f.weight" if exaone else "model.norm.weight": ones(),
    }
    for layer in range(LAYERS):
        prefix = f"{stem}.{layer}"
        for norm in norms:
            tensors[f"{prefix}.{norm}.weight"] = ones()
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            tensors[f"{prefix}.{attention}.{name}.weight"] = matrix(rows, HIDDEN)
        tensors[f"{prefix}.{attention}.{output}.weight"] = matrix(HIDDEN, queries)
        tensors[f"{prefix}.mlp.{mlp[0]}.weight"] = matrix(INTERMEDIATE, HIDDEN)
        tensors[f"{prefix}.mlp.{mlp[1]}.weight"] = matrix(INTERMEDIATE, HIDDEN)
        tensors[f"{prefix}.mlp.{mlp[2]}.weight"] = matrix(HIDDEN, INTERMEDIATE)
        if family == "qwen3":
            for name in ("q_norm", "k_norm"):
                tensors[f"{prefix}.self_attn.{name}.weight"] = ones(head)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Write the checkpoint named on the command line."""
    family, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True)
    write_model(family, folder, write_tokenizer(family, folder))


if __name__ == "__main__":
    main()
