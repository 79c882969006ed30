"""Small PyTorch workloads with fixed seeds; what one prints must be equal with and without the pager.

torch_suite.py available|zeros|gemm|resnet|llm|llama|training|graph|compile|overhead|loader|expandable|recover|illegal|two
"""
import os
import sys
import time

import torch


def available():
    print(torch.cuda.is_available(), torch.cuda.get_device_name(0))


def zeros():
    print(torch.zeros(10, 10).to("cuda:0").sum().item())


def gemm():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    b = a @ a
    torch.cuda.synchronize()
    print(b.float().norm().item())


def resnet():
    import torchvision

    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(3):
        x = torch.randn(16, 3, 224, 224, device="cuda")
        y = torch.randint(0, 1000, (16,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())


def llm():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
                         num_key_value_heads=8, vocab_size=32000)
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    x = torch.randint(0, 32000, (2, 64), device="cuda")
    with torch.no_grad():
        y = model.generate(x, max_new_tokens=16, do_sample=False)
    print(y.shape, y.sum().item(), y[0, 64:].tolist())


def llama():  # 1.1 billion parameters, batch 1; the time of a token on a line of its own
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
                         num_key_value_heads=4, vocab_size=32000)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    x = torch.arange(32, device="cuda").reshape(1, 32)
    with torch.no_grad():
        for _ in range(int(os.environ.get("TIMES", 2))):  # at lengths that are known the second time
            torch.cuda.synchronize()
            start = time.perf_counter()
            y = model.generate(x, max_new_tokens=64, min_new_tokens=64, do_sample=False)
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - start) / 64
    print(f"s/token {seconds:.5f}")
    print(y[0, 32:].tolist())


def training():  # ResNet-50, batch 32; the time of a step on a line of its own
    import torchvision

    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(32, 3, 224, 224, device="cuda")
    y = torch.randint(0, 1000, (32,), device="cuda")
    for step in range(25):
        if step == 5:
            torch.cuda.synchronize()
            start = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"s/step {(time.perf_counter() - start) / 20:.5f}")
    print(f"{loss.item():.3f}")


def graph():
    x = torch.randn(512, 512, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            y = (x @ x).relu()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = (x @ x).relu()
    captured.replay()
    torch.cuda.synchronize()
    print(y.sum().item())


def compile():
    @torch.compile
    def function(x):
        return torch.sin(x) * x.cos() + x.sum(-1, keepdim=True)

    print(function(torch.randn(1024, 1024, device="cuda")).sum().item())


def overhead():  # CUDA graphs made by the compiler
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    function = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            y = function(torch.ones(64, 256, device="cuda")).clone()
    print(y.sum().item())


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1024,), float(index * index))


def loader():  # worker processes (fork), batches in pinned memory
    torch.zeros(1, device="cuda")  # there is a context before the fork
    total = torch.zeros(1024, device="cuda", dtype=torch.float64)
    for batch in torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2, pin_memory=True):
        total += batch.to("cuda", non_blocking=True).sum(0)
    print(total.sum().item())


def recover():  # an allocation that can't be had, then one that can
    try:
        torch.empty(1 << 50, device="cuda", dtype=torch.uint8)
        print("an allocation of 1 PiB was made")
    except torch.OutOfMemoryError:
        print("out of memory")
    print(torch.ones(1 << 20, device="cuda").sum().item())


def illegal():  # an index beyond its tensor: an assertion in a kernel, then a context that is of no use
    x = torch.zeros(16, device="cuda")
    try:
        x[torch.tensor([1 << 20], device="cuda")] = 1
        torch.cuda.synchronize()
        print("nothing happened")
    except RuntimeError as error:
        print(str(error).splitlines()[0])


def expandable():  # with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    parts = [torch.randn(1 << 22, device="cuda") for _ in range(8)]
    print(sum(parts).sum().item())


def two():  # two GPUs: copies between them both ways, streams that wait for one another, a model with a half on each
    assert torch.cuda.device_count() >= 2, "two GPUs are needed"
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    print(torch.cuda.get_device_properties(0).uuid != torch.cuda.get_device_properties(1).uuid)
    a = torch.randn(2048, 2048, device=first)
    there = a.to(second)
    print(torch.equal(there.to(first), a), (there @ there).norm().item() == (a @ a).norm().item())
    pinned = torch.arange(1 << 20).pin_memory()
    print([pinned.to(device, non_blocking=True).sum().item() for device in (first, second)])
    event, stream = torch.cuda.Event(), torch.cuda.Stream(second)
    total = torch.zeros(1 << 20, device=first)
    for _ in range(100):
        total += 1
    event.record(torch.cuda.current_stream(first))
    with torch.cuda.device(second), torch.cuda.stream(stream):
        stream.wait_event(event)
        moved = total.to(second, non_blocking=True) * 2
    stream.synchronize()
    print(moved.sum().item())
    torch.manual_seed(0)
    lower, upper = torch.nn.Linear(512, 1024).to(first), torch.nn.Linear(1024, 10).to(second)
    optimizer = torch.optim.SGD([*lower.parameters(), *upper.parameters()], 1e-2)
    x, y = torch.randn(64, 512, device=first), torch.randint(0, 10, (64,), device=second)
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(upper(torch.relu(lower(x)).to(second)), y)
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.5f}")


WORKLOADS = {f.__name__: f for f in (available, zeros, gemm, resnet, llm, llama, training, graph, compile, overhead, loader, expandable, recover, illegal, two)}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in WORKLOADS:
        sys.exit(__doc__)
    torch.manual_seed(0)
    WORKLOADS[sys.argv[1]]()
