# SPDX-License-Identifier: GPL-2.0-or-later
"""
A program of PyTorch as others write it: trains a network and prints the loss of each step. It knows nothing of this project. One seed,
so that two runs on one kind of GPU print the same.

    train.py cnn|transformer|compiled|graph STEPS [WIDTH [STOP]]    # WIDTH: of the network; STOP: a file whose existence ends it

cnn is convolutional. compiled: layers whose kernels torch.compile makes with Triton. graph: the same layers as they are, whose step
is one CUDA graph, captured once.

Without STOP it says at the end how long a step takes.
"""
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Transformer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1000)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


def convolutional(width):
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*block(3, width), *block(width, 2 * width), *block(2 * width, 4 * width), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(4 * width, 10))


def perceptron(width):
    def block(inputs):
        return [nn.Linear(inputs, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*block(128), *block(width), nn.Linear(width, 10))


def captured(step):
    """A function that does such a step as a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # what is made once is made before
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss
    return replay


def main():
    kind, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(7)
    random = torch.Generator().manual_seed(3)
    width = int(sys.argv[3]) if len(sys.argv) > 3 else {"transformer": 512}.get(kind, 64)
    if kind == "cnn":
        network = convolutional(width).cuda()
        inputs = torch.randn(256, 3, 64, 64, generator=random).cuda()
        wanted = torch.randint(0, 10, (256,), generator=random).cuda()
    elif kind in ("compiled", "graph"):
        network = perceptron(width).cuda()
        inputs = torch.randn(1024, 128, generator=random).cuda()
        wanted = torch.randint(0, 10, (1024,), generator=random).cuda()
    else:
        network = Transformer(width).cuda()
        inputs = torch.randint(0, 1000, (32, 256), generator=random).cuda()
        wanted = torch.randint(0, 1000, (32 * 256,), generator=random).cuda()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, capturable=kind == "graph")
    if kind == "compiled":
        network = torch.compile(network)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            outputs = network(inputs)
            loss = functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if kind == "graph":
        step = captured(step)
    print(f"ready, torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    times = []
    for number in range(steps):
        began = time.perf_counter()
        loss = float(step())
        times.append(time.perf_counter() - began)
        print(f"step {number} result {loss!r}", flush=True)
        if len(sys.argv) > 4 and os.path.exists(sys.argv[4]):
            return
    if len(sys.argv) > 4:
        return
    began = time.perf_counter()
    for _ in range(steps):  # nobody looks at a loss: the GPU is never waited for
        loss = step()
    torch.cuda.synchronize()
    free = (time.perf_counter() - began) / steps
    times = sorted(times[steps // 4:])
    print(f"ms per step: {1000 * times[len(times) // 2]:.3f} when each is waited for, {1000 * free:.3f} when none is", flush=True)


main()
