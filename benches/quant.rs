//! Throughput of quantisation on one thread, beside a plain copy of the same bytes.
//!
//! Bytes counted are those of the weights read.

use std::hint::black_box;

use aimodel::quant::{BLOCK, BlockCode, fp16};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};

/// One chunk of the exporter: 1 Mi weights, 4 MiB of f32.
const WEIGHTS: usize = 1 << 20;

/// Bell-shaped weights of about the size of a language model's, from a fixed multiplicative sequence.
fn weights(size: f32) -> Vec<f32> {
    let mut state = 1_u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..WEIGHTS).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * size).collect()
}

fn blocks(c: &mut Criterion) {
    let mut group = c.benchmark_group("blocks");
    group.throughput(Throughput::Bytes(4 * WEIGHTS as u64));
    let mut codes = vec![0_i8; WEIGHTS];
    let mut scales = vec![f16::ZERO; WEIGHTS / BLOCK];
    let usual = weights(0.05);
    for code in BlockCode::ALL {
        group.bench_function(code.name(), |b| {
            b.iter(|| code.scheme().encode_rows(black_box(&usual), &mut codes, &mut scales));
        });
    }
    let tiny = weights(0.0005);
    group.bench_function("sym8, all scales coarse", |b| {
        b.iter(|| BlockCode::Sym8.scheme().encode_rows(black_box(&tiny), &mut codes, &mut scales));
    });
    let mut copy = vec![0.0; WEIGHTS];
    group.bench_function("copy", |b| b.iter(|| black_box(&mut copy).copy_from_slice(black_box(&usual))));
    group.finish();
}

fn casts(c: &mut Criterion) {
    let mut group = c.benchmark_group("casts");
    let wide = weights(0.05);
    let narrow: Vec<bf16> = wide.iter().map(|&weight| bf16::from_f32(weight)).collect();
    let mut target = vec![f16::ZERO; WEIGHTS];
    group.throughput(Throughput::Bytes(4 * WEIGHTS as u64));
    group.bench_function("f32 to f16", |b| b.iter(|| fp16::cast_f32(black_box(&wide), &mut target)));
    group.throughput(Throughput::Bytes(2 * WEIGHTS as u64));
    group.bench_function("bf16 to f16", |b| b.iter(|| fp16::cast_bf16(black_box(&narrow), &mut target)));
    let mut copy = vec![bf16::ZERO; WEIGHTS];
    group.bench_function("copy", |b| b.iter(|| black_box(&mut copy).copy_from_slice(black_box(&narrow))));
    group.finish();
}

criterion_group!(benches, blocks, casts);
criterion_main!(benches);
