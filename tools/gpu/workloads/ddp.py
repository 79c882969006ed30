"""PyTorch's DistributedDataParallel over NCCL, one process for each of two GPUs; what it prints must be equal with and without the pager.

ddp.py [STEPS]   (10 when not given) starts its two processes itself and ends with the first that fails
"""
import os
import socket
import subprocess
import sys
import time


def rank(steps):
    import torch
    import torch.distributed as dist

    index = int(os.environ["RANK"])
    torch.cuda.set_device(index)
    torch.manual_seed(index)
    dist.init_process_group("nccl")
    model = torch.nn.Sequential(*(layer for _ in range(6) for layer in (torch.nn.Linear(2048, 2048), torch.nn.GELU())))
    for number, parameter in enumerate(model.parameters()):
        torch.manual_seed(number)
        torch.nn.init.normal_(parameter, std=0.02)
    model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[index])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for step in range(steps):
        torch.manual_seed(step * 2 + index)
        x = torch.randn(64, 2048).cuda()
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    whole = torch.stack([p.double().norm() for p in model.parameters()]).sum()
    gathered = [torch.zeros_like(whole) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, whole)
    if index == 0:
        print("loss", loss.item(), "parameters", [g.item() for g in gathered], flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env=base | {"RANK": str(n)}) for n in range(2)]
    try:
        while any(r.poll() is None for r in ranks):
            if any(r.poll() for r in ranks):
                break  # the other one would wait for it
            time.sleep(0.1)
    finally:
        for r in ranks:
            if r.poll() is None:
                r.kill()
    return max(abs(r.wait()) for r in ranks)


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    else:
        sys.exit(main())
