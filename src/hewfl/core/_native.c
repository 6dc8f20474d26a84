/* Compiled twins of hewfl.core: the same mathematics as active_set.py, pivoting.py and
 * gram.py, for speed only. hewfl.core.native is the one caller; it checks every shape.
 *
 * Notation: H = L L' is kept as a row-major lower triangle, so that a forward solve is a
 * row of dot products and a backward solve a row of axpys, all on contiguous memory.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define MULTIARCH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MULTIARCH
#endif

#define OPTIMALITY 1e-13  /* as in active_set.py */
#define PIVOT_FLOOR 1e-14 /* as in active_set.py */
#define FACE 1e-12        /* as in least_norm.py */
#define INDEPENDENT 1e-8  /* as in active_set.py */
#define MAX_SWEEPS 20     /* as in pivoting.py */
#define PATIENCE 4        /* as in pivoting.py */

typedef double v8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef float f8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t h8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t u8 __attribute__((vector_size(32), aligned(4), may_alias));

/* ---------------------------------------------------------------- vector kernels */

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

MULTIARCH static int all_finite(const double *a, Py_ssize_t n)
{
    v8 s = {0};
    Py_ssize_t i = 0;
    for (; i + 8 <= n; i += 8)
        s += *(const v8 *)(a + i) * 0.0; /* zero unless an entry is not finite */
    double r = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    for (; i < n; i++)
        r += a[i] * 0.0;
    return r == 0.0;
}

/* ---------------------------------------------------------------- triangular factor */

typedef struct {
    Py_ssize_t n;        /* problem size */
    Py_ssize_t k;        /* members of the support */
    const double *H, *c; /* the problem */
    double *L;           /* n x n row-major lower factor of H_SS + sigma */
    Py_ssize_t *S;       /* the support, in order of entry */
    char *in;            /* membership: 0 outside, 1 inside, 2 banned */
    double *w;           /* weights on S, in the order of S */
    double *g, *root, *step, *one, *tmp;
    double sigma, shift;
} Problem;

static void forward(const Problem *p, double *b)
{
    for (Py_ssize_t i = 0; i < p->k; i++)
        b[i] = (b[i] - dot(p->L + i * p->n, b, i)) / p->L[i * p->n + i];
}

static void backward(const Problem *p, double *b)
{
    for (Py_ssize_t i = p->k; i-- > 0;) {
        b[i] /= p->L[i * p->n + i];
        axpy(-b[i], p->L + i * p->n, b, i);
    }
}

/* Append index j to the support and its row to the factor. */
static void enter(Problem *p, Py_ssize_t j)
{
    double *row = p->L + p->k * p->n;
    const double *Hj = p->H + j * p->n;
    for (Py_ssize_t i = 0; i < p->k; i++)
        row[i] = Hj[p->S[i]] + p->sigma;
    forward(p, row);
    double corner = Hj[j] + p->sigma;
    double pivot = corner - dot(row, row, p->k);
    row[p->k] = sqrt(fmax(pivot, PIVOT_FLOOR * corner));
    p->S[p->k] = j;
    p->w[p->k++] = 0.0;
    p->in[j] = 1;
}

/* Delete member m: drop its row, rotate the columns behind it back to a triangle. */
static void leave(Problem *p, Py_ssize_t m)
{
    Py_ssize_t n = p->n;
    double *cs = p->tmp, *sn = p->tmp + n;
    p->in[p->S[m]] = 0;
    for (Py_ssize_t i = m + 1; i < p->k; i++) {
        double *from = p->L + i * n, *to = p->L + (i - 1) * n;
        memcpy(to, from, (size_t)m * sizeof(double));
        double carry = from[m];
        for (Py_ssize_t q = m; q < i - 1; q++) {
            double next = from[q + 1];
            to[q] = cs[q] * carry + sn[q] * next;
            carry = cs[q] * next - sn[q] * carry;
        }
        double last = from[i], r = hypot(carry, last);
        cs[i - 1] = carry / r;
        sn[i - 1] = last / r;
        to[i - 1] = r;
        p->S[i - 1] = p->S[i];
        p->w[i - 1] = p->w[i];
    }
    p->k--;
}

/* Factor H_SS + sigma anew; false when a pivot falls below the floor. */
static int factor(Problem *p)
{
    Py_ssize_t n = p->n, k = p->k;
    for (p->k = 0; p->k < k; p->k++) {
        double *row = p->L + p->k * n;
        const double *Hj = p->H + p->S[p->k] * n;
        for (Py_ssize_t i = 0; i < p->k; i++)
            row[i] = Hj[p->S[i]] + p->sigma;
        forward(p, row);
        double corner = Hj[p->S[p->k]] + p->sigma;
        double pivot = corner - dot(row, row, p->k);
        if (!(pivot > PIVOT_FLOOR * corner)) {
            p->k = k;
            return 0;
        }
        row[p->k] = sqrt(pivot);
    }
    return 1;
}

/* Newton step on the affine hull of the face from the gradient g_S (left in p->step). */
static void newton(Problem *p, const double *gS)
{
    for (Py_ssize_t i = 0; i < p->k; i++) {
        p->one[i] = 1.0;
        p->step[i] = -gS[i];
    }
    forward(p, p->one);
    forward(p, p->step);
    double scale = dot(p->one, p->step, p->k) / dot(p->one, p->one, p->k);
    axpy(-scale, p->one, p->step, p->k); /* 1'step = 0, still in factored form */
    backward(p, p->step);
}

static void gradient(Problem *p)
{
    for (Py_ssize_t i = 0; i < p->n; i++)
        p->g[i] = p->c[i] - p->shift;
    for (Py_ssize_t j = 0; j < p->k; j++)
        axpy(p->w[j], p->H + p->S[j] * p->n, p->g, p->n);
}

/* The full gradient, and its entries on the support in gS. */
static void gradient_on_face(Problem *p, double *gS)
{
    gradient(p);
    for (Py_ssize_t i = 0; i < p->k; i++)
        gS[i] = p->g[p->S[i]];
}

static void normalise(Problem *p)
{
    double s = 0.0;
    for (Py_ssize_t i = 0; i < p->k; i++)
        s += p->w[i];
    for (Py_ssize_t i = 0; i < p->k; i++)
        p->w[i] /= s;
}

/* ---------------------------------------------------------------- the active set */

enum { HELD, MOVED, REFUSED };

/* Minimise on the face from the gradient in p->g, dropping members that reach zero.
 * After a step alpha * step the gradient on the face is (1 - alpha) times the old one, up
 * to a constant that no step sees. REFUSED: the last member, which just entered, would
 * leave at once; it is taken out again. */
static int descend(Problem *p, int entered)
{
    int moved = HELD;
    double *gS = p->tmp + 2 * p->n;
    for (Py_ssize_t i = 0; i < p->k; i++)
        gS[i] = p->g[p->S[i]];
    while (p->k > 1) {
        newton(p, gS);
        if (entered && p->step[p->k - 1] <= 0.0) {
            leave(p, p->k - 1);
            return REFUSED;
        }
        entered = 0;
        Py_ssize_t out = -1;
        double alpha = 1.0;
        for (Py_ssize_t i = 0; i < p->k; i++)
            if (p->w[i] + p->step[i] <= 0.0) {
                double ratio = p->w[i] / -p->step[i];
                if (out < 0 || ratio < alpha) {
                    alpha = fmin(ratio, 1.0);
                    out = i;
                }
            }
        if (out < 0) {
            axpy(1.0, p->step, p->w, p->k);
            normalise(p);
            return MOVED;
        }
        if (alpha > 0.0)
            moved = MOVED;
        for (Py_ssize_t i = 0; i < p->k; i++) {
            p->w[i] = fmax(p->w[i] + alpha * p->step[i], 0.0);
            gS[i] *= 1.0 - alpha;
        }
        memmove(gS + out, gS + out + 1, (size_t)(p->k - out - 1) * sizeof(double));
        leave(p, out);
    }
    p->w[0] = 1.0;
    return moved;
}

/* The most violated index outside the support in units of its error scale, or -1. */
static Py_ssize_t price(Problem *p)
{
    gradient(p);
    double rho = 0.0, mass = 0.0, level = 0.0;
    for (Py_ssize_t j = 0; j < p->k; j++) {
        Py_ssize_t i = p->S[j];
        rho += p->w[j] * p->root[i];
        mass += p->w[j] * fabs(p->c[i] - p->shift);
        level += p->w[j] * p->g[i];
    }
    Py_ssize_t best = -1;
    double worst = OPTIMALITY;
    for (Py_ssize_t i = 0; i < p->n; i++) {
        if (p->in[i])
            continue;
        double e = fabs(p->c[i] - p->shift) + p->root[i] * rho + mass + rho * rho;
        double v = (level - p->g[i]) / fmax(e, 1e-300);
        if (v > worst) {
            worst = v;
            best = i;
        }
    }
    return best;
}

/* Wolfe's corral from the current support; returns pivots, or -1 when the limit is hit.
 * An index refused at step zero is banned until something moves. */
static Py_ssize_t corral(Problem *p, Py_ssize_t limit)
{
    int banned = 0;
    gradient(p);
    descend(p, 0);
    for (Py_ssize_t pivots = 0; pivots <= limit; pivots++) {
        Py_ssize_t j = price(p);
        if (j < 0)
            return banned ? -1 : pivots;
        if (pivots == limit)
            break;
        enter(p, j);
        int result = descend(p, 1);
        if (result == REFUSED) {
            p->in[j] = 2;
            banned = 1;
        } else if (result == MOVED && banned) {
            for (Py_ssize_t i = 0; i < p->n; i++)
                if (p->in[i] == 2)
                    p->in[i] = 0;
            banned = 0;
        }
    }
    return -1;
}

/* ---------------------------------------------------------------- block pivoting */

/* Exchange all offenders at once from the support in p->in; returns sweeps or -1. */
static Py_ssize_t block_pivot(Problem *p)
{
    Py_ssize_t n = p->n, fewest = n + 1;
    int stalled = 0;
    double *gS = p->tmp + 2 * n;
    for (Py_ssize_t sweep = 1; sweep <= MAX_SWEEPS; sweep++) {
        p->k = 0;
        for (Py_ssize_t i = 0; i < n; i++)
            if (p->in[i])
                p->S[p->k++] = i;
        if (p->k == 0 || !factor(p))
            return -1;
        for (Py_ssize_t i = 0; i < p->k; i++)
            p->w[i] = 1.0 / (double)p->k;
        for (int pass = 0; pass < 2; pass++) { /* the second pass refines the first */
            gradient_on_face(p, gS);
            newton(p, gS);
            axpy(1.0, p->step, p->w, p->k);
        }
        Py_ssize_t offenders = 0;
        for (Py_ssize_t i = 0; i < p->k; i++)
            if (p->w[i] <= 0.0)
                offenders++;
        gradient(p);
        double rho = 0.0, mass = 0.0, level = 0.0, total = 0.0;
        for (Py_ssize_t j = 0; j < p->k; j++) {
            double wj = fmax(p->w[j], 0.0);
            total += wj;
            rho += wj * p->root[p->S[j]];
            mass += wj * fabs(p->c[p->S[j]] - p->shift);
            level += wj * p->g[p->S[j]];
        }
        level /= total;
        Py_ssize_t inside = p->k;
        for (Py_ssize_t i = 0; i < n; i++) {
            double e = fabs(p->c[i] - p->shift) + p->root[i] * rho + mass + rho * rho;
            if (!p->in[i] && level - p->g[i] > OPTIMALITY * e) {
                p->in[i] = 1;
                offenders++;
            }
        }
        for (Py_ssize_t i = 0; i < inside; i++)
            if (p->w[i] <= 0.0)
                p->in[p->S[i]] = 0;
        if (offenders == 0) {
            normalise(p);
            return sweep;
        }
        stalled = offenders < fewest ? 0 : stalled + 1;
        if (offenders < fewest)
            fewest = offenders;
        if (stalled >= PATIENCE)
            return -1;
    }
    return -1;
}

/* ---------------------------------------------------------------- one problem */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Smallest squared pivot over diagonal of the factor: how independent the support is. */
static double independence(const Problem *p)
{
    double least = 1.0;
    for (Py_ssize_t i = 0; i < p->k; i++) {
        double corner = p->H[p->S[i] * p->n + p->S[i]] + p->sigma;
        double pivot = p->L[i * p->n + i];
        least = fmin(least, pivot * pivot / corner);
    }
    return least;
}

/* Solve one problem; w: out, and in when `warm`. Returns pivots, -1 when not solved. */
static Py_ssize_t solve_one(Problem *p, double *w, int warm, Py_ssize_t limit, int block,
                            double *least)
{
    Py_ssize_t n = p->n, first = 0, used = -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        p->root[i] = sqrt(fmax(p->H[i * n + i], 0.0));
        p->tmp[i] = p->H[i * n + i];
        if (0.5 * p->H[i * n + i] + p->c[i] < 0.5 * p->H[first * n + first] + p->c[first])
            first = i;
    }
    qsort(p->tmp, (size_t)n, sizeof(double), compare);
    p->sigma = p->tmp[n / 2] > 0 ? p->tmp[n / 2] : p->tmp[n - 1];
    if (!(p->sigma > 0))
        p->sigma = 1.0;
    p->shift = p->c[first];
    if (block) {
        for (Py_ssize_t i = 0; i < n; i++)
            p->in[i] = warm ? w[i] > 0.0 : 1;
        used = block_pivot(p);
    }
    if (used < 0) {
        memset(p->in, 0, (size_t)n);
        p->k = 0;
        if (warm) {
            for (Py_ssize_t i = 0; i < n; i++)
                if (w[i] > 0.0) {
                    p->S[p->k] = i;
                    p->w[p->k++] = w[i];
                    p->in[i] = 1;
                }
            if (p->k == 0 || !factor(p)) {
                memset(p->in, 0, (size_t)n);
                p->k = 0;
            } else
                normalise(p);
        }
        if (p->k == 0) {
            enter(p, first);
            p->w[0] = 1.0;
        }
        used = corral(p, limit);
    }
    memset(w, 0, (size_t)n * sizeof(double));
    for (Py_ssize_t j = 0; j < p->k; j++)
        w[p->S[j]] = p->w[j];
    *least = independence(p);
    return used;
}

/* ---------------------------------------------------------------- checks and scaling */

enum { BAD_INPUT = -2 }; /* the caller finds out what is wrong and says so */

/* Finite, symmetric, and H + tolerance * diagonal positive definite (unit diagonal). */
static int is_gram(const double *G, Py_ssize_t n, double tolerance, double *L, double *root)
{
    double top = 0.0;
    if (!all_finite(G, n * n))
        return 0;
    for (Py_ssize_t i = 0; i < n; i++)
        top = fmax(top, fabs(G[i * n + i]));
    for (Py_ssize_t i = 0; i < n; i++)
        root[i] = sqrt(fmax(fabs(G[i * n + i]), ldexp(top, -100)));
    for (Py_ssize_t i = 0; i < n; i++) {
        double *row = L + i * n;
        for (Py_ssize_t j = 0; j < i; j++) {
            double size = root[i] * root[j];
            if (fabs(G[i * n + j] - G[j * n + i]) > tolerance * size)
                return 0;
            double a = size > 0 ? G[i * n + j] / root[i] / root[j] : G[i * n + j];
            row[j] = (a - dot(row, L + j * n, j)) / L[j * n + j];
        }
        double own = root[i] > 0 ? G[i * n + i] / root[i] / root[i] : G[i * n + i];
        double pivot = own + tolerance - dot(row, row, i);
        if (!(pivot > 0.0))
            return 0;
        row[i] = sqrt(pivot);
    }
    return 1;
}

/* H, c <- curvature * G, q divided by a power of two near their size; the exponent. */
static int scaled(const double *G, const double *q, double curvature, Py_ssize_t n, double *H,
                  double *c)
{
    int eG, eq, ec, k;
    double top = 0.0, size = 0.0, m = frexp(curvature, &ec);
    for (Py_ssize_t i = 0; i < n; i++) {
        top = fmax(top, G[i * n + i]);
        size = fmax(size, fabs(q[i]));
    }
    (void)frexp(top, &eG);
    (void)frexp(size, &eq);
    k = (top > 0 && (size == 0 || eG + ec > eq)) ? eG + ec : (size > 0 ? eq : 0);
    if (abs(ec - k) < 1000) {
        double f = ldexp(m, ec - k);
        for (Py_ssize_t i = 0; i < n; i++)
            for (Py_ssize_t j = 0; j < n; j++)
                H[i * n + j] = 0.5 * (G[i * n + j] + G[j * n + i]) * f;
    } else
        for (Py_ssize_t i = 0; i < n; i++)
            for (Py_ssize_t j = 0; j < n; j++)
                H[i * n + j] = ldexp((0.5 * G[i * n + j] + 0.5 * G[j * n + i]) * m, ec - k);
    for (Py_ssize_t i = 0; i < n; i++)
        c[i] = ldexp(q[i], -k);
    return k;
}

/* ---------------------------------------------------------------- entry points */

typedef struct {
    double *doubles;
    Py_ssize_t *S;
    char *in;
} Memory;

static int take(Memory *m, Problem *p, Py_ssize_t n, int copies)
{
    size_t N = (size_t)n;
    m->doubles = malloc(((size_t)(1 + copies) * N * N + 10 * N) * sizeof(double));
    m->S = malloc(N * sizeof(Py_ssize_t));
    m->in = malloc(N);
    *p = (Problem){.n = n, .S = m->S, .in = m->in};
    p->L = m->doubles;
    p->w = m->doubles + (size_t)(1 + copies) * N * N;
    p->g = p->w + n;
    p->root = p->g + n;
    p->step = p->root + n;
    p->one = p->step + n;
    p->tmp = p->one + n; /* 4 n: two rows of rotations, gradient on the face, linear term */
    return m->doubles && m->S && m->in;
}

static void give(Memory *m)
{
    free(m->doubles);
    free(m->S);
    free(m->in);
}

static void release(Py_buffer *buffers, int count)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&buffers[i]);
}

/* corral(H, c, w, n, warm, limit) -> (pivots, independence): one prepared problem */
static PyObject *native_corral(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer b[3];
    Py_ssize_t n, limit, pivots = -1;
    int warm;
    double least = 0.0;
    if (!PyArg_ParseTuple(args, "y*y*w*nin", &b[0], &b[1], &b[2], &n, &warm, &limit))
        return NULL;
    Memory memory;
    Problem p;
    int ok = take(&memory, &p, n, 0);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        p.H = b[0].buf;
        p.c = b[1].buf;
        pivots = solve_one(&p, b[2].buf, warm, limit, 0, &least);
        Py_END_ALLOW_THREADS
    }
    give(&memory);
    release(b, 3);
    return ok ? Py_BuildValue("nd", pivots, least) : PyErr_NoMemory();
}

/* solve(G, q, curvature, w, multipliers, info, pivots, batch, n, warm, tolerance)
 *
 * Checks, scales, solves and certifies a stack of problems. info holds for each problem
 * value, gap, whether the support is independent, whether the minimiser is unique; pivots
 * is -1 where unsolved and BAD_INPUT where the matrix is not a Gram matrix.
 */
static PyObject *native_solve(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer b[7];
    Py_ssize_t batch, n;
    int warm;
    double tolerance;
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*w*w*nnid", &b[0], &b[1], &b[2], &b[3], &b[4],
                          &b[5], &b[6], &batch, &n, &warm, &tolerance))
        return NULL;
    Memory memory;
    Problem p;
    int ok = take(&memory, &p, n, 1);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        double *H = p.L + n * n, *c = p.tmp + 3 * n;
        p.H = H;
        p.c = c;
        for (Py_ssize_t t = 0; t < batch; t++) {
            const double *G = (const double *)b[0].buf + t * n * n;
            const double *q = (const double *)b[1].buf + t * n;
            double curvature = ((const double *)b[2].buf)[t];
            double *w = (double *)b[3].buf + t * n, *z = (double *)b[4].buf + t * n;
            double *info = (double *)b[5].buf + t * 4;
            int64_t *pivots = (int64_t *)b[6].buf + t;
            if (!(curvature > 0 && isfinite(curvature)) || !all_finite(q, n) ||
                !is_gram(G, n, tolerance, p.L, p.root)) {
                *pivots = BAD_INPUT;
                continue;
            }
            int k = scaled(G, q, curvature, n, H, c);
            double least;
            *pivots = solve_one(&p, w, warm, 20 * n + 100, 1, &least);
            gradient(&p);
            double low = p.g[0], value = 0.0, gap = 0.0, level = 0.0;
            for (Py_ssize_t i = 1; i < n; i++)
                low = fmin(low, p.g[i]);
            double rho = 0.0, mass = 0.0;
            for (Py_ssize_t i = 0; i < n; i++) {
                rho += w[i] * p.root[i];
                mass += w[i] * fabs(c[i] - p.shift);
                gap += w[i] * (p.g[i] - low);
                value += w[i] * (0.5 * (p.g[i] + p.shift) + 0.5 * c[i]);
                level += w[i] * p.g[i];
            }
            Py_ssize_t face = 0;
            for (Py_ssize_t i = 0; i < n; i++) {
                double e = fabs(c[i] - p.shift) + p.root[i] * rho + mass + rho * rho;
                face += p.g[i] - level <= FACE * e;
                z[i] = ldexp(p.g[i] - low, k);
            }
            info[0] = ldexp(value, k);
            info[1] = ldexp(gap, k);
            info[2] = least > INDEPENDENT;
            info[3] = least > INDEPENDENT && face == p.k && *pivots >= 0;
        }
        Py_END_ALLOW_THREADS
    }
    give(&memory);
    release(b, 7);
    if (!ok)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"solve", native_solve, METH_VARARGS, "Check, scale, solve, certify a stack."},
    {"corral", native_corral, METH_VARARGS, "Active set on one prepared problem."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "Compiled twins of hewfl.core.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
