"""Join the packed CIFAR-10 halves into one .npz of uint8 arrays.

    python make_npz.py FOLDER_OF_PACKS OUT.npz

The packs (cifar10-a.npz, cifar10-b.npz) hold stacks of images as lossless WebP; see the data set's own note.
"""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

folder, out = Path(sys.argv[1]), sys.argv[2]
parts: dict[str, list[np.ndarray]] = {}
for name in ("cifar10-a.npz", "cifar10-b.npz"):
    pack = np.load(folder / name)
    for split in ("train", "test"):
        if f"{split}_labels" not in pack:
            continue
        for key in sorted(k for k in pack.files if k.startswith(f"{split}_webp_")):
            image = Image.open(io.BytesIO(pack[key].tobytes())).convert("RGB")
            parts.setdefault(f"{split}_images", []).append(np.asarray(image).reshape(-1, 32, 32, 3))
        parts.setdefault(f"{split}_labels", []).append(pack[f"{split}_labels"].astype(np.int64))
    classes = pack["classes"].astype(str)
np.savez(out, classes=classes, **{k: np.concatenate(v) for k, v in parts.items()})
