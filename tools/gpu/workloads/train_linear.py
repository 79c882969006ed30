"""Training of 24 x Linear(4096) with fused AdamW in float32: 6.4 GB of weights, gradients and optimizer state, all read and written in each step.

train_linear.py [STEPS]: prints s/step of the last three quarters of the steps, and the loss.
"""
import sys
import time

import torch

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16
torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, device="cuda") for _ in range(24)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(64, 4096, device="cuda")
start = 0.0
for step in range(steps):
    if step == steps // 4:
        torch.cuda.synchronize()
        print("steady", flush=True)
        start = time.time()
    optimizer.zero_grad(set_to_none=False)
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print(f"s/step {(time.time() - start) / (steps - steps // 4):.4f}")
print(f"loss {loss.item():.6f}")
