/* Passes over the displacements, compiled: the same results as gram.py, weighted_sum.py,
 * count_sketch.py, control_variates.py and aggregators/coordinatewise.py, for speed only. Callers go through
 * hewfl.core.native.library(); every entry point checks that its buffers are as long as it will read or write.
 */
#include "../core/_kernels.h"

#define LONGEST ((Py_ssize_t)1 << 40)
#define LINED __attribute__((aligned(64))) /* stores across cache lines take twice as long */

/* y <- y + alpha x with one rounding: g + curvature r may cancel (gram.slope_at) */
MULTIARCH static void add_scaled_exactly(double alpha, const double *x, double *y, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        y[i] = fma(alpha, x[i], y[i]);
}

enum { FLOAT32, FLOAT64, BFLOAT16, ZEROS }; /* ZEROS: a row of zeros that is not stored */
enum { CHUNK = 256, FLUSH = 256, PIECE = 4096 }; /* numbers that fit a cache; see flush */
static const Py_ssize_t SIZE[] = {4, 8, 2, 0};

typedef struct {
    Py_ssize_t n;
    Py_buffer *buffers;
    int *types;
} Rows;

static const char *at(const Rows *rows, Py_ssize_t i, Py_ssize_t lo)
{
    return (const char *)rows->buffers[i].buf + lo * SIZE[rows->types[i]];
}

/* A bfloat16 is the upper half of a float32. */
static inline double wide(uint16_t half)
{
    union {
        uint32_t bits;
        float value;
    } x = {.bits = (uint32_t)half << 16};
    return (double)x.value;
}

/* out[0..n) <- row - r in double precision */
MULTIARCH static void load(const char *row, int type, Py_ssize_t n, const double *restrict r,
                           double *restrict out)
{
    const float *x = (const float *)row;
    const double *y = (const double *)row;
    const uint16_t *z = (const uint16_t *)row;
    if (type == FLOAT32)
        for (Py_ssize_t i = 0; i < n; i++)
            out[i] = (double)x[i] - r[i];
    else if (type == FLOAT64)
        for (Py_ssize_t i = 0; i < n; i++)
            out[i] = y[i] - r[i];
    else if (type == BFLOAT16)
        for (Py_ssize_t i = 0; i < n; i++)
            out[i] = wide(z[i]) - r[i];
    else
        for (Py_ssize_t i = 0; i < n; i++)
            out[i] = 0.0 - r[i];
}

/* Fetches a later chunk of the data, at an even pace: reading hides behind arithmetic, and bursts
 * would wait for each other. `pace` is lines a call, in units of 1/256. */
typedef struct {
    const Rows *rows;
    Py_ssize_t next, row, pace, due;
    const char *line, *end;
} Fetch;

static inline void fetch(Fetch *f)
{
    for (f->due += f->pace; f->due >= 256; f->due -= 256) {
        if (f->line >= f->end) {
            if (f->row >= f->rows->n)
                return;
            f->line = at(f->rows, f->row, f->next);
            f->end = f->line + CHUNK * SIZE[f->rows->types[f->row]];
            f->row++;
        }
        if (f->line < f->end) { /* a row of zeros has no lines */
            __builtin_prefetch(f->line, 0, 2);
            f->line += 64;
        }
    }
}

/* The pace at which all lines of a chunk are fetched in `calls` calls. */
static Py_ssize_t fetch_pace(const Rows *rows, Py_ssize_t calls)
{
    Py_ssize_t bytes = 0;
    for (Py_ssize_t i = 0; i < rows->n; i++)
        bytes += CHUNK * SIZE[rows->types[i]];
    return (bytes * 4 + calls - 1) / calls;
}

#define AT(type, X, row, l) (*(const type *)((X) + (row) * CHUNK + (l)))

/* sums[(I, J) block pairs, I <= J][4 x 4] += X_I X_J' over one chunk, 8 lanes apart.
 *
 * The sums of one pass stay in registers, at least eight of them: fewer leave the multipliers
 * waiting for their own results. AVX2 has sixteen registers: three columns at four lanes, then
 * the last column at all eight. Both versions add up a lane in the same order. */
MULTIARCH static void rank_update(const double *X, Py_ssize_t blocks, double *sums, Fetch *f)
{
    for (Py_ssize_t I = 0; I < blocks; I++) {
        const double *a = X + I * 4 * CHUNK;
        for (int lane = 0; lane < 8; lane += 4) {
            v4 t[10] = {{0}};
            for (Py_ssize_t l = lane; l < CHUNK; l += 8) {
                v4 x[4] = {AT(v4, a, 0, l), AT(v4, a, 1, l), AT(v4, a, 2, l), AT(v4, a, 3, l)};
                fetch(f);
                t[0] += x[0] * x[0], t[1] += x[0] * x[1], t[2] += x[0] * x[2];
                t[3] += x[0] * x[3], t[4] += x[1] * x[1], t[5] += x[1] * x[2];
                t[6] += x[1] * x[3], t[7] += x[2] * x[2], t[8] += x[2] * x[3];
                t[9] += x[3] * x[3];
            }
            for (int p = 0, k = 0; p < 4; p++)
                for (int q = p; q < 4; q++, k++)
                    *(v4 *)(sums + 32 * p + 8 * q + lane) += t[k];
        }
        sums += 16 * 8;
        for (Py_ssize_t J = I + 1; J < blocks; J++, sums += 16 * 8) {
            const double *b = X + J * 4 * CHUNK;
            for (int lane = 0; lane < 8; lane += 4) {
                v4 s[4][3] = {{{0}}};
                for (Py_ssize_t l = lane; l < CHUNK; l += 8) {
                    v4 y[3] = {AT(v4, b, 0, l), AT(v4, b, 1, l), AT(v4, b, 2, l)};
                    fetch(f);
                    for (int p = 0; p < 4; p++) {
                        v4 x = AT(v4, a, p, l);
                        s[p][0] += x * y[0], s[p][1] += x * y[1], s[p][2] += x * y[2];
                    }
                }
                for (int p = 0; p < 4; p++)
                    for (int q = 0; q < 3; q++)
                        *(v4 *)(sums + 32 * p + 8 * q + lane) += s[p][q];
            }
            v4 s[4][2] = {{{0}}};
            for (Py_ssize_t l = 0; l < CHUNK; l += 8) {
                v4 y[2] = {AT(v4, b, 3, l), AT(v4, b, 3, l + 4)};
                for (int p = 0; p < 4; p++)
                    s[p][0] += AT(v4, a, p, l) * y[0], s[p][1] += AT(v4, a, p, l + 4) * y[1];
            }
            for (int p = 0; p < 4; p++)
                for (int half = 0; half < 2; half++)
                    *(v4 *)(sums + 32 * p + 24 + 4 * half) += s[p][half];
        }
    }
}

#ifdef WIDE
/* AVX-512 has 32 registers: sixteen sums of eight lanes, ten on the diagonal. */
WIDE static void rank_update_wide(const double *X, Py_ssize_t blocks, double *sums, Fetch *f)
{
    for (Py_ssize_t I = 0; I < blocks; I++) {
        const double *a = X + I * 4 * CHUNK;
        v8 t[10] = {{0}};
        for (Py_ssize_t l = 0; l < CHUNK; l += 8) {
            v8 x[4] = {AT(v8, a, 0, l), AT(v8, a, 1, l), AT(v8, a, 2, l), AT(v8, a, 3, l)};
            fetch(f);
            t[0] += x[0] * x[0], t[1] += x[0] * x[1], t[2] += x[0] * x[2], t[3] += x[0] * x[3];
            t[4] += x[1] * x[1], t[5] += x[1] * x[2], t[6] += x[1] * x[3];
            t[7] += x[2] * x[2], t[8] += x[2] * x[3], t[9] += x[3] * x[3];
        }
        for (int p = 0, k = 0; p < 4; p++)
            for (int q = p; q < 4; q++, k++)
                *(v8 *)(sums + 32 * p + 8 * q) += t[k];
        sums += 16 * 8;
        for (Py_ssize_t J = I + 1; J < blocks; J++, sums += 16 * 8) {
            const double *b = X + J * 4 * CHUNK;
            v8 s[4][4] = {{{0}}};
            for (Py_ssize_t l = 0; l < CHUNK; l += 8) {
                v8 y[4] = {AT(v8, b, 0, l), AT(v8, b, 1, l), AT(v8, b, 2, l), AT(v8, b, 3, l)};
                fetch(f);
                for (int p = 0; p < 4; p++) {
                    v8 x = AT(v8, a, p, l);
                    s[p][0] += x * y[0], s[p][1] += x * y[1];
                    s[p][2] += x * y[2], s[p][3] += x * y[3];
                }
            }
            for (int p = 0; p < 4; p++)
                for (int q = 0; q < 4; q++)
                    *(v8 *)(sums + 32 * p + 8 * q) += s[p][q];
        }
    }
}
#endif

/* A += sums over the lanes; sums <- 0. Every FLUSH chunks: a sum of long partial sums
 * rounds once for each of them, a single running sum would round for each chunk at the size
 * of the whole, and lose digits as d grows. A is symmetric, of m + 1 rows; that of the origin
 * stays as it is. */
static void flush(double *sums, Py_ssize_t blocks, Py_ssize_t m, Py_ssize_t origin, double *A)
{
    for (Py_ssize_t I = 0; I < blocks; I++)
        for (Py_ssize_t J = I; J < blocks; J++)
            for (int p = 0; p < 4; p++)
                for (int q = 0; q < 4; q++, sums += 8) {
                    Py_ssize_t i = I * 4 + p, j = J * 4 + q;
                    double s = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                               ((sums[4] + sums[5]) + (sums[6] + sums[7]));
                    memset(sums, 0, 8 * sizeof(double));
                    if (i < m && j < m && i <= j) {
                        i += i >= origin, j += j >= origin;
                        A[i * (m + 1) + j] += s;
                        A[j * (m + 1) + i] = A[i * (m + 1) + j];
                    }
                }
}

static void drop_rows(Rows *rows)
{
    for (Py_ssize_t i = 0; i < rows->n; i++)
        PyBuffer_Release(&rows->buffers[i]);
    free(rows->buffers);
    free(rows->types);
}

/* rows: a list of contiguous buffers; types: bytes, one code per row */
static int hold_rows(Rows *rows, PyObject *list, const char *types, Py_ssize_t count,
                     Py_ssize_t d)
{
    rows->n = 0;
    rows->buffers = NULL, rows->types = NULL;
    if (d > LONGEST) { /* rows of zeros have no buffer that would say so */
        PyErr_SetString(PyExc_ValueError, "the rows are too long");
        return 0;
    }
    rows->buffers = malloc((size_t)count * sizeof(Py_buffer) + 1);
    rows->types = malloc((size_t)count * sizeof(int) + 1);
    if (!rows->buffers || !rows->types) {
        PyErr_NoMemory();
        drop_rows(rows);
        return 0;
    }
    int is_bounded = d <= 0; /* rows of zeros alone would be read for ever where d is damaged */
    for (Py_ssize_t i = 0; i < count; i++)
        is_bounded |= types[i] != ZEROS;
    if (!is_bounded) {
        PyErr_SetString(PyExc_ValueError, "no row is stored");
        drop_rows(rows);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *row = PySequence_GetItem(list, i);
        int failed = !row || PyObject_GetBuffer(row, &rows->buffers[i], PyBUF_SIMPLE) < 0;
        Py_XDECREF(row);
        if (failed) {
            drop_rows(rows);
            return 0;
        }
        rows->types[i] = types[i];
        rows->n = i + 1;
        if (types[i] < 0 || types[i] > ZEROS ||
            !fits(&rows->buffers[i], d, SIZE[(int)types[i]])) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "unknown type of row");
            drop_rows(rows);
            return 0;
        }
    }
    return 1;
}

/* Where rows are measured from: a vector of d numbers, or nothing for zero. */
typedef struct {
    Py_buffer buffer;
    int type;
} Base;

/* The base of a call, whose buffer may be None; drop_base releases it. */
static int hold_base(Base *base, Py_ssize_t d)
{
    if (!base->buffer.buf)
        base->type = ZEROS;
    if (base->type < 0 || base->type > ZEROS) {
        PyErr_SetString(PyExc_ValueError, "unknown type of row");
        return 0;
    }
    return fits(&base->buffer, d, SIZE[base->type]);
}

static void drop_base(Base *base)
{
    if (base->buffer.obj)
        PyBuffer_Release(&base->buffer);
}

static const char *base_at(const Base *base, Py_ssize_t lo)
{
    return (const char *)base->buffer.buf + lo * SIZE[base->type];
}

/* gram(rows, types, d, curvature, scale, slope_scale, origin, A, offset, base=None, base_type=0)
 *
 * The last row is the reference g, those before are y_i, and y_o one of them, the origin.
 * With x the base, r = y_o - x, c_i = scale (y_i - y_o), h = slope_scale (g + curvature r),
 * adds to A the inner products of all c_i and h, c_o = 0, and to offset (g, r) and (r, r):
 * a vector may be given in pieces, one call for each. A is symmetric before and after.
 */
static PyObject *native_gram(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, out, offset;
    Base base = {0};
    Py_ssize_t d, origin;
    double curvature, scale, slope_scale;
    if (!PyArg_ParseTuple(args, "Oy*ndddnw*w*|z*i", &list, &types, &d, &curvature, &scale,
                          &slope_scale, &origin, &out, &offset, &base.buffer, &base.type))
        return NULL;
    Rows rows;
    Py_ssize_t width = types.len - 1;
    int held = origin >= 0 && origin < width && fits(&out, times(types.len, types.len, 1), 8) && fits(&offset, 2, 8) &&
               hold_base(&base, d) && hold_rows(&rows, list, types.buf, types.len, d);
    int ok = held;
    if (!held && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "an origin and a reference are needed");
    if (held) {
        Py_ssize_t m = rows.n - 1, blocks = (m + 3) / 4, pairs = blocks * (blocks + 1) / 2;
        size_t used = (size_t)(4 * blocks + 4) * CHUNK * sizeof(double);
        size_t size = used + (size_t)pairs * 128 * sizeof(double);
        double *raw = malloc(size + 64);
        ok = raw != NULL;
        if (ok) {
            Py_BEGIN_ALLOW_THREADS
            double *X = (double *)(((uintptr_t)raw + 63) & ~(uintptr_t)63);
            memset(X, 0, size);
            double *r = X + 4 * blocks * CHUNK, *zero = r + CHUNK, *y = zero + CHUNK;
            double *x = y + CHUNK, *sums = x + CHUNK;
            double *h = X + (m - 1) * CHUNK;
            double *A = out.buf, *o = offset.buf, gr = 0.0, rr = 0.0;
            Py_ssize_t since = 0, calls = 2 * pairs * (CHUNK / 8);
            void (*update)(const double *, Py_ssize_t, double *, Fetch *) = rank_update;
#ifdef WIDE
            const char *asked = getenv("HEWFL_NATIVE");
            if (has_wide_vectors() && !(asked && !strcmp(asked, "avx2")))
                update = rank_update_wide, calls = pairs * (CHUNK / 8);
#endif
            Py_ssize_t pace = fetch_pace(&rows, calls);
            for (Py_ssize_t lo = 0; lo < d; lo += CHUNK) {
                Py_ssize_t len = d - lo < CHUNK ? d - lo : CHUNK;
                if (len < CHUNK)
                    memset(X, 0, used);
                load(at(&rows, origin, lo), rows.types[origin], len, zero, y);
                load(base_at(&base, lo), base.type, len, zero, x);
                load((const char *)y, FLOAT64, len, x, r);
                for (Py_ssize_t k = 0; k < m - 1; k++) {
                    Py_ssize_t i = k + (k >= origin);
                    load(at(&rows, i, lo), rows.types[i], len, y, X + k * CHUNK);
                }
                if (scale != 1.0)
                    scale_by(X, scale, (m - 1) * CHUNK);
                load(at(&rows, m, lo), rows.types[m], len, zero, h);
                if (scale == 1.0 && slope_scale == 1.0)
                    gr += dot(h, r, CHUNK);
                else { /* scaled first: the product of the given numbers may overflow */
                    memcpy(y, h, CHUNK * sizeof(double));
                    memcpy(x, r, CHUNK * sizeof(double));
                    scale_by(y, slope_scale, CHUNK);
                    scale_by(x, scale, CHUNK);
                    gr += dot(y, x, CHUNK);
                }
                add_scaled_exactly(curvature, r, h, CHUNK);
                scale_by(h, slope_scale, CHUNK);
                scale_by(r, scale, CHUNK);
                rr += dot(r, r, CHUNK);
                Fetch f = {.rows = &rows, .next = lo + 2 * CHUNK, .pace = pace};
                update(X, blocks, sums, &f);
                if (++since == FLUSH) {
                    flush(sums, blocks, m, origin, A);
                    since = 0;
                }
            }
            flush(sums, blocks, m, origin, A);
            o[0] += gr, o[1] += rr;
            Py_END_ALLOW_THREADS
        } else
            PyErr_NoMemory();
        free(raw);
        drop_rows(&rows);
    }
    drop_base(&base);
    PyBuffer_Release(&types);
    PyBuffer_Release(&out);
    PyBuffer_Release(&offset);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* The bits of the largest |x_i|: among doubles without a sign they are in the order of the
 * numbers, NaN the last. Adds the squares to `square`. */
MULTIARCH static void size_up(const double *x, Py_ssize_t n, uint64_t *far, double *square)
{
    uint64_t most = *far;
    for (Py_ssize_t i = 0; i < n; i++) {
        union {
            double value;
            uint64_t bits;
        } entry = {.value = x[i]};
        uint64_t size = entry.bits & 0x7fffffffffffffffu;
        most = size > most ? size : most;
    }
    *far = most;
    *square += dot(x, x, n);
}

/* sampled(rows, types, d, starts, width, squares, base=None, base_type=0)
 *
 * Of entries s, ..., s + width - 1 of every row less the base, s each of the starts: adds the
 * squares of row i to squares_i, and returns the largest size of an entry.
 */
static PyObject *native_sampled(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, starts, squares;
    Base base = {0};
    Py_ssize_t d, width;
    if (!PyArg_ParseTuple(args, "Oy*ny*nw*|z*i", &list, &types, &d, &starts, &width, &squares,
                          &base.buffer, &base.type))
        return NULL;
    Rows rows;
    Py_ssize_t n = types.len, count = starts.len / 8;
    const int64_t *from = starts.buf;
    int valid = width >= 0 && width <= d;
    for (Py_ssize_t k = 0; valid && k < count; k++)
        valid = from[k] >= 0 && from[k] <= d - width;
    if (!valid)
        PyErr_SetString(PyExc_ValueError, "a sample is outside the rows");
    int held = valid && fits(&squares, n, 8) && hold_base(&base, d) &&
               hold_rows(&rows, list, types.buf, n, d);
    union {
        uint64_t bits;
        double value;
    } far = {.bits = 0};
    if (held) {
        Py_BEGIN_ALLOW_THREADS
        LINED double x[CHUNK], y[CHUNK], zero[CHUNK] = {0};
        for (Py_ssize_t k = 0; k < count; k++)
            for (Py_ssize_t at_ = 0; at_ < width; at_ += CHUNK) {
                Py_ssize_t len = width - at_ < CHUNK ? width - at_ : CHUNK;
                Py_ssize_t lo = (Py_ssize_t)from[k] + at_;
                load(base_at(&base, lo), base.type, len, zero, x);
                for (Py_ssize_t i = 0; i < n; i++) {
                    load(at(&rows, i, lo), rows.types[i], len, x, y);
                    size_up(y, len, &far.bits, (double *)squares.buf + i);
                }
            }
        Py_END_ALLOW_THREADS
        drop_rows(&rows);
    }
    drop_base(&base);
    PyBuffer_Release(&types);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&squares);
    return held ? PyFloat_FromDouble(far.value) : NULL;
}

/* shifted(rows, types, lo, count, origin, scale, stride, out): for every row i,
 * out[i stride + l] = scale (row_i - row_origin)[lo + l], l < count */
static PyObject *native_shifted(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, out;
    Py_ssize_t lo, count, origin, stride;
    double scale;
    if (!PyArg_ParseTuple(args, "Oy*nnndnw*", &list, &types, &lo, &count, &origin, &scale,
                          &stride, &out))
        return NULL;
    Rows rows;
    Py_ssize_t n = types.len;
    int held = lo >= 0 && lo <= LONGEST && count >= 0 && count <= stride && origin >= 0 && origin < n &&
               fits(&out, times(n, stride, 1), 8) && hold_rows(&rows, list, types.buf, n, lo + count);
    if (!held && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a range or the origin is outside the rows");
    if (held) {
        Py_BEGIN_ALLOW_THREADS
        double zero[CHUNK] = {0}, y[CHUNK];
        for (Py_ssize_t at_ = 0; at_ < count; at_ += CHUNK) {
            Py_ssize_t len = count - at_ < CHUNK ? count - at_ : CHUNK;
            load(at(&rows, origin, lo + at_), rows.types[origin], len, zero, y);
            for (Py_ssize_t i = 0; i < n; i++) {
                double *to = (double *)out.buf + i * stride + at_;
                load(at(&rows, i, lo + at_), rows.types[i], len, y, to);
                if (scale != 1.0)
                    scale_by(to, scale, len);
            }
        }
        Py_END_ALLOW_THREADS
        drop_rows(&rows);
    }
    PyBuffer_Release(&types);
    PyBuffer_Release(&out);
    if (!held)
        return NULL;
    Py_RETURN_NONE;
}

/* sum[0..n) += sum over eight rows of float32 of w_i row_i, from element lo on */
MULTIARCH static void add_eight(const Rows *rows, Py_ssize_t first, Py_ssize_t lo, Py_ssize_t n,
                                const double *w, double *restrict sum)
{
    const float *r[8];
    double v[8];
    for (int k = 0; k < 8; k++)
        r[k] = (const float *)at(rows, first + k, lo), v[k] = w[first + k];
    const float *restrict a = r[0], *restrict b = r[1], *restrict c = r[2], *restrict e = r[3];
    const float *restrict f = r[4], *restrict g = r[5], *restrict h = r[6], *restrict k = r[7];
    for (Py_ssize_t l = 0; l < n; l++)
        sum[l] += ((v[0] * (double)a[l] + v[1] * (double)b[l]) +
                   (v[2] * (double)c[l] + v[3] * (double)e[l])) +
                  ((v[4] * (double)f[l] + v[5] * (double)g[l]) +
                   (v[6] * (double)h[l] + v[7] * (double)k[l]));
}

static int are_float32(const Rows *rows, Py_ssize_t first, Py_ssize_t count)
{
    int plain = first + count <= rows->n;
    for (Py_ssize_t i = first; plain && i < first + count; i++)
        plain = rows->types[i] == FLOAT32;
    return plain;
}

/* sum[0..n) += sum over (up to) four rows of w_i row_i, from element lo on */
MULTIARCH static void add_rows(const Rows *rows, Py_ssize_t first, Py_ssize_t lo, Py_ssize_t n,
                               const double *w, double *restrict sum)
{
    Py_ssize_t last = first + 4 < rows->n ? first + 4 : rows->n;
    if (are_float32(rows, first, 4)) {
        const float *restrict a = (const float *)at(rows, first, lo);
        const float *restrict b = (const float *)at(rows, first + 1, lo);
        const float *restrict c = (const float *)at(rows, first + 2, lo);
        const float *restrict e = (const float *)at(rows, first + 3, lo);
        double wa = w[first], wb = w[first + 1], wc = w[first + 2], we = w[first + 3];
        for (Py_ssize_t l = 0; l < n; l++)
            sum[l] += wa * (double)a[l] + wb * (double)b[l] + wc * (double)c[l] + we * (double)e[l];
        return;
    }
    for (Py_ssize_t i = first; i < last; i++) {
        const char *row = at(rows, i, lo);
        if (rows->types[i] == FLOAT32)
            for (Py_ssize_t l = 0; l < n; l++)
                sum[l] += w[i] * (double)((const float *)row)[l];
        else if (rows->types[i] == FLOAT64)
            for (Py_ssize_t l = 0; l < n; l++)
                sum[l] += w[i] * ((const double *)row)[l];
        else if (rows->types[i] == BFLOAT16)
            for (Py_ssize_t l = 0; l < n; l++)
                sum[l] += w[i] * wide(((const uint16_t *)row)[l]);
    }
}

/* sum[0..n) <- sum_i w_i (row_i - x) from element lo on; x may be NULL for zero */
static void add_all(const Rows *rows, Py_ssize_t lo, Py_ssize_t n, const double *w,
                    const double *x, double *restrict sum)
{
    double all = 0.0;
    for (Py_ssize_t i = 0; i < rows->n; i++)
        all += w[i];
    memset(sum, 0, (size_t)n * sizeof(double));
    if (x)
        axpy(-all, x, sum, n);
    Py_ssize_t i = 0;
    for (; are_float32(rows, i, 8); i += 8)
        add_eight(rows, i, lo, n, w, sum);
    for (; i < rows->n; i += 4)
        add_rows(rows, i, lo, n, w, sum);
}

static inline double total(const double *lanes)
{
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* (a - x, s) for a of float32: widened on the way, for what is stored has to be read again */
MULTIARCH static double dot_less(const float *a, const double *x, const double *s, Py_ssize_t n)
{
    double lanes[8] = {0};
    Py_ssize_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++)
            lanes[l] += ((double)a[i + l] - x[i + l]) * s[i + l];
    for (; i < n; i++)
        lanes[0] += ((double)a[i] - x[i]) * s[i];
    return total(lanes);
}

/* (a - x, a - x) likewise */
MULTIARCH static double square_less(const float *a, const double *x, Py_ssize_t n)
{
    double lanes[8] = {0};
    Py_ssize_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) {
            double c = (double)a[i + l] - x[i + l];
            lanes[l] += c * c;
        }
    for (; i < n; i++)
        lanes[0] += ((double)a[i] - x[i]) * ((double)a[i] - x[i]);
    return total(lanes);
}

/* against_sum(rows, types, d, weights, out, base=None, base_type=0)
 *
 * With c_i = row_i - base adds (c_i, sum_j w_j c_j) to out_i: a product of the Gram matrix in one
 * pass and n d multiplications. The sum of a few columns is formed, and used while in cache.
 * Without weights adds (c_i, c_i).
 */
static PyObject *native_against_sum(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, weights, out;
    Base base = {0};
    Py_ssize_t d;
    if (!PyArg_ParseTuple(args, "Oy*nz*w*|z*i", &list, &types, &d, &weights, &out, &base.buffer,
                          &base.type))
        return NULL;
    Rows rows;
    Py_ssize_t n = types.len;
    int held = (!weights.buf || fits(&weights, n, 8)) && fits(&out, n, 8) && hold_base(&base, d) &&
               hold_rows(&rows, list, types.buf, n, d);
    if (held) {
        Py_BEGIN_ALLOW_THREADS
        enum { FEW = 1024 }; /* numbers of which sum, base and a row fit the first cache */
        LINED double space[FEW], x[FEW], c[FEW], zero[FEW] = {0};
        const double *w = weights.buf, *sum = w ? space : NULL;
        double *p = out.buf;
        /* A float32 that differs from x at all does so by far more than x's rounding in float64:
         * x may be taken from the sum. Numbers of float64 must be subtracted one by one. */
        int quick = are_float32(&rows, 0, n);
        for (Py_ssize_t lo = 0; lo < d; lo += FEW) {
            Py_ssize_t len = d - lo < FEW ? d - lo : FEW;
            load(base_at(&base, lo), base.type, len, zero, x);
            if (w && quick)
                add_all(&rows, lo, len, w, base.type == ZEROS ? NULL : x, space);
            else
                memset(space, 0, sizeof(space));
            for (Py_ssize_t i = 0; w && !quick && i < n; i++) {
                load(at(&rows, i, lo), rows.types[i], len, x, c);
                axpy(w[i], c, space, len);
            }
            for (Py_ssize_t i = 0; i < n; i++) {
                const float *row = (const float *)at(&rows, i, lo);
                if (quick) {
                    p[i] += w ? dot_less(row, x, sum, len) : square_less(row, x, len);
                    continue;
                }
                load(at(&rows, i, lo), rows.types[i], len, x, c);
                p[i] += dot(c, w ? sum : c, len);
            }
        }
        Py_END_ALLOW_THREADS
        drop_rows(&rows);
    }
    drop_base(&base);
    PyBuffer_Release(&types);
    if (weights.obj)
        PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    if (!held)
        return NULL;
    Py_RETURN_NONE;
}

typedef float v8f __attribute__((vector_size(32), aligned(4), may_alias));
#define FLOATS(p) (*(const v8f *)(p))
typedef float v4f __attribute__((vector_size(16), aligned(4), may_alias));
#define WIDENED(p) __builtin_convertvector(*(const v4f *)(p), v4)

/* p[0..4) += (row_i - x, h) for four rows of float32 from element lo on: eight sums hide the
 * latency of an addition. x may be NULL for zero. */
MULTIARCH static void add_four_products(const Rows *rows, Py_ssize_t first, Py_ssize_t lo,
                                        Py_ssize_t n, const double *x, const double *h, Fetch *f,
                                        double *p)
{
    const float *r[4];
    for (int k = 0; k < 4; k++)
        r[k] = (const float *)at(rows, first + k, lo);
    v4 s[4][2] = {{{0}}};
    Py_ssize_t i = 0;
    for (; i + 8 <= n; i += 8) {
        v4 a = *(const v4 *)(h + i), b = *(const v4 *)(h + i + 4);
        fetch(f);
        if (x) {
            v4 u = *(const v4 *)(x + i), v = *(const v4 *)(x + i + 4);
            for (int k = 0; k < 4; k++) {
                s[k][0] += (WIDENED(r[k] + i) - u) * a;
                s[k][1] += (WIDENED(r[k] + i + 4) - v) * b;
            }
        } else
            for (int k = 0; k < 4; k++) {
                s[k][0] += WIDENED(r[k] + i) * a;
                s[k][1] += WIDENED(r[k] + i + 4) * b;
            }
    }
    for (int k = 0; k < 4; k++) {
        v4 t = s[k][0] + s[k][1];
        double sum = (t[0] + t[1]) + (t[2] + t[3]);
        for (Py_ssize_t l = i; l < n; l++)
            sum += ((double)r[k][l] - (x ? x[l] : 0.0)) * h[l];
        p[k] += sum;
    }
}

/* slopes(rows, types, d, w, v, out, reference, reference_type, curvature, base=None, base_type=0)
 *
 * With c_i = row_i - base, s = sum_j w_j c_j and h = g + sum_j v_j c_j, or g + curvature s where v
 * is None: adds (c_i, h) to out_i, and returns (s, s). One pass: the sums of a few columns are
 * formed and used while those are in cache, and the next are fetched meanwhile.
 */
static PyObject *native_slopes(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, weights, others, out;
    Base base = {0}, g = {0};
    Py_ssize_t d;
    double curvature, square = 0.0;
    if (!PyArg_ParseTuple(args, "Oy*ny*z*w*z*id|z*i", &list, &types, &d, &weights, &others, &out,
                          &g.buffer, &g.type, &curvature, &base.buffer, &base.type))
        return NULL;
    Rows rows;
    Py_ssize_t n = types.len;
    int held = fits(&weights, n, 8) && (!others.buf || fits(&others, n, 8)) && fits(&out, n, 8) &&
               hold_base(&base, d) && hold_base(&g, d) &&
               hold_rows(&rows, list, types.buf, n, d);
    if (held) {
        Py_BEGIN_ALLOW_THREADS
        LINED double s[CHUNK], h[CHUNK], x[CHUNK], c[CHUNK], zero[CHUNK] = {0};
        double *p = out.buf;
        const double *w = weights.buf, *v = others.buf;
        int quick = are_float32(&rows, 0, n), plain = base.type == ZEROS; /* as in against_sum */
        const double *from = plain ? NULL : x;
        Py_ssize_t i, four = n / 4 * 4;
        for (i = 0; plain && i < n; i++)
            plain = rows.types[i] == FLOAT64;
        Py_ssize_t pace = fetch_pace(&rows, (quick && four ? four / 4 : n + 1) * (CHUNK / 8));
        memset(x, 0, sizeof(x));
        for (Py_ssize_t lo = 0; lo < d; lo += CHUNK) {
            Py_ssize_t len = d - lo < CHUNK ? d - lo : CHUNK;
            Fetch f = {.rows = &rows, .next = lo + 2 * CHUNK, .pace = pace};
            if (from)
                load(base_at(&base, lo), base.type, len, zero, x);
            load(base_at(&g, lo), g.type, len, zero, h);
            if (quick || plain)
                add_all(&rows, lo, len, w, from, s);
            else {
                memset(s, 0, sizeof(s));
                for (i = 0; i < n; i++) {
                    load(at(&rows, i, lo), rows.types[i], len, x, c);
                    axpy(w[i], c, s, len);
                }
            }
            if (!v)
                axpy(curvature, s, h, len);
            else if (quick || plain)
                add_all(&rows, lo, len, v, from, c), axpy(1.0, c, h, len);
            else
                for (i = 0; i < n; i++) {
                    load(at(&rows, i, lo), rows.types[i], len, x, c);
                    axpy(v[i], c, h, len);
                }
            square += dot(s, s, len);
            i = 0;
            for (; quick && i < four; i += 4)
                add_four_products(&rows, i, lo, len, from, h, &f, p + i);
            for (; i < n; i++) {
                const char *row = at(&rows, i, lo);
                for (Py_ssize_t l = 0; l < len; l += 8)
                    fetch(&f);
                if (quick)
                    p[i] += dot_less((const float *)row, x, h, len);
                else if (plain)
                    p[i] += dot((const double *)row, h, len);
                else {
                    load(row, rows.types[i], len, x, c);
                    p[i] += dot(c, h, len);
                }
            }
        }
        Py_END_ALLOW_THREADS
        drop_rows(&rows);
    }
    drop_base(&base);
    drop_base(&g);
    PyBuffer_Release(&types);
    PyBuffer_Release(&weights);
    if (others.obj)
        PyBuffer_Release(&others);
    PyBuffer_Release(&out);
    return held ? PyFloat_FromDouble(square) : NULL;
}

MULTIARCH static void narrow(const double *sum, float *out, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = (float)sum[i];
}

/* combine(rows, types, d, weights, out, out_type, base=None, base_type=0)
 *
 * out = sum_i w_i row_i - (sum_i w_i) base, rounded once; several sums at once where weights
 * and out hold several vectors, one after the other.
 */
static PyObject *native_combine(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, weights, out;
    Base base = {0};
    Py_ssize_t d;
    int out_type;
    if (!PyArg_ParseTuple(args, "Oy*ny*w*i|z*i", &list, &types, &d, &weights, &out, &out_type,
                          &base.buffer, &base.type))
        return NULL;
    Rows rows;
    Py_ssize_t n = types.len, sums = n > 0 ? weights.len / (n * 8) : 0;
    Py_ssize_t size = out_type == FLOAT64 ? 8 : 4;
    int held = fits(&weights, n, 8) && fits(&out, d, size) &&
               fits(&out, times(sums, d, 1), size) &&
               hold_base(&base, d) && hold_rows(&rows, list, types.buf, n, d);
    if (held) {
        Py_BEGIN_ALLOW_THREADS
        LINED double sum[PIECE], x[PIECE], zero[PIECE] = {0};
        for (Py_ssize_t lo = 0; lo < d; lo += PIECE) {
            Py_ssize_t len = d - lo < PIECE ? d - lo : PIECE;
            load(base_at(&base, lo), base.type, len, zero, x);
            for (Py_ssize_t k = 0; k < sums; k++) {
                const double *w = (const double *)weights.buf + k * n;
                add_all(&rows, lo, len, w, base.type == ZEROS ? NULL : x, sum);
                if (out_type == FLOAT64)
                    memcpy((double *)out.buf + k * d + lo, sum, (size_t)len * sizeof(double));
                else
                    narrow(sum, (float *)out.buf + k * d + lo, len);
            }
        }
        Py_END_ALLOW_THREADS
        drop_rows(&rows);
    }
    drop_base(&base);
    PyBuffer_Release(&types);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    if (!held)
        return NULL;
    Py_RETURN_NONE;
}

/* own += -c - y (variates.py); y is a product rounded before, so that the same bits come out
 * where there is no fused multiply-add */
MULTIARCH static void follow(const double *restrict y, const double *restrict c, Py_ssize_t n,
                             double *restrict own)
{
    for (Py_ssize_t l = 0; l < n; l++)
        own[l] += -c[l] - y[l];
}

/* out <- factor (y - x) */
MULTIARCH static void scaled_difference(const float *restrict y, const float *restrict x,
                                        double factor, Py_ssize_t n, double *restrict out)
{
    for (Py_ssize_t l = 0; l < n; l++)
        out[l] = factor * ((double)y[l] - (double)x[l]);
}

/* advance(rows, types, d, rate, server, clients, base=None, base_type=0)
 *
 * c_i += -c - rate_i (row_i - base) for clients c_i, a list of writable buffers of d numbers
 * of float64, one for each row. One client after the other: the variates are the most of
 * what is read, and long stretches of them are read fastest.
 */
static PyObject *native_advance(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list, *owners;
    Py_buffer types, rate, server;
    Base base = {0};
    Py_ssize_t d;
    if (!PyArg_ParseTuple(args, "Oy*ny*y*O|z*i", &list, &types, &d, &rate, &server, &owners,
                          &base.buffer, &base.type))
        return NULL;
    Rows rows;
    Py_ssize_t n = types.len, got = 0;
    Py_buffer *own = malloc((size_t)n * sizeof(Py_buffer) + 1);
    int held = own && fits(&rate, n, 8) && fits(&server, d, 8) && hold_base(&base, d) &&
               hold_rows(&rows, list, types.buf, n, d);
    int ok = held;
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *owner = PySequence_GetItem(owners, i);
        ok = owner && PyObject_GetBuffer(owner, &own[i], PyBUF_WRITABLE) == 0;
        Py_XDECREF(owner);
        got += ok;
        ok = ok && fits(&own[i], d, 8);
    }
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        LINED double x[CHUNK], y[CHUNK], zero[CHUNK] = {0};
        for (Py_ssize_t i = 0; i < n; i++)
            for (Py_ssize_t lo = 0; lo < d; lo += CHUNK) {
                Py_ssize_t len = d - lo < CHUNK ? d - lo : CHUNK;
                const char *row = at(&rows, i, lo), *from = base_at(&base, lo);
                double factor = ((const double *)rate.buf)[i];
                if (rows.types[i] == FLOAT32 && base.type == FLOAT32)
                    scaled_difference((const float *)row, (const float *)from, factor, len, y);
                else {
                    load(from, base.type, len, zero, x);
                    load(row, rows.types[i], len, x, y);
                    scale_by(y, factor, len);
                }
                follow(y, (const double *)server.buf + lo, len, (double *)own[i].buf + lo);
            }
        Py_END_ALLOW_THREADS
    } else if (!PyErr_Occurred())
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < got; i++)
        PyBuffer_Release(&own[i]);
    free(own);
    if (held)
        drop_rows(&rows);
    drop_base(&base);
    PyBuffer_Release(&types);
    PyBuffer_Release(&rate);
    PyBuffer_Release(&server);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* sum[0..n) += b h (x - y), in single precision; also out <- w (x - y) where there is one,
 * rounded twice, as code without this kernel rounds it */
MULTIARCH static void add_signed(float b, const float *h, const float *x, const float *y,
                                 float *restrict sum, Py_ssize_t n, float w,
                                 float *restrict out)
{
    if (out)
        for (Py_ssize_t i = 0; i < n; i++) {
            float difference = x[i] - (y ? y[i] : 0.0f);
            sum[i] += b * h[i] * difference;
            out[i] = w * difference;
        }
    else if (y)
        for (Py_ssize_t i = 0; i < n; i++)
            sum[i] += b * h[i] * (x[i] - y[i]);
    else
        for (Py_ssize_t i = 0; i < n; i++)
            sum[i] += b * h[i] * x[i];
}

/* Whether shifts lie in a table of `length` signs, and turns in a sketch of k numbers. */
static int are_places(const int64_t *shifts, const int64_t *turns, Py_ssize_t rows, Py_ssize_t k,
                      Py_ssize_t length)
{
    for (Py_ssize_t r = 0; r < rows; r++)
        if (shifts[r] < 0 || shifts[r] > length - k || turns[r] < 0 || turns[r] >= k) {
            PyErr_SetString(PyExc_ValueError, "a shift is outside the table of signs");
            return 0;
        }
    return 1;
}

/* sum[0..n) += b h (x - y), in single precision; fetches `ahead` by the way */
MULTIARCH static void add_ahead(float b, const float *h, const float *x, const float *y,
                                const char *ahead, float *restrict sum, Py_ssize_t n)
{
    Py_ssize_t i = 0;
    for (; !y && i + 16 <= n; i += 16) {
        __builtin_prefetch(ahead + 4 * i, 0, 2);
        *(v8f *)(sum + i) += b * FLOATS(h + i) * FLOATS(x + i);
        *(v8f *)(sum + i + 8) += b * FLOATS(h + i + 8) * FLOATS(x + i + 8);
    }
    for (; y && i + 16 <= n; i += 16) {
        __builtin_prefetch(ahead + 4 * i, 0, 2);
        *(v8f *)(sum + i) += b * FLOATS(h + i) * (FLOATS(x + i) - FLOATS(y + i));
        *(v8f *)(sum + i + 8) += b * FLOATS(h + i + 8) * (FLOATS(x + i + 8) - FLOATS(y + i + 8));
    }
    for (; i < n; i++)
        sum[i] += b * h[i] * (x[i] - (y ? y[i] : 0.0f));
}

/* sum[0..n) += b h x in double precision likewise */
MULTIARCH static void add_wide(double b, const float *h, const double *x, const char *ahead,
                               double *restrict sum, Py_ssize_t n)
{
    Py_ssize_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __builtin_prefetch(ahead + 8 * i, 0, 2);
        *(v4 *)(sum + i) += b * WIDENED(h + i) * *(const v4 *)(x + i);
        *(v4 *)(sum + i + 4) += b * WIDENED(h + i + 4) * *(const v4 *)(x + i + 4);
    }
    for (; i < n; i++)
        sum[i] += b * (double)h[i] * x[i];
}

MULTIARCH static void drain(float *restrict sum, double *restrict total, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        total[i] += (double)sum[i], sum[i] = 0.0f;
}

enum { TOGETHER = 4, BATCH = 512 }; /* vectors at once: they share signs, and hide latency */

/* Columns of one row of several vectors, of which those inside the data are added. */
typedef struct {
    const Rows *rows;
    const Base *base;
    Py_ssize_t first, last, d, start, k; /* entry start + c of the data is column c */
    float b;
    const float *h;
} Piece;

/* Columns c, lo <= c < hi, of the vectors go to c + turn of their sketches. */
static void add_piece(const Piece *p, Py_ssize_t lo, Py_ssize_t hi, Py_ssize_t turn, float *sums,
                      double *totals)
{
    LINED double x[CHUNK], y[CHUNK], zero[CHUNK] = {0};
    int plain = p->base->type == ZEROS;
    lo = lo < -p->start ? -p->start : lo;
    hi = hi < p->d - p->start ? hi : p->d - p->start;
    for (Py_ssize_t c = lo; c < hi; c += BATCH)
        for (Py_ssize_t i = p->first; i < p->last; i++) {
            Py_ssize_t end = c + BATCH < hi ? c + BATCH : hi, at_ = p->start + c;
            int type = p->rows->types[i];
            if (type == FLOAT32 && (plain || p->base->type == FLOAT32)) {
                float *sum = sums + (i - p->first) * p->k + (c + turn);
                const float *row = (const float *)at(p->rows, i, at_);
                const float *less = plain ? NULL : (const float *)base_at(p->base, at_);
                Py_ssize_t next = at_ + 2 * BATCH < p->d ? at_ + 2 * BATCH : at_;
                add_ahead(p->b, p->h + c, row, less, at(p->rows, i, next), sum, end - c);
                continue;
            }
            for (Py_ssize_t l = c; l < end; l += CHUNK) {
                Py_ssize_t few = end - l < CHUNK ? end - l : CHUNK;
                const char *row = at(p->rows, i, p->start + l);
                const double *entries = (const double *)row;
                if (type != FLOAT64 || !plain) {
                    load(base_at(p->base, p->start + l), p->base->type, few, zero, x);
                    load(row, type, few, x, y);
                    entries = y;
                }
                Py_ssize_t next = p->start + l + 2 * BATCH;
                const char *ahead = at(p->rows, i, next < p->d ? next : p->start + l);
                add_wide(p->b, p->h + l, entries, ahead, totals + i * p->k + (l + turn), few);
            }
        }
}

/* sketches(rows, types, d, begin, k, signs, shifts, turns, table, totals, base=None, base_type=0)
 *
 * Entries begin, ..., begin + d - 1 of n vectors, less the base, go into their sketches, n rows
 * of k doubles. Numbers of float32 are added in single precision, as in sketch_weighted; all
 * others are widened.
 */
static PyObject *native_sketches(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, signs, shifts, turns, table, totals;
    Base base = {0};
    Py_ssize_t d, begin, k;
    if (!PyArg_ParseTuple(args, "Oy*nnny*y*y*y*w*|z*i", &list, &types, &d, &begin, &k, &signs,
                          &shifts, &turns, &table, &totals, &base.buffer, &base.type))
        return NULL;
    Rows rows;
    Py_ssize_t n = types.len, count = 0;
    int valid = k > 0 && k < LONGEST && begin >= 0 && begin < LONGEST && d >= 0 && d < LONGEST;
    if (valid)
        count = d ? (begin + d - 1) / k - begin / k + 1 : 0;
    else
        PyErr_SetString(PyExc_ValueError, "a sketch has a size, and entries a place");
    int held = valid && fits(&signs, count, 8) && fits(&shifts, count, 8) &&
               fits(&turns, count, 8) && fits(&totals, times(n, k, 1), 8) &&
               are_places(shifts.buf, turns.buf, count, k, table.len / 4) && hold_base(&base, d) &&
               hold_rows(&rows, list, types.buf, n, d);
    float *sums = held ? calloc((size_t)k, TOGETHER * sizeof(float)) : NULL;
    int ok = sums != NULL;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        const int64_t *b = signs.buf, *s = shifts.buf, *t = turns.buf;
        const float *h = table.buf;
        for (Py_ssize_t i = 0; i < n; i += TOGETHER)
            for (Py_ssize_t row = 0; row < count; row++) {
                Py_ssize_t start = (begin / k + row) * k - begin, turn = (Py_ssize_t)t[row];
                Piece piece = {.rows = &rows, .base = &base, .first = i, .d = d, .start = start, .k = k};
                piece.last = i + TOGETHER < n ? i + TOGETHER : n;
                piece.b = (float)b[row], piece.h = h + s[row];
                add_piece(&piece, 0, k - turn, turn, sums, totals.buf);
                add_piece(&piece, k - turn, k, turn - k, sums, totals.buf);
                if (row % 32 == 31 || row == count - 1)
                    for (Py_ssize_t j = i; j < piece.last; j++)
                        drain(sums + (j - i) * k, (double *)totals.buf + j * k, k);
            }
        Py_END_ALLOW_THREADS
    } else if (!PyErr_Occurred())
        PyErr_NoMemory();
    free(sums);
    if (held)
        drop_rows(&rows);
    drop_base(&base);
    PyBuffer_Release(&types);
    PyBuffer_Release(&signs);
    PyBuffer_Release(&shifts);
    PyBuffer_Release(&turns);
    PyBuffer_Release(&table);
    PyBuffer_Release(&totals);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* sketch_weighted(pieces, base, begin, k, signs, shifts, turns, table, total, weight, out): entries begin,
 * begin + 1, ... of a vector of float32, given as a list of pieces, less those of the base unless
 * it is empty, go into the sketch `total` of k doubles; times `weight` into `out`, unless that is
 * None, in the same pass. Rows are added in single precision; after every 32 the
 * sum goes into `total`, so that rounding stays that of a few additions (sketch.py). */
static PyObject *native_sketch(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    PyObject *target;
    Py_buffer y, signs, shifts, turns, table, total, out = {0};
    Py_ssize_t begin, k, got = 0, n = 0, rows = 0;
    double weight;
    if (!PyArg_ParseTuple(args, "O!y*nny*y*y*y*w*dO", &PyList_Type, &list, &y, &begin, &k, &signs,
                          &shifts, &turns, &table, &total, &weight, &target))
        return NULL;
    Py_ssize_t pieces = PyList_Size(list);
    Py_buffer *x = malloc((size_t)pieces * sizeof(Py_buffer) + 1);
    int ok = x != NULL;
    if (ok && target != Py_None)
        ok = PyObject_GetBuffer(target, &out, PyBUF_WRITABLE) == 0;
    for (; ok && got < pieces; got += ok) {
        ok = PyObject_GetBuffer(PyList_GetItem(list, got), &x[got], PyBUF_SIMPLE) == 0;
        n += ok ? x[got].len / 4 : 0;
    }
    if (ok && (begin < 0 || begin > PY_SSIZE_T_MAX - n || k <= 0)) {
        PyErr_SetString(PyExc_ValueError, "a sketch has a size, and entries a place");
        ok = 0;
    }
    if (ok) {
        rows = n ? (begin + n - 1) / k - begin / k + 1 : 0;
        ok = (y.len == 0 || fits(&y, n, 4)) && fits(&signs, rows, 8) && fits(&shifts, rows, 8) &&
             fits(&turns, rows, 8) && fits(&total, k, 8) && (!out.buf || fits(&out, n, 4));
    }
    const int64_t *b = signs.buf, *s = shifts.buf, *t = turns.buf;
    ok = ok && are_places(s, t, rows, k, table.len / 4);
    float *sum = ok ? calloc((size_t)k, 4) : NULL;
    ok = sum != NULL;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        Py_ssize_t j = 0, c = begin % k, piece = 0, at = 0;
        for (Py_ssize_t r = 0; r < rows; r++, c = 0) {
            while (c < k && j < n) { /* what one piece has of the row, before or after its turn */
                Py_ssize_t left = x[piece].len / 4 - at, len = k - c < left ? k - c : left;
                Py_ssize_t to = c < k - t[r] ? c + (Py_ssize_t)t[r] : c - (k - (Py_ssize_t)t[r]);
                len = k - to < len ? k - to : len;
                add_signed((float)b[r], (const float *)table.buf + s[r] + c,
                           (const float *)x[piece].buf + at,
                           y.len ? (const float *)y.buf + j : NULL, sum + to, len, (float)weight,
                           out.buf ? (float *)out.buf + j : NULL);
                j += len, c += len, at += len;
                if (len == left)
                    piece++, at = 0;
            }
            if (r % 32 == 31 || r == rows - 1)
                for (Py_ssize_t i = 0; i < k; i++) {
                    ((double *)total.buf)[i] += (double)sum[i];
                    sum[i] = 0.0f;
                }
        }
        Py_END_ALLOW_THREADS
    } else if (!PyErr_Occurred())
        PyErr_NoMemory();
    free(sum);
    for (Py_ssize_t i = 0; i < got; i++)
        PyBuffer_Release(&x[i]);
    free(x);
    if (out.obj)
        PyBuffer_Release(&out);
    PyBuffer_Release(&y);
    PyBuffer_Release(&signs);
    PyBuffer_Release(&shifts);
    PyBuffer_Release(&turns);
    PyBuffer_Release(&table);
    PyBuffer_Release(&total);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* s <- x + s; adds (s, y - x) to `product` unless y is NULL, and the bits of the largest |x + s|
 * to `far`: among floats without a sign they are in the order of the numbers, NaN the last. */
MULTIARCH static void move(float *restrict s, const float *x, const float *y, Py_ssize_t n,
                           double *product, uint32_t *far)
{
    double lanes[8] = {0};
    uint32_t most = *far;
    if (y) {
        Py_ssize_t i = 0;
        for (; i + 8 <= n; i += 8)
            for (int l = 0; l < 8; l++)
                lanes[l] += (double)s[i + l] * (double)(y[i + l] - x[i + l]);
        for (; i < n; i++)
            lanes[0] += (double)s[i] * (double)(y[i] - x[i]);
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        union {
            float value;
            uint32_t bits;
        } moved = {.value = s[i] + x[i]};
        s[i] = moved.value;
        uint32_t size = moved.bits & 0x7fffffffu;
        most = size > most ? size : most;
    }
    for (int l = 0; l < 8; l++)
        *product += lanes[l];
    *far = most;
}

/* moved(step, x, y): x + step in place of the step, all of float32; returns (step, y - x), zero
 * if y is None, and the largest |x + step|, which is not finite if an entry is not. */
static PyObject *native_moved(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer s, x, y;
    if (!PyArg_ParseTuple(args, "w*y*z*", &s, &x, &y))
        return NULL;
    Py_ssize_t n = s.len / 4;
    int ok = fits(&x, n, 4) && (!y.buf || fits(&y, n, 4));
    double product = 0.0;
    union {
        uint32_t bits;
        float value;
    } far = {.bits = 0};
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t lo = 0; lo < n; lo += PIECE) /* the second loop finds it in cache */
            move((float *)s.buf + lo, (const float *)x.buf + lo,
                 y.buf ? (const float *)y.buf + lo : NULL, n - lo < PIECE ? n - lo : PIECE,
                 &product, &far.bits);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&s);
    PyBuffer_Release(&x);
    if (y.obj)
        PyBuffer_Release(&y);
    return ok ? Py_BuildValue("dd", product, (double)far.value) : NULL;
}

/* The bits of the largest |x|: among floats without a sign they are in the order of the numbers,
 * NaN the last. */
MULTIARCH static uint32_t largest_bits(const float *x, Py_ssize_t n, uint32_t most)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        union {
            float value;
            uint32_t bits;
        } entry = {.value = x[i]};
        uint32_t size = entry.bits & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most;
}

static PyObject *as_number(uint32_t bits)
{
    union {
        uint32_t bits;
        float value;
    } x = {.bits = bits};
    return PyFloat_FromDouble((double)x.value);
}

MULTIARCH static void subtract(const float *y, const float *x, Py_ssize_t n, float *restrict out)
{
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = y[i] - x[i];
}

/* displaced(pieces, x, out): out = y - x for a vector y given as a list of pieces, all of
 * float32; returns the largest entry of it by its size, not finite if an entry is not. */
static PyObject *native_displaced(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer x, out;
    if (!PyArg_ParseTuple(args, "O!y*w*", &PyList_Type, &list, &x, &out))
        return NULL;
    Py_ssize_t pieces = PyList_Size(list), at = 0;
    uint32_t most = 0;
    int ok = 1;
    for (Py_ssize_t k = 0; ok && k < pieces; k++) {
        Py_buffer y;
        if (PyObject_GetBuffer(PyList_GetItem(list, k), &y, PyBUF_SIMPLE) < 0) {
            ok = 0;
            break;
        }
        Py_ssize_t n = y.len / 4;
        ok = fits(&x, at + n, 4) && fits(&out, at + n, 4);
        for (Py_ssize_t lo = 0; ok && lo < n; lo += PIECE) { /* the second finds it in cache */
            Py_ssize_t len = n - lo < PIECE ? n - lo : PIECE;
            float *to = (float *)out.buf + at + lo;
            subtract((const float *)y.buf + lo, (const float *)x.buf + at + lo, len, to);
            most = largest_bits(to, len, most);
        }
        at += n;
        PyBuffer_Release(&y);
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&out);
    return ok ? as_number(most) : NULL;
}

/* out <- x + s, where there is an x: s in double precision is rounded first */
MULTIARCH static void step_from(const double *s, const float *x, Py_ssize_t n, float *restrict out)
{
    if (x)
        for (Py_ssize_t i = 0; i < n; i++)
            out[i] = x[i] + (float)s[i];
    else
        for (Py_ssize_t i = 0; i < n; i++)
            out[i] = (float)s[i];
}

/* stepped(rows, d, weights, x, out): out = x + sum_i w_i row_i, all of float32 but the weights;
 * without x if it is None. The sum is rounded once before x is added. Returns the largest entry
 * by its size, not finite if an entry is not. With weights that float32 holds products are exact,
 * and the bits do not depend on the processor. */
static PyObject *native_stepped(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer weights, x, out;
    Py_ssize_t d;
    if (!PyArg_ParseTuple(args, "Ony*z*w*", &list, &d, &weights, &x, &out))
        return NULL;
    Rows rows = {0};
    Py_ssize_t n = weights.len / 8;
    char *types = calloc((size_t)n + 1, 1); /* all of FLOAT32 */
    int held = types && fits(&out, d, 4) && (!x.buf || fits(&x, d, 4)) &&
               (n == 0 || hold_rows(&rows, list, types, n, d)); /* out bounds d */
    if (!types)
        PyErr_NoMemory();
    uint32_t most = 0;
    if (held) {
        Py_BEGIN_ALLOW_THREADS
        LINED double sum[PIECE];
        for (Py_ssize_t lo = 0; lo < d; lo += PIECE) {
            Py_ssize_t len = d - lo < PIECE ? d - lo : PIECE;
            float *to = (float *)out.buf + lo;
            add_all(&rows, lo, len, weights.buf, NULL, sum);
            step_from(sum, x.buf ? (const float *)x.buf + lo : NULL, len, to);
            most = largest_bits(to, len, most);
        }
        Py_END_ALLOW_THREADS
        drop_rows(&rows);
    }
    free(types);
    PyBuffer_Release(&weights);
    if (x.obj)
        PyBuffer_Release(&x);
    PyBuffer_Release(&out);
    return held ? as_number(most) : NULL;
}

enum { SHORT = 512 }; /* numbers of each of up to eight rows that fit the first cache */

/* inner(rows, d, A): A[n x n] = all inner products of n rows of float32, in double precision.
 * For few rows: `gram` shares what it reads among many. */
static PyObject *native_inner(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer out;
    Py_ssize_t d;
    if (!PyArg_ParseTuple(args, "O!nw*", &PyList_Type, &list, &d, &out))
        return NULL;
    Rows rows;
    Py_ssize_t n = PyList_Size(list);
    char *types = calloc((size_t)n + 1, 1); /* all of FLOAT32 */
    double *X = malloc((size_t)(n + 1) * SHORT * sizeof(double) + 1);
    int held = types && X && fits(&out, times(n, n, 1), 8) && hold_rows(&rows, list, types, n, d);
    if (!types || !X)
        PyErr_NoMemory();
    if (held) {
        Py_BEGIN_ALLOW_THREADS
        double *A = out.buf, *zero = X + n * SHORT;
        memset(A, 0, (size_t)(n * n) * sizeof(double));
        memset(zero, 0, SHORT * sizeof(double));
        for (Py_ssize_t lo = 0; lo < d; lo += SHORT) {
            Py_ssize_t len = d - lo < SHORT ? d - lo : SHORT;
            for (Py_ssize_t i = 0; i < n; i++)
                load(at(&rows, i, lo), FLOAT32, len, zero, X + i * SHORT);
            for (Py_ssize_t i = 0; i < n; i++)
                for (Py_ssize_t j = i; j < n; j++)
                    A[i * n + j] += dot(X + i * SHORT, X + j * SHORT, len);
        }
        for (Py_ssize_t i = 0; i < n; i++)
            for (Py_ssize_t j = 0; j < i; j++)
                A[i * n + j] = A[j * n + i];
        Py_END_ALLOW_THREADS
        drop_rows(&rows);
    }
    free(types);
    free(X);
    PyBuffer_Release(&out);
    if (!held)
        return NULL;
    Py_RETURN_NONE;
}

/* ------------------ columns */

enum { STRIP = 32 }; /* columns sorted together: those of 100 rows of float32 fit the first cache */

/* Which of n sorted values are averaged, and the comparisons (i, j) that sort them. */
typedef struct {
    Py_ssize_t n, first, count, swaps;
    const int32_t *pairs;
    int32_t *inside; /* space for n numbers */
} Window;

#define REAL float
#include "_columns.h"
#undef REAL
#define REAL double
#include "_columns.h"
#undef REAL

/* window_means(rows, types, d, pairs, first, count, means, shares)
 *
 * Of every column the mean of the sorted values first, ..., first + count - 1; adds to shares in
 * how many columns each row is among them. Rows are finite, all of float32 or all of float64.
 */
static PyObject *native_window_means(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, pairs, means, shares;
    Py_ssize_t d;
    Window v = {0};
    if (!PyArg_ParseTuple(args, "Oy*ny*nnw*w*", &list, &types, &d, &pairs, &v.first, &v.count,
                          &means, &shares))
        return NULL;
    Rows rows;
    v.n = types.len, v.pairs = pairs.buf, v.swaps = pairs.len / (2 * (Py_ssize_t)sizeof(int32_t));
    const char *code = types.buf;
    int valid = v.n > 0 && v.first >= 0 && v.count > 0 && v.first <= v.n - v.count &&
                v.n < LONGEST && (code[0] == FLOAT32 || code[0] == FLOAT64);
    for (Py_ssize_t i = 1; valid && i < v.n; i++)
        valid = code[i] == code[0];
    for (Py_ssize_t k = 0; valid && k < 2 * v.swaps; k++)
        valid = v.pairs[k] >= 0 && v.pairs[k] < v.n;
    for (Py_ssize_t k = 0; valid && k < v.swaps; k++)
        valid = v.pairs[2 * k] != v.pairs[2 * k + 1];
    if (!valid)
        PyErr_SetString(PyExc_ValueError, "no window of rows of one type");
    int held = valid && fits(&means, d, 8) && fits(&shares, v.n, 8) &&
               hold_rows(&rows, list, types.buf, v.n, d);
    int ok = held;
    if (held) {
        size_t strip = (size_t)v.n * STRIP * sizeof(double);
        char *space = malloc(strip + 64 + (size_t)v.n * sizeof(int32_t));
        ok = space != NULL;
        if (ok) {
            Py_BEGIN_ALLOW_THREADS
            void *lined = (void *)(((uintptr_t)space + 63) & ~(uintptr_t)63);
            v.inside = (int32_t *)((char *)lined + strip);
            for (Py_ssize_t lo = 0; lo < d; lo += STRIP) {
                int len = d - lo < STRIP ? (int)(d - lo) : STRIP;
                if (code[0] == FLOAT32)
                    window_float(&v, &rows, lo, len, lined, means.buf, shares.buf);
                else
                    window_double(&v, &rows, lo, len, lined, means.buf, shares.buf);
            }
            Py_END_ALLOW_THREADS
            free(space);
        } else {
            PyErr_NoMemory();
        }
        drop_rows(&rows);
    }
    PyBuffer_Release(&types);
    PyBuffer_Release(&pairs);
    PyBuffer_Release(&means);
    PyBuffer_Release(&shares);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"gram", native_gram, METH_VARARGS, "Gram matrix and slope in one pass."},
    {"sampled", native_sampled, METH_VARARGS, "Sizes of some entries."},
    {"shifted", native_shifted, METH_VARARGS, "Rows less one of them, in double precision."},
    {"against_sum", native_against_sum, METH_VARARGS, "Gram matrix times a vector."},
    {"combine", native_combine, METH_VARARGS, "Weighted sums in double precision."},
    {"advance", native_advance, METH_VARARGS, "Control variates after a round, in place."},
    {"displaced", native_displaced, METH_VARARGS, "Differences and their largest entry."},
    {"stepped", native_stepped, METH_VARARGS, "A vector and a weighted sum in one pass."},
    {"inner", native_inner, METH_VARARGS, "Inner products of few rows of float32."},
    {"moved", native_moved, METH_VARARGS, "A model and its step in one pass."},
    {"window_means", native_window_means, METH_VARARGS, "Means of sorted values of columns."},
    {"sketches", native_sketches, METH_VARARGS, "Sketches of several vectors in one pass."},
    {"slopes", native_slopes, METH_VARARGS, "Slopes of the data at a weighted sum."},
    {"sketch_weighted", native_sketch, METH_VARARGS, "A sketch and a multiple in one pass."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_passes", "Compiled twins of hewfl.displacements.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__passes(void) { return PyModule_Create(&module); }
