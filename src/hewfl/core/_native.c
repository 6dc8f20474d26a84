/* Compiled twins of hewfl.core: the same mathematics as active_set.py, pivoting.py, gram.py,
 * post_local.py and variates.py, for speed only. Callers go through hewfl.core.native.library(); every entry
 * point checks that its buffers are as long as it will read or write.
 *
 * Notation: a factor R with R'R = M is kept as a row-major upper triangle, so that solves,
 * updates and rotations all run along rows.
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
#define REFINEMENTS 5     /* as in active_set.py */

typedef double v8 __attribute__((vector_size(64), aligned(8), may_alias));
#define LINED __attribute__((aligned(64))) /* stores across cache lines take twice as long */

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

MULTIARCH static void scale_by(double *x, double factor, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        x[i] *= factor;
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

/* y <- y + alpha x with one rounding: g + curvature r may cancel (gram.slope_at) */
MULTIARCH static void add_scaled_exactly(double alpha, const double *x, double *y, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        y[i] = fma(alpha, x[i], y[i]);
}

static int fits(const Py_buffer *buffer, Py_ssize_t count, Py_ssize_t size)
{
    if (count >= 0 && (size == 0 || buffer->len / size >= count))
        return 1;
    PyErr_SetString(PyExc_ValueError, "a buffer is shorter than its declared shape");
    return 0;
}

/* ---------------------------------------------------------------- the face and its factor
 *
 * A face is the hull of the columns in S. Its origin S[0] is a short member; the factor is
 * that of the Gram matrix of differences to it,
 *
 *     M_ij = H_ij - H_io - H_oj + H_oo,    i, j in S[1..],
 *
 * so no lift is needed and short columns keep their digits beside long ones.
 */

typedef struct {
    Py_ssize_t n;        /* problem size */
    Py_ssize_t k;        /* members of the support, the origin included */
    const double *H, *c; /* the problem */
    double *R;           /* column i - 1: column of S[i] in the upper factor of M */
    Py_ssize_t *S;       /* the support: the origin, then the order of entry */
    char *in;            /* membership: 0 outside, 1 inside, 2 banned */
    double *w, *gS;      /* weights and gradient on S, in the order of S */
    double *g, *root, *step, *sn;
    double shift;
} Problem;

static double difference(const Problem *p, Py_ssize_t i, Py_ssize_t j)
{
    Py_ssize_t o = p->S[0], n = p->n;
    return (p->H[i * n + j] - p->H[i * n + o]) - (p->H[o * n + j] - p->H[o * n + o]);
}

static void forward(const Problem *p, double *b, Py_ssize_t k)
{
    for (Py_ssize_t i = 0; i < k; i++) {
        const double *row = p->R + i * p->n;
        b[i] /= row[i];
        axpy(-b[i], row + i + 1, b + i + 1, k - i - 1);
    }
}

static void backward(const Problem *p, double *b, Py_ssize_t k)
{
    for (Py_ssize_t i = k; i-- > 0;) {
        const double *row = p->R + i * p->n;
        b[i] = (b[i] - dot(row + i + 1, b + i + 1, k - i - 1)) / row[i];
    }
}

static double pivot_floor(const Problem *p, Py_ssize_t j, double corner)
{
    Py_ssize_t o = p->S[0], n = p->n;
    return PIVOT_FLOOR * fabs(corner) + 1e-30 * (p->H[j * n + j] + p->H[o * n + o]) + 1e-300;
}

/* Column of S[i] in the factor of the members before it. */
static void append(Problem *p, Py_ssize_t i)
{
    Py_ssize_t j = p->S[i], n = p->n, m = i - 1;
    double *head = p->sn;
    for (Py_ssize_t q = 0; q < m; q++)
        head[q] = difference(p, p->S[q + 1], j);
    forward(p, head, m);
    double corner = difference(p, j, j), pivot = corner - dot(head, head, m);
    for (Py_ssize_t q = 0; q < m; q++)
        p->R[q * n + m] = head[q];
    p->R[m * n + m] = sqrt(fmax(pivot, pivot_floor(p, j, corner)));
}

static void swap(Problem *p, Py_ssize_t a, Py_ssize_t b)
{
    Py_ssize_t s = p->S[a];
    double w = p->w[a], g = p->gS[a];
    p->S[a] = p->S[b], p->w[a] = p->w[b], p->gS[a] = p->gS[b];
    p->S[b] = s, p->w[b] = w, p->gS[b] = g;
}

/* row[0..n) -= sum over up to four pivot rows of a_q pivot_q[0..n) */
MULTIARCH static void eliminate(double *restrict row, const double *restrict pivots,
                                Py_ssize_t stride, const double *a, Py_ssize_t count, Py_ssize_t n)
{
    if (count == 4) {
        const double *p1 = pivots + stride, *p2 = p1 + stride, *p3 = p2 + stride;
        double a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
        for (Py_ssize_t l = 0; l < n; l++)
            row[l] -= a0 * pivots[l] + a1 * p1[l] + a2 * p2[l] + a3 * p3[l];
        return;
    }
    for (Py_ssize_t q = 0; q < count; q++)
        for (Py_ssize_t l = 0; l < n; l++)
            row[l] -= a[q] * pivots[q * stride + l];
}

/* Cholesky of the m x m upper triangle in R, four pivots at a time, pivots floored; whether
 * all of them were above the floor of their row. */
static int cholesky(double *R, Py_ssize_t stride, Py_ssize_t m, const double *floors)
{
    int sound = 1;
    double a[4];
    for (Py_ssize_t k = 0; k < m; k += 4) {
        Py_ssize_t count = m - k < 4 ? m - k : 4;
        double *block = R + k * stride;
        for (Py_ssize_t i = k; i < m; i++) {
            Py_ssize_t before = i < k + count ? i - k : count;
            double *row = R + i * stride;
            for (Py_ssize_t q = 0; q < before; q++)
                a[q] = block[q * stride + i];
            eliminate(row + i, block + i, stride, a, before, m - i);
            if (i >= k + count)
                continue;
            sound &= row[i] > floors[i];
            double pivot = sqrt(fmax(row[i], floors[i]));
            row[i] = pivot;
            scale_by(row + i + 1, 1.0 / pivot, m - i - 1);
        }
    }
    return sound;
}

/* Put the shortest member first and factor anew; whether all pivots are sound. */
static int factor(Problem *p)
{
    Py_ssize_t shortest = 0, n = p->n;
    for (Py_ssize_t i = 1; i < p->k; i++)
        if (p->root[p->S[i]] < p->root[p->S[shortest]])
            shortest = i;
    swap(p, 0, shortest);
    for (Py_ssize_t i = 1; i < p->k; i++) {
        double *row = p->R + (i - 1) * n;
        for (Py_ssize_t q = i; q < p->k; q++)
            row[q - 1] = difference(p, p->S[i], p->S[q]);
        p->sn[i - 1] = pivot_floor(p, p->S[i], row[i - 1]);
    }
    return cholesky(p->R, n, p->k - 1, p->sn);
}

/* Append index j to the support; a much shorter column becomes the origin. */
static void enter(Problem *p, Py_ssize_t j)
{
    p->S[p->k] = j;
    p->w[p->k] = 0.0;
    p->gS[p->k] = p->g[j];
    p->in[j] = 1;
    p->k++;
    if (p->root[j] < 0.1 * p->root[p->S[0]])
        (void)factor(p);
    else if (p->k > 1)
        append(p, p->k - 1);
}

/* to[0..n) <- c a + s b,  b[0..n) <- c b - s a */
MULTIARCH static void rotate(const double *a, double *b, double *to, double c, double s,
                             Py_ssize_t n)
{
    for (Py_ssize_t l = 0; l < n; l++) {
        double x = a[l], y = b[l];
        to[l] = c * x + s * y;
        b[l] = c * y - s * x;
    }
}

/* Delete member m: drop its column, rotate the rows below it back to a triangle. */
static void leave(Problem *p, Py_ssize_t m)
{
    Py_ssize_t n = p->n, cols = p->k - 1, out = m - 1;
    p->in[p->S[m]] = 0;
    for (Py_ssize_t i = m + 1; i < p->k; i++) {
        p->S[i - 1] = p->S[i];
        p->w[i - 1] = p->w[i];
        p->gS[i - 1] = p->gS[i];
    }
    p->k--;
    if (m == 0) {
        if (p->k > 0)
            (void)factor(p);
        return;
    }
    for (Py_ssize_t i = 0; i < out; i++) {
        double *row = p->R + i * n;
        memmove(row + out, row + out + 1, (size_t)(cols - out - 1) * sizeof(double));
    }
    for (Py_ssize_t i = out; i + 1 < cols; i++) {
        double *row = p->R + i * n, *next = row + n;
        double r = hypot(row[i + 1], next[i + 1]);
        rotate(row + i + 1, next + i + 1, row + i, row[i + 1] / r, next[i + 1] / r, cols - i - 1);
    }
}

/* Newton step on the affine hull of the face from the gradient gS. */
static void newton(Problem *p)
{
    double sum = 0.0;
    for (Py_ssize_t i = 1; i < p->k; i++)
        p->step[i] = p->gS[0] - p->gS[i];
    forward(p, p->step + 1, p->k - 1);
    backward(p, p->step + 1, p->k - 1);
    for (Py_ssize_t i = 1; i < p->k; i++)
        sum += p->step[i];
    p->step[0] = -sum;
}

/* The full gradient, and its entries on the support. */
static void gradient(Problem *p)
{
    for (Py_ssize_t i = 0; i < p->n; i++)
        p->g[i] = p->c[i] - p->shift;
    for (Py_ssize_t j = 0; j < p->k; j++)
        axpy(p->w[j], p->H + p->S[j] * p->n, p->g, p->n);
    for (Py_ssize_t j = 0; j < p->k; j++)
        p->gS[j] = p->g[p->S[j]];
}

static void normalise(Problem *p)
{
    double s = 0.0;
    for (Py_ssize_t i = 0; i < p->k; i++)
        s += p->w[i];
    for (Py_ssize_t i = 0; i < p->k; i++)
        p->w[i] /= s;
}

/* ---------------------------------------------------------------- the optimality test */

/* Level of the gradient and the parts of the error scale e_i, from nonnegative weights. */
typedef struct {
    double level, rho, mass;
} Scale;

static Scale measure(const Problem *p)
{
    Scale t = {0};
    double total = 0.0;
    for (Py_ssize_t j = 0; j < p->k; j++) {
        Py_ssize_t i = p->S[j];
        double w = fmax(p->w[j], 0.0);
        total += w;
        t.rho += w * p->root[i];
        t.mass += w * fabs(p->c[i] - p->shift);
        t.level += w * p->g[i];
    }
    t.level /= total, t.rho /= total, t.mass /= total;
    return t;
}

/* (level - g_i) / e_i: positive where the objective falls towards column i */
static double violation(const Problem *p, const Scale *t, Py_ssize_t i)
{
    double e = fabs(p->c[i] - p->shift) + p->root[i] * t->rho + t->mass + t->rho * t->rho;
    return (t->level - p->g[i]) / fmax(e, 1e-300);
}

/* The most violated index among those with the given membership, or -1. */
static Py_ssize_t price(const Problem *p, char membership)
{
    Scale t = measure(p);
    Py_ssize_t best = -1;
    double worst = OPTIMALITY;
    for (Py_ssize_t i = 0; i < p->n; i++)
        if (p->in[i] == membership) {
            double v = violation(p, &t, i);
            if (v > worst) {
                worst = v;
                best = i;
            }
        }
    return best;
}

/* ---------------------------------------------------------------- the active set */

enum { HELD, MOVED, REFUSED };

/* Minimise on the face from the gradient in gS, dropping members that reach zero. After a
 * step alpha * step the gradient on the face is (1 - alpha) times the old one, up to a
 * constant that no step sees. REFUSED: member j, which just entered, would leave at once;
 * it is taken out again. */
static int descend(Problem *p, Py_ssize_t j)
{
    int moved = HELD;
    while (p->k > 1) {
        newton(p);
        if (j >= 0) {
            Py_ssize_t at = p->S[0] == j ? 0 : p->k - 1;
            while (p->S[at] != j)
                at--;
            if (p->step[at] <= 0.0) {
                leave(p, at);
                return REFUSED;
            }
            j = -1;
        }
        Py_ssize_t out = -1;
        double alpha = 1.0;
        for (Py_ssize_t i = 0; i < p->k; i++)
            if (p->w[i] + p->step[i] <= 0.0) {
                double ratio = p->step[i] < 0.0 ? p->w[i] / -p->step[i] : 0.0;
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
            p->gS[i] *= 1.0 - alpha;
        }
        leave(p, out);
    }
    p->w[0] = 1.0;
    return moved;
}

/* Wolfe's corral from the current support; returns pivots, or -1 when it gives up. An
 * index refused at step zero is banned until something moves; when nobody outside wants
 * to enter, members that are not yet level are refined. */
static Py_ssize_t corral(Problem *p, Py_ssize_t limit)
{
    int banned = 0, refined = 0;
    gradient(p);
    descend(p, -1);
    for (Py_ssize_t pivots = 0; pivots <= limit; pivots++) {
        gradient(p);
        Py_ssize_t j = price(p, 0);
        if (j < 0) {
            if (price(p, 1) < 0)
                return banned ? -1 : pivots;
            if (refined++ == REFINEMENTS)
                return -1;
            descend(p, -1);
            continue;
        }
        if (pivots == limit)
            break;
        enter(p, j);
        int result = descend(p, j);
        if (result == REFUSED) {
            p->in[j] = 2;
            banned = 1;
        } else if (result == MOVED) {
            refined = 0;
            for (Py_ssize_t i = 0; banned && i < p->n; i++)
                if (p->in[i] == 2)
                    p->in[i] = 0;
            banned = 0;
        }
    }
    return -1;
}

/* ---------------------------------------------------------------- block pivoting */

/* A Newton step on the face from the weights at hand, and the gradient there. */
static void face_step(Problem *p)
{
    gradient(p);
    newton(p);
    axpy(1.0, p->step, p->w, p->k);
    gradient(p);
}

/* Mark who should enter or leave in p->in; how many there are. */
static Py_ssize_t exchange(Problem *p)
{
    Py_ssize_t offenders = 0, inside = p->k;
    Scale t = measure(p);
    for (Py_ssize_t i = 0; i < p->n; i++)
        if (!p->in[i] && violation(p, &t, i) > OPTIMALITY) {
            p->in[i] = 1;
            offenders++;
        }
    for (Py_ssize_t i = 0; i < inside; i++)
        if (!(p->w[i] > 0.0)) {
            p->in[p->S[i]] = 0;
            offenders++;
        }
    return offenders;
}

/* Exchange all offenders at once from the support in p->in; returns sweeps or -1. */
static Py_ssize_t block_pivot(Problem *p)
{
    Py_ssize_t n = p->n, fewest = n + 1;
    int stalled = 0;
    for (Py_ssize_t sweep = 1; sweep <= MAX_SWEEPS; sweep++) {
        p->k = 0;
        for (Py_ssize_t i = 0; i < n; i++)
            if (p->in[i])
                p->S[p->k++] = i;
        for (Py_ssize_t i = 0; i < p->k; i++)
            p->w[i] = 1.0 / (double)p->k;
        if (p->k == 0 || !factor(p))
            return -1;
        face_step(p);
        Py_ssize_t offenders = exchange(p);
        if (offenders == 0) { /* refine, and see whether it holds */
            face_step(p);
            offenders = exchange(p);
        }
        if (offenders == 0) {
            normalise(p);
            gradient(p);
            return price(p, 1) < 0 ? sweep : -1;
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

/* Smallest squared pivot over diagonal of the factor: how independent the support is. */
static double independence(const Problem *p)
{
    double least = 1.0;
    for (Py_ssize_t i = 1; i < p->k; i++) {
        double corner = difference(p, p->S[i], p->S[i]);
        double pivot = p->R[(i - 1) * p->n + i - 1];
        least = fmin(least, corner > 0.0 ? pivot * pivot / corner : 0.0);
    }
    return least;
}

/* The face of the weights w, or the best vertex where that has no sound factor. */
static void first_face(Problem *p, const double *w, int warm, Py_ssize_t vertex)
{
    memset(p->in, 0, (size_t)p->n);
    p->k = 0;
    for (Py_ssize_t i = 0; warm && i < p->n; i++)
        if (w[i] > 0.0) {
            p->S[p->k] = i;
            p->w[p->k++] = w[i];
            p->in[i] = 1;
        }
    if (p->k > 0 && factor(p)) {
        normalise(p);
        return;
    }
    memset(p->in, 0, (size_t)p->n);
    p->k = 1;
    p->S[0] = vertex;
    p->w[0] = 1.0;
    p->in[vertex] = 1;
}

/* Solve one problem; w: out, and in when `warm`. Returns pivots, -1 when not solved. */
static Py_ssize_t solve_one(Problem *p, double *w, int warm, Py_ssize_t limit, int block,
                            double *least)
{
    Py_ssize_t n = p->n, first = 0, used = -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        p->root[i] = sqrt(fmax(p->H[i * n + i], 0.0));
        if (0.5 * p->H[i * n + i] + p->c[i] < 0.5 * p->H[first * n + first] + p->c[first])
            first = i;
    }
    p->shift = p->c[first];
    if (block) {
        for (Py_ssize_t i = 0; i < n; i++)
            p->in[i] = warm ? w[i] > 0.0 : 1;
        used = block_pivot(p);
    }
    if (used < 0) {
        first_face(p, w, warm, first);
        used = corral(p, limit);
        if (used < 0 && warm) { /* a start must not cost the answer */
            first_face(p, w, 0, first);
            used = corral(p, limit);
        }
    }
    memset(w, 0, (size_t)n * sizeof(double));
    for (Py_ssize_t j = 0; j < p->k; j++)
        w[p->S[j]] = p->w[j];
    *least = independence(p);
    return used;
}

/* ---------------------------------------------------------------- checks and scaling */

enum { BAD_INPUT = -2 }; /* the caller finds out what is wrong and says so */

/* Finite, symmetric, and positive definite with `tolerance` on its unit diagonal. */
static int is_gram(const double *G, Py_ssize_t n, double tolerance, double *R,
                   double *inverse, double *floors)
{
    double top = 0.0;
    if (!all_finite(G, n * n))
        return 0;
    for (Py_ssize_t i = 0; i < n; i++)
        top = fmax(top, fabs(G[i * n + i]));
    for (Py_ssize_t i = 0; i < n; i++) {
        double size = sqrt(fmax(fabs(G[i * n + i]), ldexp(top, -100)));
        inverse[i] = size > 0 ? 1.0 / size : 1.0;
        floors[i] = 0.0;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        double *row = R + i * n, skew = 0.0;
        for (Py_ssize_t j = i; j < n; j++) {
            row[j] = (G[i * n + j] * inverse[i]) * inverse[j];
            skew = fmax(skew, fabs(row[j] - (G[j * n + i] * inverse[i]) * inverse[j]));
        }
        if (!(skew <= tolerance))
            return 0;
        row[i] += tolerance;
    }
    return cholesky(R, n, n, floors);
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
    p->R = m->doubles;
    p->w = m->doubles + (size_t)(1 + copies) * N * N;
    p->gS = p->w + n;
    p->g = p->gS + n;
    p->root = p->g + n;
    p->step = p->root + n;
    p->sn = p->step + n;
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
    if (n < 1 || !fits(&b[0], n * n, 8) || !fits(&b[1], n, 8) || !fits(&b[2], n, 8)) {
        release(b, 3);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "n must be at least 1");
        return NULL;
    }
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
 * is -1 where unsolved and BAD_INPUT where the matrix is not a Gram matrix. Returns the
 * least of pivots, how many minimisers are unique, and whether all values are finite.
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
    if (n < 1 || batch < 0 || !fits(&b[0], batch * n * n, 8) || !fits(&b[1], batch * n, 8) ||
        !fits(&b[2], batch, 8) || !fits(&b[3], batch * n, 8) || !fits(&b[4], batch * n, 8) ||
        !fits(&b[5], batch * 4, 8) || !fits(&b[6], batch, 8)) {
        release(b, 7);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "n must be at least 1");
        return NULL;
    }
    Memory memory;
    Problem p;
    int ok = take(&memory, &p, n, 1), finite = 1;
    int64_t lowest = 0;
    Py_ssize_t unique = 0;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        double *H = p.R + n * n, *c = p.sn + n;
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
                !is_gram(G, n, tolerance, p.R, p.root, p.sn)) {
                *pivots = lowest = BAD_INPUT;
                continue;
            }
            int k = scaled(G, q, curvature, n, H, c);
            double least;
            *pivots = solve_one(&p, w, warm, 20 * n + 100, 1, &least);
            gradient(&p);
            Scale scale = measure(&p);
            double low = p.g[0], value = 0.0, gap = 0.0;
            Py_ssize_t face = 0;
            for (Py_ssize_t i = 1; i < n; i++)
                low = fmin(low, p.g[i]);
            for (Py_ssize_t i = 0; i < n; i++) {
                gap += w[i] * (p.g[i] - low);
                value += w[i] * (0.5 * (p.g[i] + p.shift) + 0.5 * c[i]);
                face += violation(&p, &scale, i) >= -FACE;
                z[i] = ldexp(p.g[i] - low, k);
            }
            info[0] = ldexp(value, k);
            info[1] = ldexp(gap, k);
            info[2] = least > INDEPENDENT;
            info[3] = least > INDEPENDENT && face == p.k && *pivots >= 0;
            unique += info[3] > 0.0;
            finite &= isfinite(info[0]) && isfinite(info[1]);
            if (*pivots < lowest)
                lowest = *pivots;
        }
        Py_END_ALLOW_THREADS
    }
    give(&memory);
    release(b, 7);
    return ok ? Py_BuildValue("nni", (Py_ssize_t)lowest, unique, finite) : PyErr_NoMemory();
}

/* ---------------------------------------------------------------- passes over the data */

enum { FLOAT32, FLOAT64, BFLOAT16, ZEROS }; /* ZEROS: a row of zeros that nobody stores */
enum { CHUNK = 256, FLUSH = 256, PIECE = 4096 };
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

/* Fetches a later chunk of the data, one line a call: reading hides behind arithmetic. */
typedef struct {
    const Rows *rows;
    Py_ssize_t next, row;
    const char *line, *end;
} Fetch;

static inline void fetch(Fetch *f)
{
    if (f->line < f->end) {
        __builtin_prefetch(f->line, 0, 2);
        f->line += 64;
    } else if (f->row < f->rows->n) {
        f->line = at(f->rows, f->row, f->next);
        f->end = f->line + CHUNK * SIZE[f->rows->types[f->row]];
        f->row++;
    }
}

/* sums[(I, J) block pairs, I <= J][4 x 4] += X_I X_J' over one chunk, 8 lanes apart */
MULTIARCH static void rank_update(const double *X, Py_ssize_t blocks, double *sums,
                                  const Rows *rows, Py_ssize_t next)
{
    Fetch f = {.rows = rows, .next = next};
    for (Py_ssize_t I = 0; I < blocks; I++)
        for (Py_ssize_t J = I; J < blocks; J++, sums += 16 * 8) {
            const double *a = X + I * 4 * CHUNK, *b = X + J * 4 * CHUNK;
            v8 s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33;
            s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = (v8){0};
            s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = (v8){0};
#define A(k) (*(const v8 *)(a + l + k * CHUNK))
#define B(k) (*(const v8 *)(b + l + k * CHUNK))
            if (I == J)
                for (Py_ssize_t l = 0; l < CHUNK; l += 8) { /* the upper half is enough */
                    fetch(&f);
                    v8 a0 = A(0), a1 = A(1), a2 = A(2), a3 = A(3);
                    s00 += a0 * a0, s01 += a0 * a1, s02 += a0 * a2, s03 += a0 * a3;
                    s11 += a1 * a1, s12 += a1 * a2, s13 += a1 * a3;
                    s22 += a2 * a2, s23 += a2 * a3, s33 += a3 * a3;
                }
            else
                for (Py_ssize_t l = 0; l < CHUNK; l += 8) {
                    fetch(&f);
                    v8 a0 = A(0), a1 = A(1), a2 = A(2), a3 = A(3), bk = B(0);
                    s00 += a0 * bk, s10 += a1 * bk, s20 += a2 * bk, s30 += a3 * bk, bk = B(1);
                    s01 += a0 * bk, s11 += a1 * bk, s21 += a2 * bk, s31 += a3 * bk, bk = B(2);
                    s02 += a0 * bk, s12 += a1 * bk, s22 += a2 * bk, s32 += a3 * bk, bk = B(3);
                    s03 += a0 * bk, s13 += a1 * bk, s23 += a2 * bk, s33 += a3 * bk;
                }
#undef A
#undef B
            v8 *out = (v8 *)sums;
            out[0] += s00, out[1] += s01, out[2] += s02, out[3] += s03;
            out[4] += s10, out[5] += s11, out[6] += s12, out[7] += s13;
            out[8] += s20, out[9] += s21, out[10] += s22, out[11] += s23;
            out[12] += s30, out[13] += s31, out[14] += s32, out[15] += s33;
        }
}

/* A[m x m] += sums over the lanes; sums <- 0 */
static void flush(double *sums, Py_ssize_t blocks, Py_ssize_t m, double *A)
{
    for (Py_ssize_t I = 0; I < blocks; I++)
        for (Py_ssize_t J = I; J < blocks; J++)
            for (int p = 0; p < 4; p++)
                for (int q = 0; q < 4; q++, sums += 8) {
                    Py_ssize_t i = I * 4 + p, j = J * 4 + q;
                    double s = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                               ((sums[4] + sums[5]) + (sums[6] + sums[7]));
                    memset(sums, 0, 8 * sizeof(double));
                    if (i < m && j < m && i <= j)
                        A[i * m + j] += s;
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
    rows->buffers = malloc((size_t)count * sizeof(Py_buffer) + 1);
    rows->types = malloc((size_t)count * sizeof(int) + 1);
    if (!rows->buffers || !rows->types) {
        PyErr_NoMemory();
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

/* gram(rows, types, d, curvature, scale, slope_scale, A, offset, base=None, base_type=0)
 *
 * The first row is the origin y_0, the last the reference g; those between are columns y_i.
 * With x the base, r = y_0 - x, c_i = scale (y_i - y_0), h = slope_scale (g + curvature r),
 * adds to the upper triangle of A the inner products of c_1, ..., c_m, h, and to offset
 * (g, r) and (r, r): a vector may be given in pieces, one call for each.
 */
static PyObject *native_gram(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *list;
    Py_buffer types, out, offset;
    Base base = {0};
    Py_ssize_t d;
    double curvature, scale, slope_scale;
    if (!PyArg_ParseTuple(args, "Oy*ndddw*w*|z*i", &list, &types, &d, &curvature, &scale,
                          &slope_scale, &out, &offset, &base.buffer, &base.type))
        return NULL;
    Rows rows;
    Py_ssize_t width = types.len - 1;
    int held = width >= 1 && fits(&out, width * width, 8) && fits(&offset, 2, 8) &&
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
            Py_ssize_t since = 0;
            for (Py_ssize_t lo = 0; lo < d; lo += CHUNK) {
                Py_ssize_t len = d - lo < CHUNK ? d - lo : CHUNK;
                if (len < CHUNK)
                    memset(X, 0, used);
                load(at(&rows, 0, lo), rows.types[0], len, zero, y);
                load(base_at(&base, lo), base.type, len, zero, x);
                load((const char *)y, FLOAT64, len, x, r);
                for (Py_ssize_t i = 1; i < m; i++)
                    load(at(&rows, i, lo), rows.types[i], len, y, X + (i - 1) * CHUNK);
                if (scale != 1.0)
                    scale_by(X, scale, (m - 1) * CHUNK);
                load(at(&rows, m, lo), rows.types[m], len, zero, h);
                gr += dot(h, r, CHUNK) * scale * slope_scale;
                add_scaled_exactly(curvature, r, h, CHUNK);
                scale_by(h, slope_scale, CHUNK);
                scale_by(r, scale, CHUNK);
                rr += dot(r, r, CHUNK);
                rank_update(X, blocks, sums, &rows, lo + 2 * CHUNK);
                if (++since == FLUSH) {
                    flush(sums, blocks, m, A);
                    since = 0;
                }
            }
            flush(sums, blocks, m, A);
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
    int held = lo >= 0 && count >= 0 && count <= stride && origin >= 0 && origin < n &&
               fits(&out, n * stride, 8) && hold_rows(&rows, list, types.buf, n, lo + count);
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
    int plain = last == first + 4;
    for (Py_ssize_t i = first; i < last; i++)
        plain &= rows->types[i] == FLOAT32;
    if (plain) {
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
    int held = fits(&weights, n, 8) && fits(&out, sums * d, out_type == FLOAT64 ? 8 : 4) &&
               hold_base(&base, d) && hold_rows(&rows, list, types.buf, n, d);
    if (held) {
        Py_BEGIN_ALLOW_THREADS
        LINED double sum[PIECE], x[PIECE], zero[PIECE] = {0};
        for (Py_ssize_t lo = 0; lo < d; lo += PIECE) {
            Py_ssize_t len = d - lo < PIECE ? d - lo : PIECE;
            load(base_at(&base, lo), base.type, len, zero, x);
            for (Py_ssize_t k = 0; k < sums; k++) {
                const double *w = (const double *)weights.buf + k * n;
                double all = 0.0;
                for (Py_ssize_t i = 0; i < n; i++)
                    all += w[i];
                memset(sum, 0, sizeof(sum));
                if (base.type != ZEROS)
                    axpy(-all, x, sum, len);
                Py_ssize_t i = 0;
                for (; are_float32(&rows, i, 8); i += 8)
                    add_eight(&rows, i, lo, len, w, sum);
                for (; i < n; i += 4)
                    add_rows(&rows, i, lo, len, w, sum);
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

static PyMethodDef methods[] = {
    {"solve", native_solve, METH_VARARGS, "Check, scale, solve, certify a stack."},
    {"corral", native_corral, METH_VARARGS, "Active set on one prepared problem."},
    {"gram", native_gram, METH_VARARGS, "Gram matrix and slope in one pass."},
    {"shifted", native_shifted, METH_VARARGS, "Rows less one of them, in double precision."},
    {"combine", native_combine, METH_VARARGS, "Weighted sums in double precision."},
    {"advance", native_advance, METH_VARARGS, "Control variates after a round, in place."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "Compiled twins of hewfl.core.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
