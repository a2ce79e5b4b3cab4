"""What does feeding cost a training step, on the device that JAX finds?

A step of some products of matrices takes the same batch again and again, which costs nothing to
feed, or the batches of a loader, made by a thread that works ahead; in JAX, and in torch where it
finds a GPU. The same loaders without a step show what they deliver at most.
"""

from collections.abc import Callable, Iterator
from itertools import islice, repeat
from typing import Any

import jax
import jax.numpy as jnp
import torch
from corpus import made
from harness import Contestant, Report, arguments, chosen, compare, machine, parse
from jax.sharding import SingleDeviceSharding
from load import SEQ_LEN, endless, rows_of

import jaxdata
import jaxdata.torch

BATCH, STEPS = 16, 50
LAYERS = 8


def jax_step(width: int) -> Callable[[Any], Any]:
    """Products of the embedded inputs, in bfloat16."""
    weights = jnp.full((width, 4 * width), 0.01, jnp.bfloat16)

    @jax.jit
    def step(inputs: Any) -> Any:
        x = jax.nn.one_hot(inputs % width, width, dtype=jnp.bfloat16)
        for _ in range(LAYERS):
            x = (x @ weights) @ weights.T
        return x.sum()

    return lambda batch: step(batch["inputs"])


def torch_step(width: int) -> Callable[[Any], Any]:
    """The same in torch, on the GPU."""
    weights = torch.full((width, 4 * width), 0.01, dtype=torch.bfloat16, device="cuda")

    def step(batch: Any) -> Any:
        x = torch.nn.functional.one_hot(batch["inputs"].long() % width, width).bfloat16()
        for _ in range(LAYERS):
            x = (x @ weights) @ weights.T
        return x.sum()

    return step


def steps(
    batches: Iterator[Any], step: Callable[[Any], Any], wait: Callable[[Any], Any], count: int
) -> Callable[[], float]:
    """Some steps that follow each other without waiting; the end waits for the last."""

    def work() -> float:
        last = None
        for batch in islice(batches, count):
            last = step(batch)
        wait(last)
        return float(count)

    return work


def contestants_of(
    library: str, loader: Any, step: Callable[[Any], Any], wait: Callable[[Any], Any], count: int
) -> list[Contestant]:
    """The step fed with one batch, the step fed by the loader, and the loader alone."""
    again = f"{library}, the same batch again"

    def of(batches: Iterator[Any], do: Callable[[Any], Any]) -> Callable[[], float]:
        return steps(batches, do, wait, count)

    return [
        Contestant(again, of(repeat(next(loader)), step), threads=True),
        Contestant(f"{library}, jaxdata", of(loader, step), again, threads=True),
        Contestant(
            f"{library}, jaxdata, no step",
            of(loader, lambda batch: batch["inputs"]),
            again,
            threads=True,
        ),
    ]


def main() -> None:
    """Train in turns."""
    given = parse(arguments(__doc__ or ""))
    rows = endless(rows_of(made(given.data, quick=given.quick)))
    size, count, width = (1, 2, 32) if given.quick else (BATCH, STEPS, 2048)
    device = jax.devices()[0]
    sharding = SingleDeviceSharding(device)
    in_jax = jaxdata.Loader(rows, batch_size=size, sharding=sharding)
    contestants = contestants_of("jax", in_jax, jax_step(width), jax.block_until_ready, count)
    if torch.cuda.is_available():
        in_torch = jaxdata.torch.Loader(rows, batch_size=size, device="cuda")
        contestants += contestants_of(
            "torch", in_torch, torch_step(width), lambda _: torch.cuda.synchronize(), count
        )
    facts: dict[str, object] = {"device": device.device_kind, "batch": f"{size}x{SEQ_LEN}"}
    facts |= machine("jax", "torch")
    report = Report("accelerator", "Steps on a device", "steps a second", facts=facts)
    compare(report, chosen(contestants, given.only), rounds=given.rounds, seconds=given.seconds)
    report.show(given.json)


if __name__ == "__main__":
    main()
