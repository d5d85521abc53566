"""Makes sym8.safetensors: what the Core AI model zoo's sym8 stores for rows of weights.

Run once, by hand, in an environment of its own:

    pip install torch==2.15.0 numpy safetensors
    ATEN_CPU_CAPABILITY=avx2 python make_sym8.py

The zoo's arithmetic, step for step and in torch's f32 as the zoo runs it: seven clips of each block's absmax, codes
against the unrounded scale, the first clip of least squared error, the scale rounded to f16 at the very end. torch
adds a block's 32 squares in an order that depends on the CPU; where f64 would choose another clip the block is
reported, so that the file does not hang on that order.

The tensors: `weights` f32 [B, 32], `codes` i8 [B, 32], `scales` f16 [B], and `clips` i8 [B], the index of the clip
chosen. Versions are in the file's metadata.
"""

import importlib.metadata
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

BLOCK = 32
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)


def corner_blocks():
    """Blocks whose result the zoo leaves to chance: zeros, scales that f16 rounds to zero or infinity, scales at the
    floor of 1e-8 (the only ones where a clip other than 1 is chosen), ties, outliers."""
    rng = np.random.default_rng(5)
    unit = rng.uniform(-1, 1, BLOCK)
    unit[9] = 1.0
    blocks = [np.zeros(BLOCK), np.full(BLOCK, -0.0), np.arange(-16, 16) + 0.5, np.arange(BLOCK) * 4 - 63.5]
    blocks += [unit * 10.0**e for e in np.arange(-10, 8, 0.25)]
    blocks += [np.sign(unit) * 2.0**e for e in range(-30, 24)]
    blocks += [np.append(rng.uniform(-1, 1, BLOCK - 1), 1.0) * 127e-8 * (1 + k / 2000) for k in range(20)]
    blocks += [np.where(np.arange(BLOCK) == k, 127.0, 0.5) for k in range(4)]
    return np.stack(blocks)


def weights():
    rng = np.random.default_rng(4)
    normal = rng.standard_normal((512, BLOCK)) * 10.0 ** rng.uniform(-7, 2, (512, 1))
    tailed = rng.standard_t(2, (200, BLOCK)) * 0.02
    rounded = torch.from_numpy(rng.standard_normal((256, BLOCK)) * 0.02).to(torch.bfloat16).to(torch.float64).numpy()
    return torch.from_numpy(np.concatenate([corner_blocks(), normal, tailed, rounded])).to(torch.float32)


def candidate(blocks, absmax, clip, sums):
    scale = (absmax * clip / 127.0).clamp(min=1e-8)
    codes = torch.round(blocks / scale.unsqueeze(-1)).clamp(-127, 127)
    error = (scale.unsqueeze(-1) * codes - blocks).square()
    return scale, codes, error.to(sums).sum(-1)


def quantise(blocks, sums):
    absmax = blocks.abs().amax(-1)
    candidates = [candidate(blocks, absmax, clip, sums) for clip in CLIPS]
    best_scale, best_codes, best_error = candidates[0]
    best_clip = torch.zeros(len(blocks), dtype=torch.int8)
    for index, (scale, codes, error) in enumerate(candidates):
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best_codes = torch.where(better.unsqueeze(-1), codes, best_codes)
        best_clip[better] = index
    return best_codes.to(torch.int8), best_scale.to(torch.float16), best_clip


def main():
    blocks = weights()
    codes, scales, clips = quantise(blocks, torch.float32)
    _, _, clips_in_f64 = quantise(blocks, torch.float64)
    print("blocks whose clip depends on the order of summing:", (clips != clips_in_f64).nonzero().flatten().tolist())
    print("clips chosen:", torch.bincount(clips.long(), minlength=len(CLIPS)).tolist())
    versions = {name: importlib.metadata.version(name) for name in ["torch", "numpy"]}
    tensors = {"weights": blocks, "codes": codes, "scales": scales, "clips": clips}
    save_file({k: v.contiguous() for k, v in tensors.items()}, Path(__file__).with_name("sym8.safetensors"), versions)
    print(versions, tuple(blocks.shape))


main()
