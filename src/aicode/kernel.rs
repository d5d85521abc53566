//! The `gather_qmm` Metal kernel: its text, and how it is launched.
//!
//! Shapes and launch are those of the Core AI model zoo's kernel of the same name; the text is our own.

/// Name of the kernel function.
pub const NAME: &str = "gather_qmm";

/// Metal Shading Language text of the kernel.
pub const SOURCE: &str = include_str!("kernels/gather_qmm.metal");

/// Dialect name of an operation that runs a kernel.
pub const OPERATION: &str = "metal.metal4_kernel_v1";

/// Threads of a threadgroup: 32 lanes of 8 simdgroups.
pub const THREADS_PER_GROUP: [u32; 3] = [32, 8, 1];

/// Threads in all for `slots` rows of `n` outputs, four of them for each simdgroup.
#[must_use]
pub const fn threads_per_grid(slots: u32, n: u32) -> [u32; 3] {
    [32, n / 4, slots]
}
