"""What can be set about a model and its training; the `train:` section of a config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

__all__ = ["Count", "ModelSettings", "OptimizerSettings", "Settings", "TrainSettings", "whole"]


class Settings(BaseModel):
    """A frozen section of a config: unknown fields and silent conversions are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def whole(value: object) -> object:
    """`5e9` is a float to YAML and a string in some shells; as a count it is 5,000,000,000."""
    if isinstance(value, str):
        try:
            value = float(value.replace("_", ""))
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(whole), Field(ge=1)]


class ModelSettings(Settings):
    """The shape of the decoder-only transformer."""

    layers: int = Field(default=4, ge=1, description="number of transformer blocks")
    width: int = Field(default=128, ge=2, description="size of the residual stream")
    heads: int = Field(default=4, ge=1, description="attention heads; width / heads must be even")
    hidden: int | None = Field(
        default=None,
        ge=1,
        description="width of the gated MLP; null: 8/3 of width, rounded up to 32",
    )
    tied: bool = Field(default=True, description="whether the output head is the embedding table")
    rope_base: float = Field(
        default=10_000.0, gt=1, description="slowest wavelength of the positions"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="arithmetic of the blocks; params and loss are always float32",
    )
    remat: bool = Field(
        default=False, description="recompute blocks backwards: less memory, more time"
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
        """Width of the gated MLP, the default worked out."""
        return self.hidden or -(-8 * self.width // 3 // 32) * 32


class OptimizerSettings(Settings):
    """AdamW with a linear warm-up and a cosine decay."""

    learning_rate: float = Field(
        default=1e-3, gt=0, description="the peak, reached after the warm-up"
    )
    warmup_steps: int = Field(default=20, ge=0, description="steps from 0 up to the peak")
    final_fraction: float = Field(
        default=0.1, ge=0, le=1, description="last rate, as a part of the peak"
    )
    weight_decay: float = Field(default=0.1, ge=0, description="on matrices only")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="memory of the mean gradient")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="memory of the squared gradient")
    clip_norm: float = Field(default=1.0, gt=0, description="largest global norm of a gradient")


class TrainSettings(Settings):
    """A training run."""

    steps: Count | None = Field(default=None, description="last step; null: until the data ends")
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    output: str = Field(default="runs/train", description="folder of the log and the checkpoints")
    log_every: int = Field(default=10, ge=1, description="steps between lines on the terminal")
    eval_every: int = Field(
        default=0, ge=0, description="steps between evaluations; 0: only at the end"
    )
    checkpoint_every: int = Field(default=100, ge=1, description="steps between checkpoints")
    keep: int = Field(default=3, ge=1, description="how many checkpoints are kept")
    digest_rows: bool = Field(
        default=True, description="log a SHA-256 of each batch, so that two runs can be compared"
    )
    deterministic: bool = Field(
        default=True,
        description="have XLA repeat every sum in the same order, on GPUs for some speed",
    )
