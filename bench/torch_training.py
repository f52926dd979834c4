# SPDX-License-Identifier: Apache-2.0
"""An ordinary training loop: a small transformer encoder, Adam, random data. It knows nothing of slices.

    torch_training.py SECONDS

Prints when each step was done (CLOCK_MONOTONIC) as one JSON object, then EXIT-SUCCESS.
"""

import json
import sys
import time

import torch

WARM_UP_STEPS = 3


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    device = torch.device("cuda")
    layer = torch.nn.TransformerEncoderLayer(d_model=256, nhead=8, dim_feedforward=1024, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False).to(device)
    head = torch.nn.Linear(256, 1000).to(device)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-4)
    inputs = torch.zeros(32, 128, 256, device=device)
    targets = torch.zeros(32 * 128, dtype=torch.long, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(head(model(inputs)).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    for _ in range(WARM_UP_STEPS):
        step()
    ends = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        step()
        ends.append(time.monotonic_ns())
    print(json.dumps({"steps": len(ends), "step_end_ns": ends}))
    print("EXIT-SUCCESS")


if __name__ == "__main__":
    main()
