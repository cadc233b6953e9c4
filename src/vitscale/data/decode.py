"""One way to decode an image file, for every source and for prediction: Pillow, to uint8 (C, H, W).

Orientation tags are ignored, as ImageNet training has always done. Transparency is dropped, not blended.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from vitscale.errors import DataError

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".gif"))
_MODES = {1: "L", 3: "RGB"}
# Pillow's decoders let errors of the formats' own parsers through.
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)


def _opened(source: Path | bytes) -> Path | io.BytesIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def decode_image(source: Path | bytes, in_chans: int, name: str) -> torch.Tensor:
    """Decode a file, or the bytes of one, to `in_chans` channels (1: luma). DataError names the image."""
    if in_chans not in _MODES:
        raise DataError(f"image files have 1 or 3 channels, not model.in_chans={in_chans}; set model.in_chans=3")
    try:
        # Damaged EXIF is common among web images; Pillow warns of it for each, though the pixels are fine.
        with warnings.catch_warnings(action="ignore"), Image.open(_opened(source)) as image:
            pixels = np.array(image.convert(_MODES[in_chans]))
    except _BROKEN as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            why = "it is no image, or of an unknown format"  # Pillow's text names the file once more
        raise DataError(f"{name} cannot be decoded ({why}); replace or remove this image") from None
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], in_chans)).permute(2, 0, 1).contiguous()
