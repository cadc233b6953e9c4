"""Tables stay whole on 80 columns: a name or a figure that is cut says nothing."""

from rich.console import Console

from vitscale.cli.verify import _table
from vitscale.verify.proof import Figure, Proof


def test_names_of_recipes_are_whole(vitscale):
    lines = vitscale("recipes", COLUMNS="80").stdout.splitlines()
    for name in ("cifar10-vit-b16", "imagenet100-vit-s16"):
        assert f"{name} (training)" in lines
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("    ") for line in lines if line.lstrip().startswith(("hardware:", "time:")))


def test_figures_of_a_proof_are_whole():
    figures = [
        Figure("deepspeed-zero3-x8", "sgd-accum1-checkpointing", quantity, 1.2e-6, 1e-8, 1e-5, "head.weight")
        for quantity in ("weights", "losses", "gradients")
    ]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(_table(Proof(tuple(figures), (), 1.0)))
    text = captured.get()
    assert text.count("1.2e-06 (1e-08)*") == 3
    assert "sgd-accum1-checkpointing" in text
    assert "deepspeed-zero3-x8" in text
