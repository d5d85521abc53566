"""Makes int8.safetensors and glm_linears.safetensors: what coreai-opt stores for f16 weights, per scheme.

Run once, by hand, in an environment of its own:

    pip install coreai-opt==0.4.0 torch==2.15.0 torchao==0.18.0 numpy safetensors
    python make_int8.py

The tensors of int8.safetensors: `weights` f16 [R, 32 * B], and for each of `clipped` (symmetric_with_clipping) and `symmetric`
`<scheme>.codes` i8 [R, 32 * B] and `<scheme>.scales` f16 [R, B], as coreai-opt's own fake quantiser yields them for a
weight in blocks of 32 along the last axis. Versions are in the files' metadata.

glm_linears.safetensors has the same for layers of the trained GLM-OCR checkpoint: `<weight>.codes` and
`<weight>.scales` of the first 32 rows, and in the metadata under `<weight>` the SHA-256 of all codes followed by all
scales.
"""

import hashlib
import importlib.metadata
from pathlib import Path

import numpy as np
import torch
from coreai_opt.config.spec import CompressionTargetTensor
from coreai_opt.quantization.spec import PerBlockGranularity, QuantizationScheme, QuantizationSpec
from coreai_opt.quantization.spec.factory import QuantizationComponentFactory
from safetensors import safe_open
from safetensors.torch import save_file

BLOCK = 32
CHECKPOINT = Path(__file__).parents[1] / "trained" / "glm-ocr-tiny"
LAYER = "model.language_model.layers.0."


def corner_blocks():
    """Blocks at every edge of f16: zeros, subnormal scales, ties, one outlier, the largest storable range."""
    rng = np.random.default_rng(3)
    unit = rng.uniform(-1, 1, BLOCK)
    unit[5] = -1.0
    blocks = [np.zeros(BLOCK), np.arange(-16, 16) + 0.5, np.arange(BLOCK) * 4 - 63.5, np.full(BLOCK, -0.0)]
    blocks += [unit * 10.0**e for e in np.arange(-8, 4.75, 0.25)]
    blocks += [np.sign(unit) * 2.0**e for e in range(-24, 16)]
    one = np.zeros(BLOCK)
    one[31] = 3.0
    return np.stack(blocks + [one, unit * 65000])


def weights():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((24, 20 * BLOCK)) * 10.0 ** rng.uniform(-4, 1, (24, 1))
    blocks = np.concatenate([corner_blocks(), rows.reshape(-1, BLOCK)])
    blocks = blocks[: len(blocks) // 8 * 8]
    return torch.from_numpy(blocks.reshape(8, -1)).to(torch.float16)


def quantise(weight, scheme):
    spec = QuantizationSpec(
        dtype=torch.int8, qscheme=scheme, granularity=PerBlockGranularity(axis=1, block_size=BLOCK)
    )
    fake = QuantizationComponentFactory.create_fake_quantizer(spec, CompressionTargetTensor.WEIGHT)
    fake(weight)
    scale, zero_point, minval = fake.calculate_qparams()
    assert torch.all(zero_point == 0)
    codes = fake.quantize(weight, scale, zero_point, minval)
    return codes.to(torch.int8), scale


def synthetic():
    weight = weights()
    tensors = {"weights": weight}
    for name, scheme in [
        ("clipped", QuantizationScheme.SYMMETRIC_WITH_CLIPPING),
        ("symmetric", QuantizationScheme.SYMMETRIC),
    ]:
        codes, scale = quantise(weight, scheme)
        assert torch.equal(scale.to(torch.float16).to(scale.dtype), scale), scale.dtype
        tensors[f"{name}.codes"] = codes
        tensors[f"{name}.scales"] = scale.to(torch.float16).reshape(weight.shape[0], -1)
    return tensors, {}


def read(name):
    for path in sorted(CHECKPOINT.glob("*.safetensors")):
        with safe_open(path, "pt") as shard:
            if name in shard.keys():
                return shard.get_tensor(name).to(torch.float16)
    raise KeyError(name)


def glm_linears():
    clipped, symmetric = QuantizationScheme.SYMMETRIC_WITH_CLIPPING, QuantizationScheme.SYMMETRIC
    gate, up = read(LAYER + "mlp.gate_up_proj.weight").chunk(2)
    layers = {
        LAYER + "self_attn.k_proj.weight": (read(LAYER + "self_attn.k_proj.weight"), clipped),
        LAYER + "mlp.gate_proj.weight": (gate, clipped),
        LAYER + "mlp.up_proj.weight": (up, clipped),
        "lm_head.weight": (read("lm_head.weight"), symmetric),
    }
    tensors, hashes = {}, {}
    for name, (weight, scheme) in layers.items():
        codes, scale = quantise(weight, scheme)
        scales = scale.to(torch.float16).reshape(weight.shape[0], -1)
        hashes[name] = hashlib.sha256(codes.numpy().tobytes() + scales.numpy().tobytes()).hexdigest()
        tensors |= {f"{name}.codes": codes[:BLOCK], f"{name}.scales": scales[:BLOCK]}
    return tensors, hashes


def main():
    versions = {name: importlib.metadata.version(name) for name in ["coreai-opt", "torch", "torchao", "numpy"]}
    for file, (tensors, metadata) in {"int8": synthetic(), "glm_linears": glm_linears()}.items():
        path = Path(__file__).with_name(f"{file}.safetensors")
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, versions | metadata)
    print(versions)


main()
