"""What there is without a pager for a model larger than VRAM: Hugging Face accelerate's CPU offload, for the model of
decode_13b.py, beside its resident speed. Prints s/token for limits of 8 and 20 GiB."""
import gc
import time

import torch
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.hooks import remove_hook_from_submodules
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=5120, intermediate_size=13824, num_hidden_layers=40, num_attention_heads=40,
                     num_key_value_heads=40, vocab_size=32000)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).eval()
x = torch.randint(0, 32000, (1, 32), device="cuda")


def seconds_per_token(model, tokens):
    with torch.no_grad():
        model.generate(x, max_new_tokens=2, do_sample=False)
        torch.cuda.synchronize()
        start = time.time()
        model.generate(x, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        torch.cuda.synchronize()
    return (time.time() - start) / tokens


print(f"resident s/token {seconds_per_token(model, 32):.4f}", flush=True)
model = model.to("cpu")
torch.cuda.empty_cache()
for limit in (8, 20):
    device_map = infer_auto_device_map(model, max_memory={0: f"{limit}GiB", "cpu": "100GiB"},
                                       no_split_module_classes=["LlamaDecoderLayer"])
    offloaded = dispatch_model(model, device_map)
    print(f"accelerate, {limit} GiB: s/token {seconds_per_token(offloaded, 3):.3f}", flush=True)
    remove_hook_from_submodules(offloaded)
    model = offloaded.to("cpu")
    torch.cuda.empty_cache()
    gc.collect()
