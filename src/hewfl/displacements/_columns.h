/* Means of neighbours among the sorted values of every column, for one type of number.
 *
 * Included by _passes.c once with REAL float and once with REAL double.
 */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define OF(name) JOIN(name, REAL)

/* The shares of one column, where values tie or all agree: those that tie for the last place
 * share it, and a column in which all agree does not count. `sorted` is its first value. */
static void OF(tied_shares)(const Window *v, const Rows *rows, Py_ssize_t column,
                            const REAL *sorted, double *shares)
{
    Py_ssize_t end = v->first + v->count, all[2] = {0, 0}, kept[2] = {0, 0};
    REAL low = sorted[v->first * STRIP], high = sorted[(end - 1) * STRIP];
    if (!(sorted[0] < sorted[(v->n - 1) * STRIP]))
        return;
    for (Py_ssize_t i = 0; i < v->n; i++) {
        REAL x = sorted[i * STRIP];
        int is_kept = i >= v->first && i < end;
        all[0] += x == low, kept[0] += is_kept && x == low;
        all[1] += x == high, kept[1] += is_kept && x == high;
    }
    for (Py_ssize_t i = 0; i < v->n; i++) {
        REAL x = *(const REAL *)at(rows, i, column);
        if (x == low || x == high)
            shares[i] += (double)kept[x != low] / (double)all[x != low];
        else if (x > low && x < high)
            shares[i] += 1.0;
    }
}

/* `len` columns from `lo` on: their means into `means`, and who is in them added to `shares`. */
MULTIARCH static void OF(window)(const Window *v, const Rows *rows, Py_ssize_t lo, int len,
                                 REAL *restrict strip, double *means, double *shares)
{
    Py_ssize_t end = v->first + v->count, inside = 0, differ = 0;
    for (Py_ssize_t i = 0; i < v->n; i++) {
        memset(strip + i * STRIP + len, 0, (size_t)(STRIP - len) * sizeof(REAL));
        memcpy(strip + i * STRIP, at(rows, i, lo), (size_t)len * sizeof(REAL));
    }
    for (Py_ssize_t k = 0; k < v->swaps; k++) {
        REAL *restrict x = strip + v->pairs[2 * k] * STRIP;
        REAL *restrict y = strip + v->pairs[2 * k + 1] * STRIP;
        for (int w = 0; w < STRIP; w++) {
            REAL a = x[w], b = y[w];
            x[w] = b < a ? b : a;
            y[w] = b < a ? a : b;
        }
    }
    double sum[STRIP] = {0};
    for (Py_ssize_t i = v->first; i < end; i++)
        for (int w = 0; w < STRIP; w++)
            sum[w] += (double)strip[i * STRIP + w];
    for (int w = 0; w < len; w++)
        means[lo + w] = sum[w] / (double)v->count;
    const REAL *low = strip + v->first * STRIP, *high = strip + (end - 1) * STRIP;
    for (int w = 0; w < len; w++)
        differ += strip[w] < strip[(v->n - 1) * STRIP + w];
    for (Py_ssize_t i = 0; i < v->n; i++) {
        const REAL *x = (const REAL *)at(rows, i, lo);
        int32_t own = 0;
        for (int w = 0; w < len; w++)
            own += (x[w] >= low[w]) & (x[w] <= high[w]);
        v->inside[i] = own;
        inside += own;
    }
    if (inside == v->count * len && differ == len)
        for (Py_ssize_t i = 0; i < v->n; i++)
            shares[i] += (double)v->inside[i];
    else
        for (int w = 0; w < len; w++)
            OF(tied_shares)(v, rows, lo + w, strip + w, shares);
}

#undef OF
#undef JOIN
#undef JOIN_
