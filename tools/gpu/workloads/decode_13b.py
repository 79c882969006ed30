"""Greedy decode, batch 1, of a 13-billion-parameter Llama-style model with random bf16 weights (26.03 GB).

decode_13b.py [LAYERS [TOKENS]]: prints the size of the weights, s/token, and the tokens. With EACH=1 in the environment it then
generates as much twice more with a longer prompt and prints the time of each token: the first time, PyTorch and cuBLAS
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
x = torch.arange(32, device="cuda").reshape(1, 32)
with torch.no_grad():
    start = time.time()
    model.generate(x, max_new_tokens=2, do_sample=False)
    torch.cuda.synchronize()
    print(f"first two tokens {time.time() - start:.1f} s", flush=True)
    start = time.time()
    y = model.generate(x, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    torch.cuda.synchronize()
    seconds = (time.time() - start) / tokens
print(f"s/token {seconds:.4f}")
print("tokens", y[0, 32:].tolist())


if os.environ.get("EACH"):

    class Clock:
        """Told of each token once it is on the CPU."""

        def put(self, value):
            times.append(time.perf_counter())

        def end(self):
            pass

    x = torch.arange(64, device="cuda").reshape(1, 64)
    for name in ("new", "known"):
        times = []
        with torch.no_grad():
            model.generate(x, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, streamer=Clock())
        print(f"{name} lengths, ms:", *(f"{(b - a) * 1e3:.1f}" for a, b in zip(times, times[1:])))
