"""Settings of a model and its training: the `train:` section of a config."""

from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from jaxdata.base.settings import Count, Settings, setting
from jaxdata.storage import local_path


def _folder(output: str) -> str:
    local_path(output, "train into a folder, such as a mounted bucket")
    return output


class ModelSettings(Settings):
    """The shape of the decoder-only transformer."""

    layers: int = setting(4, "number of transformer blocks", ge=1)
    width: int = setting(128, "size of the residual stream", ge=2)
    heads: int = setting(4, "attention heads; width / heads must be even", ge=1)
    hidden: int | None = setting(
        None, "width of the gated MLP; null: 8/3 of width, rounded up to 32", ge=1, advanced=True
    )
    tied: bool = setting(True, "whether the output head is the embedding table", advanced=True)
    rope_base: float = setting(10_000.0, "slowest wavelength of the positions", gt=1, advanced=True)
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "arithmetic of the blocks; params and loss are always float32"
    )
    remat: bool = setting(
        False, "recompute blocks in the backward pass: less memory, more time", advanced=True
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSettings":
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

    learning_rate: float = setting(1e-3, "the peak, reached after the warm-up", gt=0)
    warmup_steps: int = setting(20, "steps from 0 up to the peak", ge=0)
    final_fraction: float = setting(
        0.1, "last rate, as a fraction of the peak", ge=0, le=1, advanced=True
    )
    weight_decay: float = setting(0.1, "decay of matrices; norms have none", ge=0)
    beta1: float = setting(0.9, "decay rate of the first moment", ge=0, lt=1, advanced=True)
    beta2: float = setting(0.95, "decay rate of the second moment", ge=0, lt=1, advanced=True)
    clip_norm: float = setting(1.0, "maximum global norm of the gradient", gt=0, advanced=True)


class TrainSettings(Settings):
    """A training run."""

    steps: Count | None = setting(None, "total number of steps; null: until the data ends")
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    output: Annotated[str, AfterValidator(_folder)] = setting(
        "runs/train", "folder of the log and the checkpoints"
    )
    log_every: int = setting(10, "steps between lines on the terminal", ge=1)
    eval_every: int = setting(0, "steps between evaluations; 0: only at the end", ge=0)
    checkpoint_every: int = setting(100, "steps between checkpoints", ge=1)
    keep: int = setting(3, "number of checkpoints to keep", ge=1, advanced=True)
    deterministic: bool = setting(
        True, "deterministic XLA operations; slower on GPUs", advanced=True
    )
