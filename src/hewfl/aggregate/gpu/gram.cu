// Inner products of a thin matrix in one read, on the float64 tensor cores.
//
// Rows v_0 .. v_(m-1) and, as row m, the origin v_o. With x_i = v_i - v_o for i < m and
// x_m = v_o this sums x_i x_j over the columns, all in float64: products of float32
// numbers are exact there. A warp holds 8 BLOCKS rows; entry (8j + g, column) of its
// lane 4g + t serves the matrix unit both as a left and as a right operand, so that
// nothing passes through shared memory. The order of columns within a product does not
// matter, so a lane takes 16 bytes that lie together.
//
// Set by the caller: BLOCKS (of 8 rows), ELEMENT (0 float32, 1 bfloat16, 2 float16),
// ALIGNED (rows begin on 16 bytes), LOADS (of 16 bytes, in flight), WARPS, RESIDENT.

#if ELEMENT == 0
typedef float element;
#else
typedef unsigned short element;
#endif

constexpr int PER = 16 / sizeof(element);  // columns of one load of one lane
constexpr int SPAN = 4 * PER * LOADS;      // columns of a warp
constexpr int PAIRS = (BLOCKS + 1) / 2;    // left operands of 16 rows
constexpr int HEIGHT = 16 * PAIRS, WIDTH = 8 * BLOCKS;

union Packet {
    uint4 whole;
    element each[PER];
};

__device__ __forceinline__ float widened(element given) {
#if ELEMENT == 0
    return given;
#elif ELEMENT == 1
    return __uint_as_float((unsigned)given << 16);
#else
    float found;
    asm("cvt.f32.f16 %0, %1;" : "=f"(found) : "h"(given));
    return found;
#endif
}

__device__ __forceinline__ Packet fetched(const element *row, long long column,
                                          long long end) {
    Packet found;
#if ALIGNED
    if (column + PER <= end) {
        asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(found.whole.x), "=r"(found.whole.y), "=r"(found.whole.z),
              "=r"(found.whole.w)
            : "l"(row + column));
        return found;
    }
#endif
#pragma unroll
    for (int i = 0; i < PER; ++i)
        found.each[i] = column + i < end ? row[column + i] : element(0);
    return found;
}

__device__ __forceinline__ void multiplied(double (&sum)[4], const double (&left)[4],
                                           const double (&below)[4],
                                           const double (&right)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
        : "d"(left[0]), "d"(below[0]), "d"(left[1]), "d"(below[1]), "d"(left[2]),
          "d"(below[2]), "d"(left[3]), "d"(below[3]), "d"(right[0]), "d"(right[1]),
          "d"(right[2]), "d"(right[3]));
}

// out[block]: HEIGHT x WIDTH sums; entries on and above the diagonal are written.
extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    gram(const element *rows, const element *origin, const element *reference,
         double *out, int n, int m, int columns, int stride) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t = lane % 4;
    const long long end = columns;
    const element *start[BLOCKS];
    double taken[BLOCKS];  // 0 for the origin's own row; rows past it become zero
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
        const int i = 8 * j + g;
        start[j] = i < n ? rows + (long long)i * stride : i < m ? reference : origin;
        taken[j] = i == m ? 0.0 : 1.0;
    }
    double sums[PAIRS][BLOCKS][4] = {};
    const long long step = (long long)gridDim.x * WARPS * SPAN;
    for (long long lo = ((long long)blockIdx.x * WARPS + warp) * SPAN; lo < end;
         lo += step) {
        Packet held[LOADS][BLOCKS], base[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; ++u) {
            const long long column = lo + 4 * PER * u + PER * t;
            base[u] = fetched(origin, column, end);
#pragma unroll
            for (int j = 0; j < BLOCKS; ++j)
                held[u][j] = fetched(start[j], column, end);
        }
#pragma unroll
        for (int u = 0; u < LOADS; ++u)
#pragma unroll
            for (int q = 0; q < PER; q += 4) {
                double x[2 * PAIRS][4] = {};
#pragma unroll
                for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        x[j][i] = fma(-taken[j], (double)widened(base[u].each[q + i]),
                                      (double)widened(held[u][j].each[q + i]));
#pragma unroll
                for (int p = 0; p < PAIRS; ++p)
#pragma unroll
                    for (int j = 2 * p; j < BLOCKS; ++j)
                        multiplied(sums[p][j], x[2 * p], x[2 * p + 1], x[j]);
            }
    }
    __shared__ double shared[WARPS][128];
    double *mine = out + (long long)blockIdx.x * HEIGHT * WIDTH;
#pragma unroll
    for (int p = 0; p < PAIRS; ++p)
#pragma unroll
        for (int j = 2 * p; j < BLOCKS; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                shared[warp][8 * (g + 8 * (i / 2)) + 2 * t + i % 2] = sums[p][j][i];
            __syncthreads();
            for (int k = threadIdx.x; k < 128; k += 32 * WARPS) {
                double total = 0.0;
                for (int w = 0; w < WARPS; ++w) total += shared[w][k];
                mine[(16 * p + k / 8) * WIDTH + 8 * j + k % 8] = total;
            }
            __syncthreads();
        }
}
