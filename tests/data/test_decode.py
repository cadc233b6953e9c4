"""Decoding: every mode becomes the asked channels, and what cannot be decoded is named in one sentence."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitscale.data.decode import decode_image
from vitscale.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("in_chans", [1, 3])
def test_every_mode_becomes_the_asked_channels(mode: str, in_chans: int) -> None:
    image = Image.fromarray(PIXELS)
    image = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
    pixels = decode_image(encoded(image, "TIFF"), in_chans, "x")
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (in_chans, 7, 9)


def test_bytes_and_files_give_the_pixels(tmp_path: Path) -> None:
    data = encoded(Image.fromarray(PIXELS), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    expected = torch.from_numpy(PIXELS).permute(2, 0, 1)
    assert torch.equal(decode_image(data, 3, "x"), expected)
    assert torch.equal(decode_image(tmp_path / "a.png", 3, "x"), expected)


def test_a_palette_with_transparency_gives_no_warning() -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).convert("P").save(buffer, "PNG", transparency=bytes(range(256)))
    assert decode_image(buffer.getvalue(), 3, "x").shape == (3, 7, 9)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_truncated_and_foreign_files_are_named(kind: str) -> None:
    whole = encoded(Image.fromarray(np.tile(PIXELS, (9, 9, 1))), kind)
    for broken in (whole[: len(whole) // 2], whole[:20], b"", b"plain text"):
        with pytest.raises(DataError, match=r"folder/a\.x cannot be decoded \(.+\); replace or remove") as caught:
            decode_image(broken, 3, "folder/a.x")
        assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone cannot be decoded"):
        decode_image(tmp_path / "gone", 3, "gone")
