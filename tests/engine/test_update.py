"""What all engines share: precision switches of the process."""

import pytest
import torch
from engine_making import config_of, engine_of

SINGLE = {"engine": "single"}


def test_fp32_is_fp32_in_convolutions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch lets cuDNN's convolutions use TF32 by default, so the patch embedding would."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    engine_of(config_of(SINGLE))
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
