/* Weights on the simplex, compiled: twins of active_set.py and pivoting.py with the checks
 * and the certificate of simplex.py, and of the steps to a geometric median in
 * aggregators/distance.py, for speed only. Callers go through
 * hewfl.core.native.library(); every entry point checks that its buffers are as long as it
 * will read or write.
 *
 * Notation: a factor R with R'R = M is kept as a row-major upper triangle, so that solves,
 * updates and rotations all run along rows.
 */
#include "../core/_kernels.h"

#define OPTIMALITY 1e-13  /* as in active_set.py */
#define PIVOT_FLOOR 1e-14 /* as in active_set.py */
#define FACE 1e-12        /* as in least_norm.py */
#define INDEPENDENT 1e-8  /* as in active_set.py */
#define MAX_SWEEPS 20     /* as in pivoting.py */
#define PATIENCE 4        /* as in pivoting.py */
#define REFINEMENTS 5     /* as in active_set.py */

/* Eight numbers at a time: inf and nan times zero give nan, all else zero. */
MULTIARCH static int all_finite(const double *a, Py_ssize_t n)
{
    v8 s = {0};
    Py_ssize_t i = 0;
    for (; i + 8 <= n; i += 8)
        s += *(const v8 *)(a + i) * 0.0;
    double r = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    for (; i < n; i++)
        r += a[i] * 0.0;
    return r == 0.0;
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

/* M_ij. The differences are taken in pairs: each pair is small where columns i and j have a
 * long part in common with the origin, and loses nothing more when the pairs meet. */
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

/* The least pivot: a column that depends on the others would have a pivot of zero or, by
 * rounding, below it, and the square root would be nan. Floored, it makes a very long step,
 * which ends at a bound at once: the dependent column is exchanged for another. */
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

/* Delete member m: drop its column, rotate the rows below it back to a triangle. Rotations
 * are orthogonal: many departures in a row leave the factor as good as a new one, where
 * downdates by subtraction would lose definiteness. */
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

/* The full gradient, and its entries on the support. The linear term is counted from that of
 * the best vertex: a large constant in it would round away the differences that decide. */
static void gradient(Problem *p)
{
    for (Py_ssize_t i = 0; i < p->n; i++)
        p->g[i] = p->c[i] - p->shift;
    for (Py_ssize_t j = 0; j < p->k; j++)
        axpy(p->w[j], p->H + p->S[j] * p->n, p->g, p->n);
    for (Py_ssize_t j = 0; j < p->k; j++)
        p->gS[j] = p->g[p->S[j]];
}

/* Weights over their sum: Newton steps keep the sum only to rounding, which adds up. */
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
 * index refused at step zero is banned until something moves; when no index outside wants
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

/* Finite, symmetric, and positive definite with `tolerance` on its unit diagonal. Without
 * the scaling to unit diagonal one long column would make any error among the short ones
 * look like rounding. */
static int is_gram(const double *G, Py_ssize_t n, double tolerance, double *R,
                   double *inverse, double *floors)
{
    double top = 0.0;
    if (!all_finite(G, n * n))
        return 0;
    if (isinf(tolerance)) /* a matrix that hewfl formed is a Gram matrix */
        return 1;
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

/* H, c <- curvature * G, q divided by a power of two near their size; the exponent. A power
 * of two rounds nothing; products of sizes near 1e200 would overflow without it. */
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
    *m = (Memory){0};
    if (times(n, n + 10, 16) < 0)
        return 0;
    m->doubles = malloc(((size_t)(1 + copies) * N * N + 10 * N) * sizeof(double));
    m->S = malloc(N * sizeof(Py_ssize_t));
    m->in = malloc(N);
    if (!m->doubles || !m->S || !m->in)
        return 0;
    *p = (Problem){.n = n, .S = m->S, .in = m->in};
    p->R = m->doubles;
    p->w = m->doubles + (size_t)(1 + copies) * N * N;
    p->gS = p->w + n;
    p->g = p->gS + n;
    p->root = p->g + n;
    p->step = p->root + n;
    p->sn = p->step + n;
    return 1;
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
    if (n < 1 || !fits(&b[0], times(n, n, 1), 8) || !fits(&b[1], n, 8) || !fits(&b[2], n, 8)) {
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
    if (n < 1 || batch < 0 || !fits(&b[0], times(batch, n, n), 8) ||
        !fits(&b[1], times(batch, n, 1), 8) || !fits(&b[2], batch, 8) ||
        !fits(&b[3], times(batch, n, 1), 8) || !fits(&b[4], times(batch, n, 1), 8) ||
        !fits(&b[5], times(batch, 4, 1), 8) || !fits(&b[6], batch, 8)) {
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
/* One Weiszfeld step: c_i = a_i/max(nu, |z - D_i|) at z = sum w_iD_i, and the sum of
 * smoothed distances there. */
static double pull(const double *G, const double *a, double nu, const double *w, double *c,
                   Py_ssize_t n)
{
    double energy = 0.0, value = 0.0;
    for (Py_ssize_t i = 0; i < n; i++) {
        c[i] = dot(G + i * n, w, n);
        energy += w[i] * c[i];
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        double apart = G[i * n + i] + (energy - 2 * c[i]);
        apart = apart < 0.0 ? 0.0 : apart; /* NaN stays */
        double length = sqrt(apart), bounded = length < nu ? nu : length;
        c[i] = a[i] / bounded;
        value += 0.5 * (c[i] * apart + a[i] * bounded);
    }
    return value;
}

/* The steps of hewfl.aggregators.distance.weiszfeld, whose docstring has the method;
 * memory for 4n numbers. Returns the change of the last weights. */
static double weiszfeld(const double *G, const double *a, double nu, double *c, Py_ssize_t n,
                        Py_ssize_t iterations, Py_ssize_t plain, Py_ssize_t stalled,
                        double settled, double no_rise, double *memory)
{
    double *w = memory, *next = w + n, *last = next + n, *kept = last + n;
    double least = INFINITY, change = INFINITY;
    Py_ssize_t idle = 0;
    int taken = 0, has_kept = 0; /* `last` is the point before w, where one was taken */
    memcpy(w, a, n * sizeof(double));
    for (Py_ssize_t k = 0; k < iterations; k++) {
        double value = pull(G, a, nu, w, c, n), sum = 0.0, rr = 0.0, bend = 0.0;
        if (has_kept && value > least * no_rise) { /* the extrapolation does not help */
            memcpy(w, kept, n * sizeof(double));
            has_kept = 0;
            continue;
        }
        has_kept = 0;
        for (Py_ssize_t i = 0; i < n; i++)
            sum += c[i];
        change = 0.0;
        for (Py_ssize_t i = 0; i < n; i++) {
            next[i] = c[i] / sum;
            double move = fabs(next[i] - w[i]);
            change = move <= change ? change : move;
        }
        idle = value < least ? 0 : idle + 1;
        if (change <= settled || idle == stalled)
            break;
        least = value < least ? value : least;
        if (k >= plain && taken) {
            for (Py_ssize_t i = 0; i < n; i++) {
                double r = w[i] - last[i], b = next[i] - w[i] - r;
                rr += r * r;
                bend += b * b;
            }
            double far = bend > 0.0 ? sqrt(rr / bend) : 1.0;
            if (far > 1.0) {
                memcpy(kept, next, n * sizeof(double));
                for (Py_ssize_t i = 0; i < n; i++) {
                    double r = w[i] - last[i], b = next[i] - w[i] - r;
                    w[i] = last[i] + 2 * far * r + far * far * b;
                }
                has_kept = 1;
                taken = 0;
                continue;
            }
        }
        memcpy(last, w, n * sizeof(double));
        memcpy(w, next, n * sizeof(double));
        taken = 1;
    }
    return change;
}

/* weiszfeld(G, alpha, c, n, nu, iterations, plain, stalled, settled, no_rise) -> change */
static PyObject *native_weiszfeld(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer b[3];
    Py_ssize_t n, iterations, plain, stalled;
    double nu, settled, no_rise, change = 0.0;
    if (!PyArg_ParseTuple(args, "y*y*w*ndnnndd", &b[0], &b[1], &b[2], &n, &nu, &iterations,
                          &plain, &stalled, &settled, &no_rise))
        return NULL;
    /* `stalled` ends the loop: beyond it no damaged call may run for ever */
    int is_valid = n >= 1 && iterations >= 1 && plain >= 0 && stalled >= 1 && stalled <= 1000 && settled >= 0;
    if (!is_valid || !fits(&b[0], times(n, n, 1), 8) || !fits(&b[1], n, 8) || !fits(&b[2], n, 8)) {
        release(b, 3);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "n, iterations and stalled must be at least 1");
        return NULL;
    }
    double *memory = malloc(4 * (size_t)n * sizeof(double));
    if (memory) {
        Py_BEGIN_ALLOW_THREADS
        change = weiszfeld(b[0].buf, b[1].buf, nu, b[2].buf, n, iterations, plain, stalled,
                           settled, no_rise, memory);
        Py_END_ALLOW_THREADS
    }
    release(b, 3);
    if (!memory)
        return PyErr_NoMemory();
    free(memory);
    return PyFloat_FromDouble(change);
}

static PyMethodDef methods[] = {
    {"solve", native_solve, METH_VARARGS, "Check, scale, solve, certify a stack."},
    {"corral", native_corral, METH_VARARGS, "Active set on one prepared problem."},
    {"weiszfeld", native_weiszfeld, METH_VARARGS, "Steps to a geometric median."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_solver", "Compiled twins of hewfl.solver.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__solver(void) { return PyModule_Create(&module); }
