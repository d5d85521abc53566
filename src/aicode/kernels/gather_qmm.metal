#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

using namespace metal;

// C[s, n] = sum over k of A[s, k] * code[IDX[s], n, k] * SC[IDX[s], n, k / 32]
//
// A    half  [slots, K]        rows of activations, K a multiple of 256
// QP   uint  [E, N, K / 4]     four signed codes a word, the first in the low byte
// SC   half  [E, N, K / 32]    one scale for each block of 32 codes
// IDX  int   [slots]           the expert of each slot
// C    half  [slots, N]        N a multiple of 32
//
// Tensors are indexed innermost axis first. A threadgroup is 32 lanes x 8 simdgroups; each simdgroup makes 4 rows of
// one slot. A lane takes 8 consecutive codes a step, a quarter of a block, so one scale serves all of them.
[[kernel]] void gather_qmm(
    tensor<device half, metal::dextents<int, 2>, tensor_handle> A [[buffer(0)]],
    tensor<device uint, metal::dextents<int, 3>, tensor_handle> QP [[buffer(1)]],
    tensor<device half, metal::dextents<int, 3>, tensor_handle> SC [[buffer(2)]],
    tensor<device int, metal::dextents<int, 1>, tensor_handle> IDX [[buffer(3)]],
    tensor<device half, metal::dextents<int, 2>, tensor_handle> C [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    constexpr int rows = 4;
    constexpr int step = 256;
    const int K = A.get_extent(0);
    const int slot = int(group.z);
    const int first = (int(group.y) * 8 + int(simdgroup)) * rows;
    const int expert = IDX[slot];

    float sum[rows] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int k = int(lane) * 8; k < K; k += step) {
        float a[8];
        for (int i = 0; i < 8; ++i) {
            a[i] = float(A[k + i, slot]);
        }
        for (int r = 0; r < rows; ++r) {
            const int n = first + r;
            const uint low = QP[k / 4, n, expert];
            const uint high = QP[k / 4 + 1, n, expert];
            const float4 c0 = float4(as_type<char4>(low));
            const float4 c1 = float4(as_type<char4>(high));
            float part = a[0] * c0.x + a[1] * c0.y + a[2] * c0.z + a[3] * c0.w;
            part += a[4] * c1.x + a[5] * c1.y + a[6] * c1.z + a[7] * c1.w;
            sum[r] += part * float(SC[k / 32, n, expert]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        const float total = simd_sum(sum[r]);
        if (lane == 0) {
            C[first + r, slot] = half(total);
        }
    }
}
