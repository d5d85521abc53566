"""Makes this folder out of the full data folder: copies checkpoints and pages, cuts reference tensors.

    python make_golden.py DATA [OUT]

DATA holds `trained/` and `structure/` as described in README.md. OUT is this folder unless given.
Needs numpy, safetensors and pillow. Deterministic: the same data give the same bytes.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import load_file, save_file

UNLIMITED, GLM = "unlimited-ocr", "glm-ocr"

# The pages of each trained checkpoint and the file that says what transformers reads on them.
EXPECTED = {"unlimited-ocr-tiny": "expected.json", "glm-ocr-tiny": "expected_glm_ocr.json"}

# What is kept of each reference file; None keeps everything.
# `pixel_values` is never kept: an 8-bit image holds the same values.
# The early SAM stages are kept at 256 only, where they are small: padding, windows and both kinds of block occur there.
REFERENCE = {
    UNLIMITED: {
        "decode": None,
        "prefill": [
            "input_ids", "inputs_embeds", "layer.0", "layer.1", "layer.2", "norm",
            "router.1.logits", "router.1.topk_weights", "router.1.topk_indices",
            "router.2.logits", "router.2.topk_weights", "router.2.topk_indices",
            "cache.0.key", "cache.0.value", "cache.1.key", "cache.1.value", "cache.2.key", "cache.2.value",
        ],
        "vision_256": None,
        "vision_640": [
            "sam.block.2", "sam.block.2.rel_h", "sam.block.2.rel_w", "sam.net_3",
            "clip.pos_embed", "clip.embeddings", "clip.pre_layrnorm", "clip.layer.0", "clip.layer.1",
            "projector", "image_features",
        ],
        "vision_1024": ["sam.net_3", "clip.embeddings", "projector"],
    },
    GLM: {"decode": None, "prefill": None, "vision": None, "vision_resize": None},
}

PAGE_KEYS = ["file", "text", "output", "output_ids", "exact", "smallest_margin", "median_margin"]

GLM_MEAN = np.float32([0.48145466, 0.4578275, 0.40821073])
GLM_STD = np.float32([0.26862954, 0.26130258, 0.27577711])


def copy_checkpoint(source: Path, target: Path) -> None:
    """Every file of the checkpoint itself, without what lies in folders below it."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file():
            shutil.copyfile(path, target / path.name)


def copy_pages(source: Path, target: Path, trained: str) -> None:
    """The pages of one trained checkpoint, and what transformers reads on them."""
    target.mkdir(parents=True, exist_ok=True)
    expected = json.loads((source / "expected.json").read_text(encoding="utf-8"))[trained]
    pages = expected["pages"]
    expected["pages"] = [{key: page[key] for key in PAGE_KEYS if key in page} for page in pages]
    for page in pages:
        shutil.copyfile(source / page["file"], target / page["file"])
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    (target / EXPECTED[trained]).write_text(text + "\n", encoding="utf-8")


def unlimited_image(pixel_values: np.ndarray) -> Image.Image:
    """The 8-bit image whose (x / 255 - 0.5) / 0.5 is exactly `pixel_values` [1, 3, S, S]."""
    pixels = np.rint((pixel_values * np.float32(0.5) + np.float32(0.5)) * np.float32(255)).astype(np.uint8)
    again = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    if not np.array_equal(again, pixel_values):
        raise SystemExit("pixel values are not those of an 8-bit image")
    return Image.fromarray(np.ascontiguousarray(pixels[0].transpose(1, 2, 0)), "RGB")


def write_unlimited_images(reference: Path, target: Path) -> None:
    """The reference's preprocessed pages, as 8-bit images."""
    target.mkdir(parents=True, exist_ok=True)
    images = dict(load_file(reference / "preprocess.safetensors"))
    images["stretch_256"] = load_file(reference / "vision_256.safetensors")["pixel_values"]
    for name, values in sorted(images.items()):
        unlimited_image(values).save(target / f"{name}.png", optimize=True)
    for size, name in (("640", "stretch_640"), ("1024", "pad_1024")):
        used = load_file(reference / f"vision_{size}.safetensors")["pixel_values"]
        if not np.array_equal(used, images[name]):
            raise SystemExit(f"vision_{size} was not computed from {name}")


def glm_image(pixel_values: np.ndarray, grid: np.ndarray) -> Image.Image:
    """The 8-bit image whose normalised patches are exactly `pixel_values` [patches, 3 * 2 * 14 * 14]."""
    _, rows, columns = grid[0]
    patches = pixel_values.reshape(rows // 2, columns // 2, 2, 2, 3, 2, 14, 14)
    if not np.array_equal(patches[:, :, :, :, :, 0], patches[:, :, :, :, :, 1]):
        raise SystemExit("the two frames of a still image differ")
    planes = patches[:, :, :, :, :, 0].transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * 14, columns * 14, 3)
    pixels = np.rint((planes * GLM_STD + GLM_MEAN) * np.float32(255)).astype(np.uint8)
    if not np.array_equal((pixels.astype(np.float32) / np.float32(255) - GLM_MEAN) / GLM_STD, planes):
        raise SystemExit("pixel values are not those of an 8-bit image")
    return Image.fromarray(pixels, "RGB")


def write_glm_images(structure: Path, target: Path) -> None:
    """The reference's resized page, as an 8-bit image. The other page is not resized: it is checked, not written."""
    target.mkdir(parents=True, exist_ok=True)
    tensors = load_file(structure / "reference" / "preprocess.safetensors")
    unchanged = glm_image(tensors["pixel_values"], tensors["grid_thw"])
    if unchanged.tobytes() != Image.open(structure / "page.png").convert("RGB").tobytes():
        raise SystemExit("page.png is not what the reference saw")
    resized = glm_image(tensors["resize.pixel_values"], tensors["resize.grid_thw"])
    resized.save(target / "resized.png", optimize=True)
    for stage, name in (("vision", "pixel_values"), ("vision_resize", "resize.pixel_values")):
        used = load_file(structure / "reference" / f"{stage}.safetensors")["pixel_values"]
        if not np.array_equal(used, tensors[name]):
            raise SystemExit(f"{stage} was not computed from {name}")


def cut_reference(source: Path, target: Path, stages: dict) -> None:
    """The kept tensors of each reference file."""
    target.mkdir(parents=True, exist_ok=True)
    for name, keys in stages.items():
        tensors = load_file(source / f"{name}.safetensors")
        tensors.pop("pixel_values", None)
        kept = tensors if keys is None else {key: tensors[key] for key in keys}
        save_file(dict(sorted(kept.items())), target / f"{name}.safetensors")
    meta = json.loads((source / "meta.json").read_text(encoding="utf-8"))
    (target / "meta.json").write_text(json.dumps(meta, separators=(",", ":")) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    data = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent
    for trained in EXPECTED:
        copy_checkpoint(data / "trained" / trained, out / "trained" / trained)
        copy_pages(data / "trained" / "pages", out / "pages", trained)
    structure, target = data / "structure", out / "structure"
    for model, stages in REFERENCE.items():
        copy_checkpoint(structure / model, target / model)
        cut_reference(structure / model / "reference", target / model / "reference", stages)
    write_unlimited_images(structure / UNLIMITED / "reference", target / UNLIMITED / "preprocess")
    write_glm_images(structure / GLM, target / GLM / "preprocess")


if __name__ == "__main__":
    main()
