"""Makes int8.safetensors: what coreai-opt stores for f16 weights, per scheme.

Run once, by hand, in an environment of its own:

    pip install coreai-opt==0.4.0 torch==2.15.0 torchao==0.18.0 numpy safetensors
    python make_int8.py

The tensors: `weights` f16 [R, 32 * B], and for each of `clipped` (symmetric_with_clipping) and `symmetric`
`<scheme>.codes` i8 [R, 32 * B] and `<scheme>.scales` f16 [R, B], as coreai-opt's own fake quantiser yields them for a
weight in blocks of 32 along the last axis. Versions are in the file's metadata.
"""

import importlib.metadata
from pathlib import Path

import numpy as np
import torch
from coreai_opt.config.spec import CompressionTargetTensor
from coreai_opt.quantization.spec import PerBlockGranularity, QuantizationScheme, QuantizationSpec
from coreai_opt.quantization.spec.factory import QuantizationComponentFactory
from safetensors.torch import save_file

BLOCK = 32


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


def main():
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
    versions = {name: importlib.metadata.version(name) for name in ["coreai-opt", "torch", "torchao", "numpy"]}
    save_file({k: v.contiguous() for k, v in tensors.items()}, Path(__file__).with_name("int8.safetensors"), versions)
    print(versions, tuple(weight.shape))


main()
