"""Small PyTorch workloads with fixed seeds; what one prints must be equal with and without the pager.

torch_suite.py available|zeros|gemm|resnet|llm|graph|compile|expandable
"""
import sys

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


def expandable():  # with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    parts = [torch.randn(1 << 22, device="cuda") for _ in range(8)]
    print(sum(parts).sum().item())


WORKLOADS = {f.__name__: f for f in (available, zeros, gemm, resnet, llm, graph, compile, expandable)}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in WORKLOADS:
        sys.exit(__doc__)
    torch.manual_seed(0)
    WORKLOADS[sys.argv[1]]()
