"""RunConfig: everything that defines one training run, frozen and typed.

In: YAML, packaged recipes and dotted overrides (config.load). Out: read by every layer above. Torch-free.
Checks here need nothing but the config itself; what depends on the data, the device or the number of processes
is checked where those are known. A None field is decided later, and `vitscale show` says how (config.decide).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vitscale.config.balance import check_weights

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Auto = bool | Literal["auto"]


class Section(BaseModel):
    """Base of all config sections: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ModelConfig(Section):
    """Which timm Vision Transformer, and how it differs from the published one."""

    name: str = Field("vit_tiny_patch16_224", description="timm model name")
    img_size: Positive | None = Field(None, description="input resolution in pixels; None: the model's own")
    patch_size: Positive | None = Field(None, description="patch edge in pixels; None: the model's own")
    stem: Literal["patch", "conv"] = Field(
        "patch", description="how patches are embedded: one linear map, or 3x3 convolutions that halve down to a patch"
    )
    in_chans: Positive = Field(3, description="input channels")
    num_classes: Positive | None = Field(None, description="classes of the head; None: as many as the data has")
    embed_dim: Positive | None = Field(None, description="width; None: the model's own")
    depth: Positive | None = Field(None, description="number of blocks; None: the model's own")
    num_heads: Positive | None = Field(None, description="attention heads; None: the model's own")
    global_pool: Literal["token", "avg"] | None = Field(None, description="what the head reads; None: the model's own")
    drop_path: Fraction = Field(0.0, description="stochastic depth rate of the last block, linear over depth")
    dropout: Fraction = Field(0.0, description="dropout rate of position, projection and MLP layers")
    pretrained: Path | None = Field(None, description="safetensors file of weights to start from, in timm's names")
    freeze: tuple[str, ...] = Field((), description="parameter name prefixes that are not trained, or 'backbone'")
    kwargs: dict[str, Any] = Field({}, description="further arguments of timm's constructor")


class DataConfig(Section):
    """Where images come from and what is done to them."""

    source: Literal["digits", "cifar10", "cifar100", "npz", "parquet", "folder", "synthetic"] = Field(
        "digits", description="kind of data set"
    )
    root: Path | None = Field(None, description="file or folder of the data set; digits and synthetic need none")
    download: bool = Field(False, description="fetch CIFAR-10/100 into root if it is missing")
    val_fraction: Fraction | None = Field(
        None, description="stratified share of train held out as val; None: the source's own val or test split"
    )
    train_limit: Positive | None = Field(None, description="use only the first n training images")
    val_limit: Positive | None = Field(None, description="use only the first n validation images")
    synthetic_size: Positive = Field(2048, description="number of images of the synthetic source")
    workers: NonNegative = Field(2, description="loader processes per rank for augment_on=workers and image files")
    augment_on: Literal["auto", "device", "workers"] = Field(
        "auto", description="where images are augmented; auto: on the device if every transform can run there"
    )
    drop_last: bool = Field(False, description="drop the partial last update of an epoch instead of running it")
    mean: tuple[float, ...] | None = Field(None, description="per channel, in [0, 1]; None: the source's published one")
    std: tuple[float, ...] | None = Field(None, description="per channel; None: the source's published one")
    flip: bool = Field(False, description="random horizontal flip")
    crop_padding: NonNegative = Field(0, description="pad by n pixels (zeros), then crop at random to the old size")
    random_resized_crop: bool = Field(False, description="random area and aspect ratio, then resize to img_size")
    rrc_scale: tuple[float, float] = Field((0.08, 1.0), description="area range of random_resized_crop")
    eval_crop: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="centre crop of evaluation as a share of the resized edge (ImageNet: 0.875)"
    )
    randaugment: NonNegative = Field(0, description="number of RandAugment operations per image; 0: off")
    randaugment_magnitude: Annotated[int, Field(ge=0, le=30)] = Field(9, description="strength of RandAugment")
    random_erasing: Fraction = Field(0.0, description="probability of random erasing")
    mixup: Annotated[float, Field(ge=0)] = Field(0.0, description="alpha of mixup's Beta distribution; 0: off")
    cutmix: Annotated[float, Field(ge=0)] = Field(0.0, description="alpha of cutmix's Beta distribution; 0: off")
    mix_prob: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="share of sample pairs that are mixed")

    @model_validator(mode="after")
    def _root_given(self) -> DataConfig:
        if self.root is None and self.source not in ("digits", "synthetic"):
            raise ValueError(f"data.source={self.source} needs data.root, the file or folder of the data set")
        return self


class OptimConfig(Section):
    """Optimizer, schedule and what is derived from the weights (EMA)."""

    name: Literal["adamw", "sgd", "lamb", "muon"] = Field("adamw", description="optimizer")
    lr: Annotated[float, Field(gt=0)] = Field(1e-3, description="peak learning rate, before lr_scaling")
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        0.05, description="not applied to 1-D parameters, cls_token, pos_embed and register tokens"
    )
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="AdamW and LAMB")
    eps: Annotated[float, Field(gt=0)] = Field(1e-8, description="AdamW and LAMB")
    momentum: Fraction = Field(0.9, description="SGD and Muon")
    clip_grad: Annotated[float, Field(gt=0)] | None = Field(None, description="limit of the global gradient norm")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="after the warm-up")
    warmup_updates: NonNegative = Field(0, description="linear warm-up from 0 to lr")
    min_lr: Annotated[float, Field(ge=0)] = Field(0.0, description="where cosine and linear end")
    lr_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="multiply lr by global_batch_size / base_global_batch, or its root"
    )
    base_global_batch: Positive = Field(256, description="global batch size that lr was chosen for")
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(None, description="decay of the fp32 weight average")
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="layer-wise learning-rate decay: factor per block, counted from the head"
    )


class PrecisionConfig(Section):
    """Three separate choices; only runs with equal triples are compared."""

    compute: Literal["fp32", "tf32", "bf16", "fp16", "float8"] = Field(
        "fp32",
        description="what matrix products run in; float8: those of the blocks' linear layers, the others in bf16",
    )
    params: Literal["fp32", "bf16", "fp16"] | None = Field(
        None,
        description="what the model's weights are kept in; below fp32 the optimizer keeps fp32 masters. None: bf16 "
        "for compute=bf16 and float8; for compute=fp16 the engine's own way; else fp32",
    )
    reduce: Literal["fp32", "bf16", "fp16"] | None = Field(
        None, description="what gradients are reduced in; None: as params"
    )


class ParallelConfig(Section):
    """Which engine, and how the work is divided."""

    engine: Literal["auto", "single", "ddp", "fsdp2", "deepspeed"] = Field(
        "auto", description="auto: single for one process, ddp for more"
    )
    zero_stage: Annotated[int, Field(ge=0, le=3)] = Field(0, description="DeepSpeed's ZeRO stage")
    balance: Literal["none", "auto"] | tuple[float, ...] = Field(
        "none",
        description="images of a micro-step by rank; none: the same; auto: by measured speed; or a weight per rank",
    )

    @model_validator(mode="after")
    def _weights_possible(self) -> ParallelConfig:
        if isinstance(self.balance, tuple):
            check_weights(self.balance)
        return self


class PerformanceConfig(Section):
    """Each switch changes speed or memory, never the mathematics."""

    compile: Auto = Field("auto", description="torch.compile the model; auto: on a GPU, where it gains")
    attention: Literal["auto", "default", "flash", "cudnn", "efficient", "math"] = Field(
        "auto", description="attention kernel on a GPU; auto: the fastest, measured once; default: torch's choice"
    )
    cuda_graph: Auto = Field(
        "auto",
        description="replay whole updates as one CUDA graph (native engines, no LAMB, no dropout)",
    )
    data_on_device: bool = Field(
        True, description="keep an in-memory training set on the GPU if it takes less than an eighth of the free memory"
    )
    checkpointing: bool = Field(False, description="recompute block activations in backward to save memory")


class TrainConfig(Section):
    """How much to train, and the batch identity: two of the three batch keys are given, the third follows."""

    micro_batch_size: Positive | None = Field(None, description="images per device and forward")
    grad_accum_steps: Positive | None = Field(None, description="micro-steps per update")
    global_batch_size: Positive | None = Field(None, description="images per update over all devices")
    epochs: Positive | None = Field(None, description="passes over the training set")
    max_updates: Positive | None = Field(None, description="stop after n updates; with epochs, whichever comes first")
    target_top1: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="stop as soon as an evaluation on val reaches this top-1, or at the end of epochs or max_updates",
    )
    seed: NonNegative = Field(0, description="of weights, order and augmentation")
    deterministic: bool = Field(False, description="bit-equal repeats on a GPU too, at some cost in speed")
    label_smoothing: Fraction = Field(0.0, description="share of the target spread over all classes")
    class_weights: Literal["none", "balanced"] | tuple[Annotated[float, Field(ge=0)], ...] = Field(
        "none", description="loss weight per class; balanced: inverse to the class's count, mean 1 over the train set"
    )
    max_nonfinite_updates: Positive = Field(5, description="updates in a row with a non-finite loss that end the run")

    @model_validator(mode="after")
    def _length_given(self) -> TrainConfig:
        if self.epochs is None and self.max_updates is None:
            raise ValueError("train.epochs or train.max_updates must be given")
        return self


class EvalConfig(Section):
    """When and on what to evaluate."""

    every_epochs: Positive | None = Field(1, description="evaluate after every n epochs; None: only at the end")
    every_updates: Positive | None = Field(None, description="evaluate after every n updates as well")
    micro_batch_size: Positive | None = Field(None, description="images per device; None: as in training")
    use_ema: bool = Field(False, description="evaluate and export the EMA weights")


class CheckpointConfig(Section):
    """When to write checkpoints and which to keep."""

    every_updates: Positive | None = Field(None, description="write every n updates")
    every_epochs: Positive | None = Field(1, description="write after every n epochs; the end is always written")
    keep_last: Positive = Field(2, description="older ones are deleted")
    keep_best: bool = Field(True, description="keep the one with the best val top-1 as well")


class LogConfig(Section):
    """What is shown and written while training."""

    every_updates: Positive = Field(10, description="updates between two lines of metrics")
    tensorboard: bool = Field(True, description="write TensorBoard events under RUN/tensorboard")
    wandb: bool = Field(False, description="log to Weights & Biases (pip install vitscale[wandb])")
    mlflow: bool = Field(False, description="log to MLflow (pip install vitscale[mlflow])")


class RunConfig(Section):
    """One training run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optim: OptimConfig = OptimConfig()
    precision: PrecisionConfig = PrecisionConfig()
    parallel: ParallelConfig = ParallelConfig()
    performance: PerformanceConfig = PerformanceConfig()
    train: TrainConfig
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    deepspeed: dict[str, Any] = Field({}, description="DeepSpeed's own keys for what the other sections do not name")

    @model_validator(mode="after")
    def _target_looked_for(self) -> RunConfig:
        if self.train.target_top1 is not None and self.eval.every_epochs is None and self.eval.every_updates is None:
            raise ValueError("train.target_top1 needs eval.every_epochs, since only an evaluation can reach it")
        return self
