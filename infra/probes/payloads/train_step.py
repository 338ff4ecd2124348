"""Training steps of a decoder under FSDP2 and torchrun, with every step's time: what the network is worth to a job.

Weights are random and nothing is downloaded. Needs PyTorch 2.6 or later. Rank 0 prints JSON lines on stdout:

    {"poolshift":"train-step","event":"start","v":1,"preset":"qwen2.5-14b","ranks":16,"parameters":14770033664,…}
    {"poolshift":"train-step","event":"step","step":0,"seconds":6.071,"warmup":true,"loss":12.1}
    {"poolshift":"train-step","event":"end","ok":true}

A step is forward, backward and optimizer, from a barrier to the slowest rank's end. Warm-up steps are printed and
marked: the reader drops them. Without the end line the output was cut.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass(frozen=True)
class Shape:
    """A decoder-only transformer with grouped-query attention and a gated MLP."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    sequence: int
    rope_base: float = 1e6

    @property
    def head(self) -> int:
        return self.hidden // self.heads


# Qwen2.5-14B: the published config.json of the model (48 layers, 5120 wide, 40 heads over 8 KV heads).
PRESETS = {
    "qwen2.5-14b": Shape(
        hidden=5120, layers=48, heads=40, kv_heads=8, intermediate=13824, vocabulary=152064, sequence=4096
    ),
    "tiny": Shape(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vocabulary=512, sequence=64),
}


def emit(record: dict) -> None:
    """One line in one write: NCCL writes to the same stream, and a split line would be lost."""
    os.write(1, (json.dumps(record, separators=(",", ":")) + "\n").encode())


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


def rotate(x: torch.Tensor, base: float) -> torch.Tensor:
    """Rotary position embedding on (batch, head, sequence, width)."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device, dtype=torch.float32), rates)
    cosine, sine = angles.cos().type_as(x), angles.sin().type_as(x)
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        narrow = shape.kv_heads * shape.head
        self.attention_norm = RMSNorm(shape.hidden)
        self.query = nn.Linear(shape.hidden, shape.hidden)
        self.key = nn.Linear(shape.hidden, narrow)
        self.value = nn.Linear(shape.hidden, narrow)
        self.output = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.mlp_norm = RMSNorm(shape.hidden)
        self.gate = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape

        def heads(y: torch.Tensor, count: int) -> torch.Tensor:
            return y.view(batch, length, count, self.shape.head).transpose(1, 2)

        query = rotate(heads(self.query(x), self.shape.heads), self.shape.rope_base)
        key = rotate(heads(self.key(x), self.shape.kv_heads), self.shape.rope_base)
        value = heads(self.value(x), self.shape.kv_heads)
        repeat = self.shape.heads // self.shape.kv_heads
        key, value = (t.repeat_interleave(repeat, dim=1) for t in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, self.shape.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.attention_norm(x))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Embedding, blocks, norm and an untied head; `forward` returns the loss of predicting the next token."""

    def __init__(self, shape: Shape, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def build(shape: Shape, device: torch.device, ranks: int, *, recompute: bool) -> nn.Module:
    """A sharded decoder with random weights: made without memory, sharded, then filled shard by shard."""
    mesh = init_device_mesh(device.type, (ranks,))
    # bfloat16 on the wire and in the matrices, as a job runs; the CPU keeps float32, which gloo can reduce
    precision = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if device.type == "cuda"
        else MixedPrecisionPolicy()
    )
    with torch.device("meta"):
        model = Decoder(shape, recompute=recompute)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local()
            if local.numel() == 0:
                continue
            if parameter.ndim > 1:
                local.normal_(0.0, 0.02 / math.sqrt(2 * shape.layers) if "down" in name or "output" in name else 0.02)
            else:
                local.fill_(1.0 if "norm" in name else 0.0)
    return model


def slowest(seconds: float, device: torch.device) -> float:
    """The longest time of all ranks: a step is over when the last one is."""
    longest = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return float(longest.item())


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shape = PRESETS[args.preset]
    shape = dataclasses.replace(shape, **{k: v for k, v in vars(args).items() if k in SHAPE_OPTIONS and v is not None})
    torch.manual_seed(1234 + rank)
    model = build(shape, device, ranks, recompute=not args.no_recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(shape.vocabulary, (args.batch, shape.sequence), device=device)
    hosts: list = [None] * ranks
    dist.all_gather_object(hosts, os.environ.get("NODE_NAME") or socket.gethostname())
    if rank == 0:
        emit(
            {
                "poolshift": "train-step",
                "event": "start",
                "v": 1,
                "preset": args.preset,
                "ranks": ranks,
                "hosts": len(set(hosts)),
                "nodes": sorted(set(hosts)),
                "backend": dist.get_backend(),
                "torch": torch.__version__,
                "parameters": sum(p.numel() for p in model.parameters()),
                "shape": dataclasses.asdict(shape),
                "batch": args.batch,
                "recompute": not args.no_recompute,
                "steps": args.steps,
                "warmup": args.warmup,
            }
        )
    for step in range(args.warmup + args.steps):
        dist.barrier()
        begin = time.perf_counter()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = slowest(time.perf_counter() - begin, device)
        value = float(loss.item())
        if rank == 0:
            emit(
                {
                    "poolshift": "train-step",
                    "event": "step",
                    "step": step,
                    "seconds": round(seconds, 6),
                    "warmup": step < args.warmup,
                    "loss": round(value, 4) if math.isfinite(value) else None,
                }
            )
        if not math.isfinite(value):
            msg = f"the loss of step {step} is {value}: this hardware or its numerics cannot be trusted"
            raise ArithmeticError(msg)


SHAPE_OPTIONS = ("hidden", "layers", "heads", "kv_heads", "intermediate", "vocabulary", "sequence")


def parse(argv: list) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="qwen2.5-14b")
    parser.add_argument("--steps", type=int, default=40, help="measured steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1, help="sequences per rank")
    parser.add_argument("--no-recompute", action="store_true", help="keep activations instead of recomputing them")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that one collective may take")
    for option in SHAPE_OPTIONS:
        parser.add_argument(f"--{option.replace('_', '-')}", type=int, help="in place of the preset's")
    args = parser.parse_args(argv)
    if args.steps < 1 or args.warmup < 0 or args.batch < 1:
        parser.error("steps and batch need at least 1, warmup at least 0")
    return args


def main(argv: list) -> int:
    args = parse(argv)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=args.timeout))
    try:
        train(args, device)
    except Exception as error:
        if dist.get_rank() == 0:
            emit({"poolshift": "train-step", "event": "end", "ok": False, "error": str(error)[:500]})
        raise
    if dist.get_rank() == 0:
        emit({"poolshift": "train-step", "event": "end", "ok": True})
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
