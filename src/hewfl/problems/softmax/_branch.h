/* One branch of local SGD on softmax regression, for one type and one kind of processor.
 *
 * Included by _processor.h once for each type, with
 *   T, BITS   float and uint32_t, or double and uint64_t
 *   NAME(x)   x with a suffix for type and processor
 *
 * Samples are read where they lie. The model W, the displacement D and the anchor X are
 * padded to whole vectors and to whole groups of K classes, and stay in cache.
 */

typedef T NAME(vec) __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
typedef BITS NAME(mask) __attribute__((vector_size(BYTES)));
#define VEC NAME(vec)
#define LANES ((Py_ssize_t)(BYTES / sizeof(T)))
#define INLINE static inline __attribute__((always_inline)) TARGET

/* The sum of a vector's entries, by halves: log2(LANES) shuffles, and an order of adding
 * that depends on nothing but the width. */
INLINE T NAME(sum)(VEC v)
{
#ifdef __clang__ /* has no shuffle by a vector; the same sums, entry by entry */
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            v[i] += v[i + half];
#else
    NAME(mask) turn;
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < LANES; i++)
            turn[i] = (BITS)(i ^ half);
        v += __builtin_shuffle(v, turn);
    }
#endif
    return v[0];
}

/* Scores of `count` samples for K classes from class k on; fetches the next batch.
 *
 * K and count are constants where this is inlined, so that all count * K sums stay in
 * registers and each vector that is read serves K or count products. One sum per product
 * would wait for memory instead.
 */
INLINE void NAME(score)(const Branch *g, const T *const *rows, const T *const *next,
                        const T *tails, Py_ssize_t first, Py_ssize_t k, const int K,
                        const int count)
{
    const T *W = (const T *)g->W + k * g->stride;
    VEC s[8][8];
    for (int r = 0; r < count; r++)
        for (int c = 0; c < K; c++)
            s[r][c] = (VEC){0};
    for (Py_ssize_t l = 0; l < g->whole; l += LANES) {
        VEC a[8];
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            a[r] = *(const VEC *)(rows[first + r] + l);
            if (next)
                __builtin_prefetch(next[first + r] + l, 0, 2);
        }
#pragma GCC unroll 8
        for (int c = 0; c < K; c++) {
            VEC w = *(const VEC *)(W + c * g->stride + l);
#pragma GCC unroll 8
            for (int r = 0; r < count; r++)
                s[r][c] += a[r] * w;
        }
    }
    if (g->whole < g->p) /* columns left over: a vector read from the sample would leave it */
        for (int c = 0; c < K; c++)
            for (int r = 0; r < count; r++)
                s[r][c] += *(const VEC *)(tails + (first + r) * LANES) *
                           *(const VEC *)(W + c * g->stride + g->whole);
    T *S = (T *)g->S + k * g->b + first; /* class by class */
    for (int c = 0; c < K; c++)
        for (int r = 0; r < count; r++)
            S[c * g->b + r] = NAME(sum)(s[r][c]);
}

INLINE void NAME(scores)(const Branch *g, const T *const *rows, const T *const *next,
                         const T *tails, const int K)
{
    const int count = ROWS(K);
    for (Py_ssize_t k = 0; k < g->padded; k += K) {
        const T *const *fetched = k == 0 ? next : NULL;
        Py_ssize_t j = 0;
        for (; j + count <= g->b; j += count)
            NAME(score)(g, rows, fetched, tails, j, k, K, count);
        for (; j < g->b; j++)
            NAME(score)(g, rows, fetched, tails, j, k, K, 1);
    }
}

/* exp(x) for x <= 0: x = n ln 2 + r, Taylor in r, error below an ulp; NaN stays NaN.
 *
 * Without branches or calls, so that the loops over samples become vector code; exp of
 * the C library is called entry by entry.
 */
INLINE T NAME(exponential)(T x)
{
    const int wide = sizeof(T) == 8;
    const T least = wide ? (T)-708.0 : (T)-87.0;
    const T shift = wide ? (T)6755399441055744.0 : (T)12582912.0; /* 1.5 x 2^52, 2^23 */
    x = x < least ? least : x; /* below it the exponent of 2^n would wrap around */
    /* A number of that size has no digits after the point: adding it rounds to a whole
     * number n, which also stands in the lowest bits of t. */
    T t = x * (T)1.4426950408889634 + shift, n = t - shift;
    /* ln 2 in two parts: n * high is exact, so that r loses no digits where n is large */
    T high = wide ? (T)0x1.62e42fefap-1 : (T)0x1.62e4p-1;
    T low = wide ? (T)0x1.cf79abc9e3b39p-40 : (T)0x1.7f7d1cp-20;
    T r = (x - n * high) - n * low, e;
    if (wide)
        e = 1 + r * (1 + r * ((T)(1 / 2.0) + r * ((T)(1 / 6.0) + r * ((T)(1 / 24.0) +
            r * ((T)(1 / 120.0) + r * ((T)(1 / 720.0) + r * ((T)(1 / 5040.0) +
            r * ((T)(1 / 40320.0) + r * ((T)(1 / 362880.0) + r * ((T)(1 / 3628800.0) +
            r * ((T)(1 / 39916800.0) + r * ((T)(1 / 479001600.0) +
            r * (T)(1 / 6227020800.0)))))))))))));
    else
        e = 1 + r * (1 + r * ((T)(1 / 2.0) + r * ((T)(1 / 6.0) + r * ((T)(1 / 24.0) +
            r * ((T)(1 / 120.0) + r * ((T)(1 / 720.0) + r * (T)(1 / 5040.0)))))));
    BITS bits, zero;
    memcpy(&bits, &t, sizeof(T));
    memcpy(&zero, &shift, sizeof(T));
    /* n + bias in the place of the exponent: 2^n without a table or a multiplication */
    bits = (bits - zero + (wide ? 1023 : 127)) << (wide ? 52 : 23);
    T scale;
    memcpy(&scale, &bits, sizeof(T));
    return e * scale;
}

/* Z[sample][class] = (softmax(S) - e_label) / b.
 *
 * Less the largest score of a sample, as exp overflows at 89 in float. Sample by sample
 * in the inner loops, as these lie side by side in S.
 */
static TARGET void NAME(residuals)(const Branch *g, const int64_t *labels)
{
    T *S = g->S, *Z = g->Z, *top = g->top, *total = g->total;
    Py_ssize_t b = g->b, c = g->classes;
    memcpy(top, S, (size_t)b * sizeof(T));
    for (Py_ssize_t k = 1; k < c; k++)
        for (Py_ssize_t j = 0; j < b; j++)
            top[j] = S[k * b + j] > top[j] ? S[k * b + j] : top[j];
    memset(total, 0, (size_t)b * sizeof(T));
    for (Py_ssize_t k = 0; k < c; k++)
        for (Py_ssize_t j = 0; j < b; j++) {
            T e = NAME(exponential)(S[k * b + j] - top[j]);
            S[k * b + j] = e;
            total[j] += e;
        }
    for (Py_ssize_t j = 0; j < b; j++)
        total[j] = 1 / (total[j] * (T)b);
    for (Py_ssize_t k = 0; k < c; k++)
        for (Py_ssize_t j = 0; j < b; j++)
            Z[j * g->padded + k] = S[k * b + j] * total[j];
    for (Py_ssize_t j = 0; j < b; j++)
        Z[j * g->padded + labels[j]] -= 1 / (T)b;
}

/* `count` vectors of columns from l on, K classes from k on: gradient, then the step.
 *
 * The gradient stays in registers and is used at once; it is never stored. D = y - x is
 * what steps add to, and W = X + D is computed anew: steps far smaller than the model
 * would be rounded away if W were the sum.
 */
INLINE void NAME(move)(const Branch *g, const T *const *rows, Py_ssize_t offset,
                       Py_ssize_t l, Py_ssize_t k, const int K, const int count)
{
    const T *Z = (const T *)g->Z + k;
    VEC s[8][8];
    for (int v = 0; v < count; v++)
        for (int c = 0; c < K; c++)
            s[v][c] = (VEC){0};
    for (Py_ssize_t j = 0; j < g->b; j++) {
        VEC a[8];
#pragma GCC unroll 8
        for (int v = 0; v < count; v++)
            a[v] = *(const VEC *)(rows[j] + l - offset + v * LANES);
#pragma GCC unroll 8
        for (int c = 0; c < K; c++) {
            T z = Z[j * g->padded + c];
#pragma GCC unroll 8
            for (int v = 0; v < count; v++)
                s[v][c] += a[v] * z;
        }
    }
    const T eta = (T)g->eta, l2 = (T)g->l2, pull = (T)g->pull;
    for (int c = 0; c < K; c++)
        for (int v = 0; v < count; v++) {
            Py_ssize_t at = (k + c) * g->stride + l + v * LANES;
            VEC *W = (VEC *)((T *)g->W + at), *D = (VEC *)((T *)g->D + at);
            VEC grad = s[v][c] + *W * l2 + *D * pull;
            if (g->C)
                grad -= *(const VEC *)((const T *)g->C + at);
            *D -= grad * eta;
            if (!g->hold)
                *W = *(const VEC *)((const T *)g->X + at) + *D;
        }
}

INLINE void NAME(moves)(const Branch *g, const T *const *rows, const T *const *tail_rows,
                        const int K)
{
    const int count = ROWS(K);
    for (Py_ssize_t k = 0; k < g->padded; k += K) {
        Py_ssize_t l = 0;
        for (; l + count * LANES <= g->whole; l += count * LANES)
            NAME(move)(g, rows, 0, l, k, K, count);
        for (; l < g->whole; l += LANES)
            NAME(move)(g, rows, 0, l, k, K, 1);
        if (l < g->p)
            NAME(move)(g, tail_rows, l, l, k, K, 1);
    }
}

/* one step of SGD on the samples given by `rows` */
static TARGET void NAME(step)(const Branch *g, const void *const *given, const void *const *after,
                              const int64_t *labels)
{
    const T *const *rows = (const T *const *)given, *const *next = (const T *const *)after;
    T *tails = g->tails;
    const T **tail_rows = (const T **)g->tail_rows;
    for (Py_ssize_t j = 0; j < g->b; j++) {
        tail_rows[j] = tails + j * LANES;
        memcpy(tails + j * LANES, rows[j] + g->whole, (size_t)(g->p - g->whole) * sizeof(T));
    }
#define GROUP(K)                                                                           \
    case K:                                                                                \
        NAME(scores)(g, rows, next, tails, K);                                             \
        NAME(residuals)(g, labels);                                                        \
        NAME(moves)(g, rows, tail_rows, K);                                                \
        break;
    switch (g->group) {
        GROUP(2)
        GROUP(4)
        GROUP(5)
        GROUP(8)
    }
#undef GROUP
}

#undef VEC
#undef LANES
#undef INLINE
