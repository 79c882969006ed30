"""Greedy decode, batch 1, of a 13-billion-parameter Llama-style model with random bf16 weights (26.03 GB).

decode_13b.py [LAYERS [TOKENS]]: prints the size of the weights, s/token, and the tokens. With ACCELERATE=16GiB in the environment Hugging
Face accelerate spreads the layers over all GPUs with as much memory of each (device_map="auto"). With STATIC=1 keys and values are in a cache
of a fixed size, which is written in place. With EACH=1 in the environment it prints
the time of each token, then generates as much twice more with a longer prompt: the first time, PyTorch and cuBLAS
choose kernels for sequence lengths that are new to them; the second time they know them.
"""
import os
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

layers = int(sys.argv[1]) if len(sys.argv) > 1 else 40
tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 8
torch.manual_seed(1)
config = LlamaConfig(hidden_size=5120, intermediate_size=13824, num_hidden_layers=layers, num_attention_heads=40,
                     num_key_value_heads=40, vocab_size=32000)
torch.set_default_dtype(torch.bfloat16)
start = time.time()
with torch.device("cuda"):
    model = LlamaForCausalLM(config).eval()
torch.cuda.synchronize()
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print(f"weights {weights / 1e9:.2f} GB, init {time.time() - start:.1f} s", flush=True)
if limit := os.environ.get("ACCELERATE"):
    from accelerate import dispatch_model, infer_auto_device_map

    spread = infer_auto_device_map(model, max_memory={gpu: limit for gpu in range(torch.cuda.device_count())},
                                   no_split_module_classes=["LlamaDecoderLayer"])
    model = dispatch_model(model, spread)


class Clock:
    """Told of each token once it is on the CPU."""

    def __init__(self):
        self.times = []

    def put(self, value):
        self.times.append(time.perf_counter())

    def end(self):
        pass

    def show(self, name):
        print(f"{name} lengths, ms:", *(f"{(b - a) * 1e3:.1f}" for a, b in zip(self.times, self.times[1:])))
        self.times.clear()


static = {"cache_implementation": "static", "disable_compile": True} if os.environ.get("STATIC") else {}
clock = Clock() if os.environ.get("EACH") else None
x = torch.arange(32, device="cuda").reshape(1, 32)
with torch.no_grad():
    start = time.time()
    model.generate(x, max_new_tokens=2, do_sample=False, **static)
    torch.cuda.synchronize()
    print(f"first two tokens {time.time() - start:.1f} s", flush=True)
    start = time.time()
    y = model.generate(x, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, streamer=clock, **static)
    torch.cuda.synchronize()
    seconds = (time.time() - start) / tokens
print(f"s/token {seconds:.4f}")
print("tokens", y[0, 32:].tolist())

if clock:
    clock.show("first")
    x = torch.arange(64, device="cuda").reshape(1, 64)
    for name in ("new", "known"):
        with torch.no_grad():
            model.generate(x, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, streamer=clock, **static)
        clock.show(name)
