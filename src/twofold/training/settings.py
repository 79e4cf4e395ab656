"""`TrainingSettings`: how one model is trained. No torch, so that a study file is checked at once."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MACHINE_FIELDS = ("gradient_checkpointing", "compile", "fsdp", "report_to", "gradients_every")
"""How the same computation is done on some machine, and what is told of it: these move results by no more than
rounding, so runs of one study may differ in them, and an interrupted run may go on with others.
"""


class TrainingSettings(BaseModel):
    """AdamW with a cosine schedule; defaults suit models of about a million parameters.

    One step sees `batch` × `accumulation` windows, however many processes share them. Of N steps the first
    w = `warmup` · N rise evenly to the `learning_rate`; step s after them has the share
    m + (1 − m)·(1 + cos π(s − w)/(N − w))/2 of it, which ends at m = `minimum`. Norms, biases and embeddings are not
    decayed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    batch: int = Field(16, ge=1, description="windows per forward pass, over all processes")
    accumulation: int = Field(1, ge=1, description="forward passes per step")
    learning_rate: float = Field(3e-3, gt=0)
    minimum: float = Field(0.1, ge=0, le=1)
    warmup: float = Field(0.05, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    checkpoints: int = Field(10, ge=0, description="checkpoints per run, beside one every 30 seconds; 0 for none")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="what matrix products are computed in; weights, optimizer and evaluation stay float32"
    )
    gradient_checkpointing: bool = Field(False, description="compute blocks again in the backward pass, to save memory")
    compile: bool = Field(False, description="compile the blocks with torch.compile")
    fsdp: bool = Field(False, description="spread weights, gradients and optimizer over the processes (FSDP2)")
    gradients_every: int = Field(
        0, ge=0, description="steps between notes in metrics.jsonl of what reaches queries, keys and values; 0 for none"
    )
    report_to: tuple[str, ...] = Field((), description="loggers of transformers, such as tensorboard or wandb")

    def steps(self, tokens: int, context: int) -> int:
        """Steps that see at least `tokens` tokens in windows of `context`."""
        return -(-tokens // (self.batch * self.accumulation * context))
