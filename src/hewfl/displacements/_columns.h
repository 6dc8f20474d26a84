/* Means of neighbours among the sorted values of every column, for one type of number.
 *
 * Included by _passes.c once with REAL float and once with REAL double.
 */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define OF(name) JOIN(name, REAL)

/* The shares where values tie or all agree: values that tie for the last place share it, and a
 * column in which all agree does not count. `strip` is sorted. */
MULTIARCH static void OF(tied_shares)(const Window *v, const Rows *rows, Py_ssize_t lo, int len,
                                      const REAL *strip, double *shares)
{
    Py_ssize_t end = v->first + v->count;
    const REAL *low = strip + v->first * STRIP, *high = strip + (end - 1) * STRIP;
    const REAL *top = strip + (v->n - 1) * STRIP;
    REAL lows[STRIP] = {0}, highs[STRIP] = {0}, kept_lows[STRIP] = {0}, kept_highs[STRIP] = {0};
    double of_low[STRIP], of_high[STRIP], differ[STRIP];
    for (Py_ssize_t i = 0; i < v->n; i++) {
        const REAL *x = strip + i * STRIP, kept = i >= v->first && i < end ? 1 : 0;
        for (int w = 0; w < STRIP; w++) {
            REAL is_low = x[w] == low[w] ? 1 : 0, is_high = x[w] == high[w] ? 1 : 0;
            lows[w] += is_low, kept_lows[w] += kept * is_low;
            highs[w] += is_high, kept_highs[w] += kept * is_high;
        }
    }
    for (int w = 0; w < STRIP; w++) { /* at least 1: numbers that are not finite count nowhere */
        differ[w] = w < len && strip[w] < top[w] ? 1.0 : 0.0;
        of_low[w] = (double)kept_lows[w] / (double)(lows[w] > 0 ? lows[w] : 1);
        of_high[w] = (double)kept_highs[w] / (double)(highs[w] > 0 ? highs[w] : 1);
    }
    for (Py_ssize_t i = 0; i < v->n; i++) {
        const REAL *x = (const REAL *)at(rows, i, lo);
        double sum[STRIP] = {0}, total = 0.0;
        for (int w = 0; w < len; w++) {
            double inside = (x[w] > low[w]) & (x[w] < high[w]) ? 1.0 : 0.0;
            double at_high = x[w] == high[w] ? of_high[w] : inside;
            sum[w] = differ[w] * (x[w] == low[w] ? of_low[w] : at_high);
        }
        for (int w = 0; w < STRIP; w++)
            total += sum[w];
        shares[i] += total;
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
        OF(tied_shares)(v, rows, lo, len, strip, shares);
}

#undef OF
#undef JOIN
#undef JOIN_
