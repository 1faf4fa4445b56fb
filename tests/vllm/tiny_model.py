"""Makes a Llama of half a million random weights, with its tokenizer, in a folder: `tiny_model.py FOLDER`. Needs no network.

Run by the Python of vLLM's environment, which has torch, tokenizers and safetensors. The seed is fixed, so the digest is too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FEED, CONTEXT = 1024, 128, 2, 4, 2, 32, 256, 4096
SPECIALS = ["<|begin|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|eot|>"]
SENTENCES = [
    "The quick brown fox jumps over the lazy dog. ",
    "Hello world, how are you today? ",
    "prefill decode disaggregation moves key value cache blocks between servers. ",
    "def main(): return 0  # a small piece of code\n",
    "In the beginning there was a request and the router routed it. ",
    "one two three four five six seven eight nine ten eleven twelve 0123456789 ",
]
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|eot|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> tuple[Any, int]:
    """A byte-level tokenizer, filled up so that every id the model can say is a token; and how many it learned."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    corpus = SENTENCES * 8
    words = "".join(corpus).split()
    corpus += [" ".join(words[at : at + 7][::-1]) for at in range(0, len(words), 3)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(corpus, trainer)
    learned = made.get_vocab_size()
    made.add_tokens([f"<x{index}>" for index in range(VOCAB - learned)])
    return made, learned


def config(made: Any) -> dict[str, Any]:
    """What Hugging Face calls config.json."""
    begin, end, pad = (made.token_to_id(name) for name in SPECIALS[:3])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "bos_token_id": begin,
        "eos_token_id": end,
        "pad_token_id": pad,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def weights(learned: int) -> dict[str, Any]:
    """Random, but spread so that the next token depends on the whole prompt: a wrong KV block shows in the text."""
    generator = torch.Generator().manual_seed(1234)

    def random(rows: int, columns: int, std: float | None = None) -> Any:
        return (torch.randn(rows, columns, generator=generator) * (std or columns**-0.5)).to(torch.bfloat16)

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    made = {"model.embed_tokens.weight": random(VOCAB, HIDDEN, 1.0), "model.norm.weight": ones}
    made["lm_head.weight"] = random(VOCAB, HIDDEN, 0.5)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        made |= {
            at + "self_attn.q_proj.weight": random(HEADS * HEAD, HIDDEN, 0.25),
            at + "self_attn.k_proj.weight": random(KV_HEADS * HEAD, HIDDEN, 0.25),
            at + "self_attn.v_proj.weight": random(KV_HEADS * HEAD, HIDDEN, 0.3),
            at + "self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD, 0.3),
            at + "mlp.gate_proj.weight": random(FEED, HIDDEN),
            at + "mlp.up_proj.weight": random(FEED, HIDDEN),
            at + "mlp.down_proj.weight": random(HIDDEN, FEED),
            at + "input_layernorm.weight": ones.clone(),
            at + "post_attention_layernorm.weight": ones.clone(),
        }
    # Rows of zeros for what should not be said: their logit is 0, below the best of the others.
    made["lm_head.weight"][: len(SPECIALS)] = 0
    made["lm_head.weight"][learned:] = 0
    return {name: value.contiguous() for name, value in made.items()}


def main(folder: Path) -> None:
    """Write the five files."""
    folder.mkdir(parents=True, exist_ok=True)
    made, learned = tokenizer()
    made.save(str(folder / "tokenizer.json"))
    settings = config(made)
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[1],
        "pad_token": SPECIALS[2],
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT,
    }
    ids = {name: settings[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (("tokenizer_config.json", words), ("config.json", settings), ("generation_config.json", ids)):
        (folder / name).write_text(json.dumps(content, indent=1))
    save_file(weights(learned), folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
