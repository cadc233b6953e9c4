"""parallel.float8 with emulated products: which layers, how far from bf16, what evaluation uses, what is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitscale.config.run import ModelConfig
from vitscale.errors import ConfigError, DeviceError
from vitscale.estimate.memory import activation_bytes
from vitscale.estimate.vit import shape_of
from vitscale.models.build import build_model
from vitscale.parallel import float8
from vitscale.parallel.float8 import use_float8

pytest.importorskip("torchao", reason="the extra float8 is not installed")

CPU = torch.device("cpu")
# Relative error (Frobenius). e4m3 keeps 3 bits behind the point: rounding is off by up to 1/16 of a value, 1/38 in the
# mean square, so a product of two such tensors by about 3.7 %; with an e5m2 gradient (2 bits) by about 5.8 %.
OUTPUT_BOUND, GRADIENT_BOUND = 0.045, 0.07


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float8, "emulated", True)


def vit(**changes: Any) -> nn.Module:
    shape: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4}
    return build_model(ModelConfig(**{**shape, **changes}), 10, 0)


def pair(**changes: Any) -> tuple[nn.Module, nn.Module]:
    """The same model with bf16 weights, plain and with float8 layers."""
    plain = vit(**changes).bfloat16()
    other = copy.deepcopy(plain)
    use_float8(other, CPU)
    return plain, other


def images(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1)).bfloat16()


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    difference = found.detach().double() - expected.detach().double()
    return float(difference.norm() / expected.detach().double().norm())


def is_float8(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) and type(layer) is not nn.Linear


# --- which layers -------------------------------------------------------------------------------------------------


def test_the_four_linear_layers_of_each_block_and_no_other() -> None:
    _, model = pair()
    names = {name for name, layer in model.named_modules() if is_float8(layer)}
    linear = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert names == {f"blocks.{block}.{name}" for block in (0, 1) for name in linear}


def test_parameters_stay_the_same_objects_under_the_same_names() -> None:
    model = vit()
    before = dict(model.named_parameters())
    sentence = use_float8(model, CPU)
    after = dict(model.named_parameters())
    assert sentence.startswith("float8: 8 of the 8 linear layers in the blocks")
    assert list(after) == list(before)
    assert all(after[name] is parameter for name, parameter in before.items())
    vit().load_state_dict(model.state_dict())


def test_layers_that_do_not_fit_or_are_frozen_stay() -> None:
    model = vit(freeze=("blocks.0",))
    model.blocks[1].mlp.fc1 = nn.Linear(64, 250)
    model.blocks[1].mlp.fc2 = nn.Linear(250, 64)
    assert use_float8(model, CPU).startswith("float8: 2 of the 8")
    assert {name for name, layer in model.named_modules() if is_float8(layer)} == {
        "blocks.1.attn.qkv",
        "blocks.1.attn.proj",
    }


# --- the mathematics ----------------------------------------------------------------------------------------------


def layer_and_gradients(layer: nn.Module, inputs: torch.Tensor, gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    leaf = inputs.clone().requires_grad_()
    outputs = layer(leaf)
    outputs.backward(gradient)
    assert outputs.dtype == torch.bfloat16
    assert leaf.grad is not None
    yield outputs.detach()
    yield leaf.grad
    yield layer.weight.grad
    yield layer.bias.grad


@pytest.mark.parametrize("tokens", [64, 51])  # 16 divides the sum of the weight's gradient, or it is padded
def test_a_layer_is_close_to_bf16_and_not_equal(tokens: int) -> None:
    plain, model = pair()
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(tokens, 64, generator=generator).bfloat16()
    gradient = torch.randn(tokens, 256, generator=generator).bfloat16()
    expected = layer_and_gradients(plain.blocks[0].mlp.fc1, inputs, gradient)
    found = layer_and_gradients(model.blocks[0].mlp.fc1, inputs, gradient)
    output, *gradients, bias = [error(f, e) for f, e in zip(found, expected, strict=True)]
    assert 0.01 < output < OUTPUT_BOUND
    assert all(0.01 < value < GRADIENT_BOUND for value in gradients)
    assert bias == 0  # no product


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_scales_follow_the_tensors(scale: float) -> None:
    """Without a scale e4m3 would lose everything below 2e-3 and cut off everything above 448."""
    plain, model = pair()
    inputs = scale * torch.randn(64, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    layers = (plain.blocks[0].mlp.fc1, model.blocks[0].mlp.fc1)
    with torch.no_grad():
        for layer in layers:
            layer.bias.zero_()
        assert error(layers[1](inputs), layers[0](inputs)) < OUTPUT_BOUND


def test_zeros_give_zeros() -> None:
    """A rank without images runs a micro-step of weight 0: its gradients are 0 and not 0 / 0."""
    _, model = pair()
    (model(images()).float().sum() * 0.0).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any(), name


def test_real_products_agree_with_emulated_ones_and_have_legal_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's scaled product on the CPU takes any width, a GPU's does not; 51 tokens are no multiple of 16."""
    _, emulated_model = pair()
    monkeypatch.setattr(float8, "emulated", False)
    monkeypatch.setattr(float8, "_check_device", lambda _: None)
    _, model = pair()
    product, kinds = torch._scaled_mm, []

    def checked(a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
        assert a.shape[1] % 16 == 0
        assert b.shape[1] % 16 == 0
        kinds.append((a.dtype, b.dtype, options["scale_a"].numel(), options["scale_b"].numel()))
        return product(a, b, **options)

    monkeypatch.setattr(torch, "_scaled_mm", checked)
    gradients = []
    for one in (emulated_model, model):
        one(images()).float().square().mean().backward()
        gradients.append(one.blocks[0].mlp.fc1.weight.grad)
    assert error(gradients[1], gradients[0]) < 0.01
    forward, backward = torch.float8_e4m3fn, torch.float8_e5m2
    assert kinds == [(forward, forward, 1, 1)] * 8 + [(backward, forward, 1, 1)] * 16


def test_evaluation_multiplies_in_bf16() -> None:
    plain, model = pair()
    training = error(model(images()), plain(images()))
    assert training > 1e-3
    for one in (plain, model):
        one.eval()
    assert torch.equal(model(images()), plain(images()))
    model.train()
    assert error(model(images()), plain(images())) == training


def test_checkpointing_recomputes_the_same() -> None:
    gradients = []
    for checkpointing in (False, True):
        _, model = pair()
        model.set_grad_checkpointing(checkpointing)  # type: ignore[operator]
        model(images()).float().square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def kept_bytes(model: nn.Module) -> int:
    """Distinct memory that forward keeps for backward."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(images()).float().sum().backward()
    return sum(kept.values())


def test_forward_keeps_what_bf16_keeps_as_estimated() -> None:
    plain, model = pair()
    assert kept_bytes(model) == kept_bytes(plain)
    shape = shape_of(ModelConfig(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4), 10)
    bytes_of = {kind: activation_bytes(shape, 3, compute=kind, params="bf16") for kind in ("bf16", "float8")}
    assert bytes_of["float8"] == bytes_of["bf16"]


# --- what compile and a CUDA graph need ---------------------------------------------------------------------------


def test_the_compiled_model_is_one_graph_and_computes_the_same() -> None:
    _, eager = pair()
    compiled = copy.deepcopy(eager)
    compiled.compile(dynamic=False, backend="aot_eager", fullgraph=True)
    for model in (eager, compiled):
        model(images()).float().square().mean().backward()
    for (name, a), b in zip(eager.named_parameters(), compiled.parameters(), strict=True):
        assert error(b.grad, a.grad) < 0.02, name
    for model in (eager, compiled):
        model.eval()
    with torch.no_grad():
        assert error(compiled(images()), eager(images())) < 0.01


class NoWaiting(TorchDispatchMode):
    """Fails where the host reads a value from the device: a captured graph could not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default), func
        return func(*args, **(kwargs or {}))


def test_the_host_waits_for_nothing() -> None:
    _, model = pair()
    with NoWaiting():
        model(images()).float().square().mean().backward()
        with pytest.raises(AssertionError, match="_local_scalar_dense"):
            torch.ones(()).item()


# --- refusals -----------------------------------------------------------------------------------------------------


def test_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float8, "emulated", False)
    with pytest.raises(DeviceError, match=r"^precision.compute=float8 is not possible on a CPU; use bf16$"):
        use_float8(vit(), CPU)


@pytest.mark.parametrize(("capability", "able"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)])
def test_a_gpu_before_ada_is_refused(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], able: bool) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    device = torch.device("cuda", 0)
    with nullcontext() if able else pytest.raises(DeviceError, match="not possible on a NVIDIA A100; use bf16"):
        float8._check_device(device)


def test_without_torchao_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float8, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs a package: pip install vitscale\[float8\]"):
        use_float8(vit(), CPU)


def test_a_model_without_a_layer_that_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no linear layer in the blocks .* divisible by 16"):
        use_float8(vit(embed_dim=72, num_heads=4), CPU)
