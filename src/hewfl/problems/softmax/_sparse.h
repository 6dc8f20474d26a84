/* Products with samples of which few entries differ from the least of their column.
 *
 * Included after _branch.h with the same T and NAME. Entries are read in their own type
 * (float where `narrow`) and counted from the background b: W a = W b + W (a - b), and
 * the last product takes the listed entries alone. Matrices lie with one row for each
 * column of the samples, padded to whole vectors, so that an entry meets one short row.
 */

typedef T NAME(short_vec) __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
#define VEC NAME(short_vec)
#define LANES ((Py_ssize_t)(BYTES / sizeof(T)))
#define INLINE static inline __attribute__((always_inline)) TARGET

/* a - b of entry e; in double the difference of two floats is exact */
INLINE T NAME(entry)(const Sparse *x, Py_ssize_t e, const int narrow)
{
    int32_t k = x->columns[e];
    return narrow ? (T)((const float *)x->values)[e] - (T)((const float *)x->background)[k]
                  : (T)((const double *)x->values)[e] - (T)((const double *)x->background)[k];
}

/* sums of `count` vectors of W for sample j, to `out`
 *
 * U entries at a time have sums of their own: one sum would wait for itself.
 */
INLINE void NAME(gather)(const Sparse *x, Py_ssize_t j, const T *W, Py_ssize_t stride, T *out,
                         const int narrow, const int count, const int U)
{
    VEC s[8];
    for (int i = 0; i < U * count; i++)
        s[i] = (VEC){0};
    Py_ssize_t e = x->starts[j], end = x->starts[j + 1];
    for (; e + U <= end; e += U)
#pragma GCC unroll 8
        for (int u = 0; u < U; u++) {
            const T *w = W + x->columns[e + u] * stride;
            T d = NAME(entry)(x, e + u, narrow);
#pragma GCC unroll 8
            for (int v = 0; v < count; v++)
                s[u * count + v] += *(const VEC *)(w + v * LANES) * d;
        }
    for (; e < end; e++) {
        const T *w = W + x->columns[e] * stride;
        T d = NAME(entry)(x, e, narrow);
#pragma GCC unroll 8
        for (int v = 0; v < count; v++)
            s[v] += *(const VEC *)(w + v * LANES) * d;
    }
    for (int u = 1; u < U; u++)
        for (int v = 0; v < count; v++)
            s[v] += s[u * count + v];
    for (int v = 0; v < count; v++)
        *(VEC *)(out + v * LANES) = s[v];
}

INLINE void NAME(gathers)(const Sparse *x, Py_ssize_t j, const T *W, T *out, const int narrow)
{
    Py_ssize_t stride = x->stride, l = 0;
    for (; l + 8 * LANES <= stride; l += 8 * LANES)
        NAME(gather)(x, j, W + l, stride, out + l, narrow, 8, 1);
    if (l + 4 * LANES <= stride) {
        NAME(gather)(x, j, W + l, stride, out + l, narrow, 4, 2);
        l += 4 * LANES;
    }
    if (l + 2 * LANES <= stride) {
        NAME(gather)(x, j, W + l, stride, out + l, narrow, 2, 4);
        l += 2 * LANES;
    }
    if (l < stride)
        NAME(gather)(x, j, W + l, stride, out + l, narrow, 1, 8);
}

/* out[k][j] = W[k] a_j, class by class, for x->rows samples from x->first on */
INLINE void NAME(all_scores)(const Sparse *x, const T *W, const T *base, T *tile, T *out,
                             const int narrow)
{
    for (Py_ssize_t from = 0; from < x->rows; from += TILE) {
        Py_ssize_t count = x->rows - from < TILE ? x->rows - from : TILE;
        for (Py_ssize_t j = 0; j < count; j++)
            NAME(gathers)(x, x->first + from + j, W, tile + j * x->stride, narrow);
        for (Py_ssize_t k = 0; k < x->classes; k++)
            for (Py_ssize_t j = 0; j < count; j++)
                out[k * x->rows + from + j] = tile[j * x->stride + k] + base[k];
    }
}

/* G[column] += (a_j - b) r_j for `count` vectors of residuals, or for all where 0 */
INLINE void NAME(scatter)(const Sparse *x, Py_ssize_t j, const T *r, T *G, const int narrow,
                          const int count)
{
    Py_ssize_t vectors = count ? count : x->stride / LANES;
    for (Py_ssize_t e = x->starts[j]; e < x->starts[j + 1]; e++) {
        T *g = G + x->columns[e] * x->stride;
        T d = NAME(entry)(x, e, narrow);
        for (Py_ssize_t v = 0; v < vectors; v++)
            *(VEC *)(g + v * LANES) += *(const VEC *)(r + v * LANES) * d;
    }
}

/* G[column][k] = sum_j (a_j - b) r_jk, and sums[k] = sum_j r_jk; all zero before */
INLINE void NAME(all_sums)(const Sparse *x, const T *R, T *r, T *G, T *sums, const int narrow)
{
    Py_ssize_t vectors = x->stride / LANES;
    for (Py_ssize_t j = 0; j < x->rows; j++) {
        for (Py_ssize_t k = 0; k < x->classes; k++) {
            r[k] = R[k * x->rows + j];
            sums[k] += r[k];
        }
        if (vectors == 1)
            NAME(scatter)(x, x->first + j, r, G, narrow, 1);
        else if (vectors == 2)
            NAME(scatter)(x, x->first + j, r, G, narrow, 2);
        else
            NAME(scatter)(x, x->first + j, r, G, narrow, 0);
    }
}

/* whether every column is one of the samples': memory that is not ours would be read */
static TARGET int NAME(known_columns)(const Sparse *x)
{
    int32_t bad = 0, p = (int32_t)x->p;
    for (Py_ssize_t e = x->starts[x->first]; e < x->starts[x->first + x->rows]; e++)
        bad |= x->columns[e] < 0 || x->columns[e] >= p;
    return !bad;
}

/* zeros for some rows of `stride` numbers, each row at the start of a vector */
INLINE T *NAME(zeros)(Sparse *x, Py_ssize_t rows, void **memory)
{
    x->stride = (x->classes + LANES - 1) / LANES * LANES;
    *memory = calloc((size_t)(rows * x->stride) * sizeof(T) + MAX_BYTES, 1);
    return *memory ? (T *)((char *)*memory + (MAX_BYTES - (uintptr_t)*memory % MAX_BYTES)) : NULL;
}

/* S = W Aᵀ: W and out class by class; 0 where there is no memory, -1 for a wrong column */
static TARGET int NAME(sparse_scores)(Sparse *x, const void *given, void *out)
{
    const T *W = given;
    void *memory;
    if (!NAME(known_columns)(x))
        return -1;
    T *turned = NAME(zeros)(x, x->p + 1 + TILE, &memory);
    if (!turned)
        return 0;
    T *base = turned + x->p * x->stride, *tile = base + x->stride;
    for (Py_ssize_t k = 0; k < x->classes; k++)
        for (Py_ssize_t l = 0; l < x->p; l++) {
            T b = x->narrow ? (T)((const float *)x->background)[l]
                            : (T)((const double *)x->background)[l];
            turned[l * x->stride + k] = W[k * x->p + l];
            base[k] += W[k * x->p + l] * b;
        }
    if (x->narrow)
        NAME(all_scores)(x, turned, base, tile, out, 1);
    else
        NAME(all_scores)(x, turned, base, tile, out, 0);
    free(memory);
    return 1;
}

/* out = R A: R and out class by class; 0 where there is no memory, -1 for a wrong column */
static TARGET int NAME(sparse_sums)(Sparse *x, const void *R, void *out)
{
    void *memory;
    if (!NAME(known_columns)(x))
        return -1;
    T *G = NAME(zeros)(x, x->p + 2, &memory), *product = out;
    if (!G)
        return 0;
    T *sums = G + x->p * x->stride, *r = sums + x->stride;
    if (x->narrow)
        NAME(all_sums)(x, R, r, G, sums, 1);
    else
        NAME(all_sums)(x, R, r, G, sums, 0);
    for (Py_ssize_t k = 0; k < x->classes; k++)
        for (Py_ssize_t l = 0; l < x->p; l++) {
            T b = x->narrow ? (T)((const float *)x->background)[l]
                            : (T)((const double *)x->background)[l];
            product[k * x->p + l] = G[l * x->stride + k] + sums[k] * b;
        }
    free(memory);
    return 1;
}

#undef VEC
#undef LANES
#undef INLINE
