/* What the compiled kernels of several packages share: vectors of doubles.
 *
 * Included by solver/_solver.c and displacements/_passes.c; everything here is static.
 */
#ifndef HEWFL_KERNELS_H
#define HEWFL_KERNELS_H

#include "_buffers.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* One binary for old and new processors: the loader picks the widest vectors it finds. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define MULTIARCH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
/* For AVX-512 alone: to be called where has_wide_vectors(). */
#define WIDE __attribute__((target("arch=x86-64-v4")))
static inline int has_wide_vectors(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#else
#define MULTIARCH
#endif

/* GCC keeps a vector that is wider than the processor's in memory: with AVX2 v4 is much faster. */
typedef double v8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef double v4 __attribute__((vector_size(32), aligned(8), may_alias));

/* Sixteen partial sums: they hide the latency of an addition, and their rounding error
 * grows with n/16 and not with n. */
MULTIARCH static double dot(const double *a, const double *b, Py_ssize_t n)
{
    v4 s = {0}, t = {0}, u = {0}, v = {0};
    Py_ssize_t i = 0;
    for (; i + 16 <= n; i += 16) {
        s += *(const v4 *)(a + i) * *(const v4 *)(b + i);
        t += *(const v4 *)(a + i + 4) * *(const v4 *)(b + i + 4);
        u += *(const v4 *)(a + i + 8) * *(const v4 *)(b + i + 8);
        v += *(const v4 *)(a + i + 12) * *(const v4 *)(b + i + 12);
    }
    s += u, t += v;
    double r = ((s[0] + s[1]) + (s[2] + s[3])) + ((t[0] + t[1]) + (t[2] + t[3]));
    for (; i < n; i++)
        r += a[i] * b[i];
    return r;
}

MULTIARCH static void axpy(double alpha, const double *x, double *y, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        y[i] += alpha * x[i];
}

MULTIARCH static void scale_by(double *x, double factor, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        x[i] *= factor;
}

#endif
