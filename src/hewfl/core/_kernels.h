/* What the compiled kernels of several rooms share: vectors of doubles.
 *
 * Included by solver/_solver.c and aggregate/_passes.c; everything here is static.
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
#else
#define MULTIARCH
#endif

typedef double v8 __attribute__((vector_size(64), aligned(8), may_alias));

/* Sixteen partial sums: they hide the latency of an addition, and their rounding error
 * grows with n/16 and not with n. */
MULTIARCH static double dot(const double *a, const double *b, Py_ssize_t n)
{
    v8 s = {0}, t = {0};
    Py_ssize_t i = 0;
    for (; i + 16 <= n; i += 16) {
        s += *(const v8 *)(a + i) * *(const v8 *)(b + i);
        t += *(const v8 *)(a + i + 8) * *(const v8 *)(b + i + 8);
    }
    s += t;
    double r = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
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
