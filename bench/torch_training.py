# SPDX-License-Identifier: Apache-2.0
"""An ordinary training loop: a transformer encoder and Adam. It knows nothing of slices.

    torch_training.py SECONDS [WIDTH TOKENS]

Prints when each step was done (CLOCK_MONOTONIC) as one JSON object, then EXIT-SUCCESS.
"""

import json
import sys
import time

import torch

WARM_UP_STEPS = 3
BATCH = 32


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    # By default so large that a step is limited by the GPU and not by Python.
    width, tokens = map(int, sys.argv[2:4]) if len(sys.argv) > 3 else (768, 256)
    words = 1000
    layer = torch.nn.TransformerEncoderLayer(
        width, nhead=12, dim_feedforward=4 * width, batch_first=True, device="cuda"
    )
    model = torch.nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)
    head = torch.nn.Linear(width, words, device="cuda")
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-4)
    inputs = torch.zeros(BATCH, tokens, width, device="cuda")
    targets = torch.zeros(BATCH * tokens, dtype=torch.long, device="cuda")

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
