"""The small transformer of `jaxdata.train.model` in torch, with the same weights.

Array names end in their shape: B batch, L sequence, D width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from jaxdata.config.train_section import ModelSettings
from jaxdata.torch.attention import attention_mask

__all__ = ["Params", "as_params", "forward", "mean_loss"]

Params = dict[str, Any]
Batch = Mapping[str, Tensor]


def as_params(arrays: Mapping[str, Any], device: torch.device) -> Params:
    """Params from those of `jaxdata.train.model.init_params`, as float32 tensors to be trained."""
    return {
        name: as_params(value, device)
        if isinstance(value, Mapping)
        else torch.tensor(np.asarray(value), device=device, requires_grad=True)
        for name, value in arrays.items()
    }


def forward(params: Params, batch: Batch, settings: ModelSettings) -> Tensor:
    """Logits, float32 `(batch, seq_len, vocabulary)`, of the token after each input."""
    dtype = getattr(torch, settings.dtype)
    mask_Bx1xLxL = attention_mask(batch["segment_ids"])
    angles_BxLxH = _angles(batch["positions"], settings)

    def block(x_BxLxD: Tensor, number: int) -> Tensor:
        layer = {
            part: {name: weight[number].to(dtype) for name, weight in params[part].items()}
            for part in ("attention", "mlp")
        }
        x_BxLxD = x_BxLxD + _attention(
            layer["attention"], x_BxLxD, mask_Bx1xLxL, angles_BxLxH, settings
        )
        return x_BxLxD + _mlp(layer["mlp"], x_BxLxD)

    x_BxLxD = params["embedding"][batch["inputs"]].to(dtype)
    for number in range(settings.layers):
        x_BxLxD = (
            checkpoint(block, x_BxLxD, number, use_reentrant=False)
            if settings.remat
            else block(x_BxLxD, number)
        )
    x_BxLxD = _rms_norm(x_BxLxD, params["norm"].to(dtype))
    head_DxV = params["embedding"].T if settings.tied else params["head"]
    return torch.matmul(x_BxLxD.float(), head_DxV.to(dtype).float())


def mean_loss(logits_BxLxV: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean nats of the targets with loss, and how many there are."""
    nats = functional.cross_entropy(
        logits_BxLxV.flatten(0, 1), batch["targets"].flatten().long(), reduction="none"
    )
    mask = batch["loss_mask"].flatten()
    targets = mask.sum()
    return nats.where(mask, 0.0).sum() / targets.clamp(min=1), targets


def _attention(
    layer: Params, x_BxLxD: Tensor, mask: Tensor, angles: Tensor, settings: ModelSettings
) -> Tensor:
    x_BxLxD = _rms_norm(x_BxLxD, layer["norm"])
    query, key, value = (
        (x_BxLxD @ layer[name]).unflatten(-1, (settings.heads, -1))
        for name in ("query", "key", "value")
    )
    out_BxNxLxH = functional.scaled_dot_product_attention(
        _rotate(query, angles).transpose(1, 2),
        _rotate(key, angles).transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
    )
    return torch.matmul(out_BxNxLxH.transpose(1, 2).flatten(2), layer["output"])


def _mlp(layer: Params, x_BxLxD: Tensor) -> Tensor:
    x_BxLxD = _rms_norm(x_BxLxD, layer["norm"])
    gate_BxLxF = functional.silu(x_BxLxD @ layer["gate"])
    return torch.matmul(gate_BxLxF * (x_BxLxD @ layer["up"]), layer["down"])


def _rms_norm(x: Tensor, scale_D: Tensor) -> Tensor:
    exact = x.float()
    mean_square = exact.square().mean(-1, keepdim=True)
    return (exact * torch.rsqrt(mean_square + 1e-6)).to(x.dtype) * scale_D


def _angles(positions_BxL: Tensor, settings: ModelSettings) -> Tensor:
    half = settings.width // settings.heads // 2
    steps = torch.arange(half, dtype=torch.float32, device=positions_BxL.device)
    return positions_BxL[:, :, None] * settings.rope_base ** (-steps / half)


def _rotate(x_BxLxNxH: Tensor, angles: Tensor) -> Tensor:
    sin, cos = angles.sin()[:, :, None], angles.cos()[:, :, None]
    first, second = x_BxLxNxH.float().chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.to(x_BxLxNxH.dtype)
