"""Settings of a model and its training: the `train:` section of a config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from jaxdata.base.settings import Count, Settings, setting
from jaxdata.storage import local_path

BUCKETS = ("gs://", "s3://", "az://")
"""how the outputs begin that are in a bucket"""


def _writable(output: str) -> str:
    if not output.startswith(BUCKETS):
        local_path(output, "train into a folder, gs://… or s3://…")
    return output


class ModelSettings(Settings):
    """The shape of the decoder-only transformer."""

    layers: int = Field(default=4, ge=1, description="number of transformer blocks")
    width: int = Field(default=128, ge=2, description="size of the residual stream")
    heads: int = Field(default=4, ge=1, description="attention heads; width / heads must be even")
    hidden: int | None = setting(
        None, "width of the gated MLP; null: 8/3 of width, rounded up to 32", ge=1, advanced=True
    )
    tied: bool = setting(True, "whether the output head is the embedding table", advanced=True)
    rope_base: float = setting(10_000.0, "slowest wavelength of the positions", gt=1, advanced=True)
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="arithmetic of the blocks; params and loss are always float32",
    )
    remat: bool = setting(
        False, "recompute blocks in the backward pass: less memory, more time", advanced=True
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSettings:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} with heads {self.heads}: width / heads must be an even number"
            )
        return self

    @property
    def mlp_width(self) -> int:
        """Width of the gated MLP, with the default computed."""
        return self.hidden or -(-8 * self.width // 3 // 32) * 32


class OptimizerSettings(Settings):
    """AdamW with a linear warm-up and a cosine decay."""

    learning_rate: float = Field(
        default=1e-3, gt=0, description="the peak, reached after the warm-up"
    )
    warmup_steps: int = Field(default=20, ge=0, description="steps from 0 up to the peak")
    final_fraction: float = setting(
        0.1, "last rate, as a fraction of the peak", ge=0, le=1, advanced=True
    )
    weight_decay: float = Field(default=0.1, ge=0, description="decay of matrices; norms have none")
    beta1: float = setting(0.9, "decay rate of the first moment", ge=0, lt=1, advanced=True)
    beta2: float = setting(0.95, "decay rate of the second moment", ge=0, lt=1, advanced=True)
    clip_norm: float = setting(1.0, "maximum global norm of the gradient", gt=0, advanced=True)


class TrainSettings(Settings):
    """A training run."""

    steps: Count | None = Field(
        default=None, description="total number of steps; null: until the data ends"
    )
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    output: Annotated[str, AfterValidator(_writable)] = Field(
        default="runs/train", description="folder of the log and the checkpoints, or gs://…, s3://…"
    )
    log_every: int = Field(default=10, ge=1, description="steps between lines on the terminal")
    eval_every: int = Field(
        default=0, ge=0, description="steps between evaluations; 0: only at the end"
    )
    checkpoint_every: int = Field(default=100, ge=1, description="steps between checkpoints")
    keep: int = setting(3, "number of checkpoints to keep", ge=1, advanced=True)
    resume: Literal["newest", "newest-whole"] = setting(
        "newest",
        "the checkpoint to resume from; newest-whole: damaged ones are set aside",
        advanced=True,
    )
    deterministic: bool = setting(
        True, "deterministic XLA operations; slower on GPUs", advanced=True
    )
