// Products and weighted sums of a thin matrix, each in one read and in float64.
//
// Set by the caller: ELEMENT (0 float32, 1 bfloat16, 2 float16, 3 float64), ALIGNED
// (rows begin on 16 bytes); with BLOCKS this is the source of `gram`, else of
// `weighted_sum`, and their own settings stand above them.

#if ELEMENT == 0
typedef float element;
#elif ELEMENT == 3
typedef double element;
#else
typedef unsigned short element;
#endif

constexpr int PER = sizeof(element) == 2 ? 8 : 4;  // columns a thread takes at once
constexpr int PARTS = PER * sizeof(element) / 16;  // its loads of 16 bytes for them

union Packet {
    uint4 whole[PARTS];
    element each[PER];
};

__device__ __forceinline__ double widened(element given) {
#if ELEMENT == 0 || ELEMENT == 3
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
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
            asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(found.whole[i].x), "=r"(found.whole[i].y),
                  "=r"(found.whole[i].z), "=r"(found.whole[i].w)
                : "l"(row + column + i * (PER / PARTS)));
        return found;
    }
#endif
#pragma unroll
    for (int i = 0; i < PER; ++i)
        found.each[i] = column + i < end ? row[column + i] : element(0);
    return found;
}

#ifdef BLOCKS

// Inner products on the float64 tensor cores.
//
// Rows v_0 .. v_(m-1) and, as row m, the origin v_o. With x_i = v_i - v_o for i < m and
// x_m = v_o this sums x_i x_j over the columns, all in float64: products of float32
// numbers are exact there. A warp holds 8 BLOCKS rows; entry (8j + g, column) of its
// lane 4g + t serves the matrix unit both as a left and as a right operand, so that
// nothing passes through shared memory. The order of columns within a product does not
// matter, so a lane takes columns that lie together.
//
// Set by the caller: BLOCKS (of 8 rows), LOADS (of 16 bytes, in flight), WARPS,
// RESIDENT (blocks of a multiprocessor).

constexpr int HELD = LOADS > PARTS ? LOADS / PARTS : 1;  // packets of one row
constexpr int SPAN = 4 * PER * HELD;                     // columns of a warp
constexpr int PAIRS = (BLOCKS + 1) / 2;                  // left operands of 16 rows
constexpr int HEIGHT = 16 * PAIRS, WIDTH = 8 * BLOCKS;

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
        Packet held[HELD][BLOCKS], base[HELD];
#pragma unroll
        for (int u = 0; u < HELD; ++u) {
            const long long column = lo + 4 * PER * u + PER * t;
            base[u] = fetched(origin, column, end);
#pragma unroll
            for (int j = 0; j < BLOCKS; ++j)
                held[u][j] = fetched(start[j], column, end);
        }
#pragma unroll
        for (int u = 0; u < HELD; ++u)
#pragma unroll
            for (int q = 0; q < PER; q += 4) {
                double x[2 * PAIRS][4] = {};
#pragma unroll
                for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        x[j][i] = fma(-taken[j], widened(base[u].each[q + i]),
                                      widened(held[u][j].each[q + i]));
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

#else

// Weighted sums: out[k] is the sum of weights[k][i] times row i, in the order of the
// rows, rounded once. Rows of weight zero are not read. Blocks that read the same
// columns for several sums follow each other: all but the first find them in the cache.
//
// Set by the caller: AHEAD (rows whose loads are in flight), THREADS.

#if ELEMENT == 3
typedef double result;
#else
typedef float result;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    weighted_sum(const element *rows, const double *weights, result *out, int n,
                 int sums, int columns, int stride) {
    const int k = blockIdx.x % sums;
    const long long part = (long long)(blockIdx.x / sums) * THREADS + threadIdx.x;
    const long long column = part * PER, end = columns;
    if (column >= end) return;
    double total[PER] = {};
    for (int first = 0; first < n; first += AHEAD) {
        Packet held[AHEAD] = {};
        double w[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            w[i] = first + i < n ? weights[(long long)k * n + first + i] : 0.0;
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            if (w[i] != 0.0)
                held[i] = fetched(rows + (long long)(first + i) * stride, column, end);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
#pragma unroll
            for (int q = 0; q < PER; ++q)
                total[q] = fma(w[i], widened(held[i].each[q]), total[q]);
    }
    union {
        uint4 whole[PER * sizeof(result) / 16];
        result each[PER];
    } rounded;
#pragma unroll
    for (int q = 0; q < PER; ++q) rounded.each[q] = total[q];
    result *place = out + k * end + column;
    if (column + PER <= end && (unsigned long long)place % 16 == 0) {
#pragma unroll
        for (int i = 0; i < PER * sizeof(result) / 16; ++i)
            ((uint4 *)place)[i] = rounded.whole[i];
    } else {
#pragma unroll
        for (int q = 0; q < PER; ++q)
            if (column + q < end) place[q] = rounded.each[q];
    }
}

#endif
