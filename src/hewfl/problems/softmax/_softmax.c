/* Softmax regression, compiled: whole branches, and losses from scores.
 *
 * A branch is one client, one lane, all its steps in cache. The Python twins are
 * hewfl.sim.branches with Softmax.minibatch_gradients, and cross_entropy.losses; tests
 * tie them. Everything else about branches, who steps with what, stays in Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES 64
#define CHUNK 256

typedef struct {
    Py_ssize_t p, whole, stride;       /* features; of them in whole vectors; row of W */
    Py_ssize_t classes, padded, group; /* classes; in whole groups; group */
    Py_ssize_t b;                      /* samples of a step */
    double eta, l2, pull;
    int hold;
    void *W, *D, *X, *C;        /* model, displacement, anchor, correction or NULL */
    void *S, *Z, *top, *total;  /* scores, residuals, and two rows for them */
    void *tails, *tail_rows;    /* last columns of each sample, padded to a vector */
} Branch;

typedef void (*Losses)(const void *, const int64_t *, double *, uint8_t *, Py_ssize_t,
                       Py_ssize_t, Py_ssize_t, int);
typedef void (*Step)(const Branch *, const void *const *, const void *const *,
                     const int64_t *);

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#endif

#ifdef X86
#define TARGET __attribute__((target("arch=x86-64-v4")))
#define BYTES 64
#define ROWS(K) ((K) == 8 ? 3 : 4)
#define T float
#define BITS uint32_t
#define NAME(x) x##_float_v4
#include "_branch.h"
#undef T
#undef BITS
#undef NAME
#define T double
#define BITS uint64_t
#define NAME(x) x##_double_v4
#include "_branch.h"
#include "_losses.h"
#undef T
#undef BITS
#undef NAME
#undef TARGET
#undef BYTES
#undef ROWS

#define TARGET __attribute__((target("arch=x86-64-v3")))
#define BYTES 32
#define ROWS(K) ((K) == 8 ? 1 : 2)
#define T float
#define BITS uint32_t
#define NAME(x) x##_float_v3
#include "_branch.h"
#undef T
#undef BITS
#undef NAME
#define T double
#define BITS uint64_t
#define NAME(x) x##_double_v3
#include "_branch.h"
#include "_losses.h"
#undef T
#undef BITS
#undef NAME
#undef TARGET
#undef BYTES
#undef ROWS
#endif

#define TARGET
#define BYTES 16
#define ROWS(K) ((K) == 8 ? 1 : 2)
#define T float
#define BITS uint32_t
#define NAME(x) x##_float
#include "_branch.h"
#undef T
#undef BITS
#undef NAME
#define T double
#define BITS uint64_t
#define NAME(x) x##_double
#include "_branch.h"
#include "_losses.h"
#undef T
#undef BITS
#undef NAME

/* what this processor can: 4 and 3 as in x86-64-v4 and -v3, else 0 */
static int level(void)
{
#ifdef X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return 4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        return 3;
#endif
    return 0;
}

/* the step function for a type, and its vector width in bytes */
static Step choose(int size, Py_ssize_t *bytes)
{
#ifdef X86
    int known = level();
    if (known == 4) {
        *bytes = 64;
        return size == 4 ? step_float_v4 : step_double_v4;
    }
    if (known == 3) {
        *bytes = 32;
        return size == 4 ? step_float_v3 : step_double_v3;
    }
#endif
    *bytes = 16;
    return size == 4 ? step_float : step_double;
}

static Losses choose_losses(void)
{
#ifdef X86
    int known = level();
    if (known == 4)
        return losses_double_v4;
    if (known == 3)
        return losses_double_v3;
#endif
    return losses_double;
}

/* classes go in groups of 5, 8, 4 or 2: the least padding wins, earlier ones on ties */
static Py_ssize_t choose_group(Py_ssize_t classes)
{
    const Py_ssize_t sizes[] = {5, 8, 4, 2};
    Py_ssize_t best = 5, least = PY_SSIZE_T_MAX;
    for (int i = 0; i < 4; i++) {
        Py_ssize_t padded = (classes + sizes[i] - 1) / sizes[i] * sizes[i];
        if (padded < least)
            least = padded, best = sizes[i];
    }
    return best;
}

static void pad(const Branch *g, const char *from, char *to, size_t size)
{
    for (Py_ssize_t k = 0; k < g->classes; k++)
        memcpy(to + (size_t)(k * g->stride) * size, from + (size_t)(k * g->p) * size,
               (size_t)g->p * size);
}

static void unpad(const Branch *g, const char *from, char *to, size_t size)
{
    for (Py_ssize_t k = 0; k < g->classes; k++)
        memcpy(to + (size_t)(k * g->p) * size, from + (size_t)(k * g->stride) * size,
               (size_t)g->p * size);
}

static int holds(const Py_buffer *buffer, Py_ssize_t count, Py_ssize_t size)
{
    if (buffer->len == count * size)
        return 1;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a buffer has the wrong length");
    return 0;
}

/* every sample that will be read is one of the m, and its label one of the classes */
static int valid(const int64_t *samples, const int64_t *counts, const int64_t *horizons,
                 const int64_t *labels, Py_ssize_t s, Py_ssize_t width, Py_ssize_t m,
                 Py_ssize_t classes, Py_ssize_t steps)
{
    for (Py_ssize_t i = 0; i < s; i++) {
        if (counts[i] < 1 || counts[i] > width || horizons[i] < 0 || horizons[i] > steps)
            return 0;
        for (Py_ssize_t l = 0; l < horizons[i]; l++)
            for (Py_ssize_t j = 0; j < counts[i]; j++) {
                int64_t row = samples[(l * s + i) * width + j];
                if (row < 0 || row >= m || labels[row] < 0 || labels[row] >= classes)
                    return 0;
            }
    }
    return 1;
}

/* rows of one step of one client */
static void point(const char *features, const int64_t *labels, const int64_t *samples,
                  Py_ssize_t b, Py_ssize_t p, size_t size, const void **rows, int64_t *chosen)
{
    for (Py_ssize_t j = 0; j < b; j++) {
        rows[j] = features + (size_t)(samples[j] * p) * size;
        if (chosen)
            chosen[j] = labels[samples[j]];
    }
}

enum { FEATURES, LABELS, SAMPLES, COUNTS, HORIZONS, ANCHORS, ETA, PULL, HOLD, OUT, BUFFERS };

/* branches(size, m, p, classes, l2, features, labels, samples, counts, horizons, anchors,
 *          step_sizes, proximal, hold, out, corrections)
 *
 * Types: features, anchors, out and corrections are of `size` bytes a number; step_sizes
 * (lanes, s) and proximal (lanes) doubles; the rest int64. corrections: for each lane a
 * buffer (s, d) or None. samples: (steps, s, width). out: (lanes, s, d).
 */
static PyObject *softmax_branches(PyObject *self, PyObject *args)
{
    (void)self;
    int size;
    Py_ssize_t m, p, classes;
    double l2;
    Py_buffer v[BUFFERS];
    PyObject *list;
    if (!PyArg_ParseTuple(args, "innndy*y*y*y*y*y*y*y*y*w*O", &size, &m, &p, &classes, &l2,
                          &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9],
                          &list))
        return NULL;
    Py_ssize_t d = p * classes, s = v[COUNTS].len / 8, lanes = v[PULL].len / 8;
    const int64_t *counts = v[COUNTS].buf, *horizons = v[HORIZONS].buf;
    const int64_t *labels = v[LABELS].buf, *samples = v[SAMPLES].buf;
    Py_ssize_t steps = 0, width = 0, rows_read = v[SAMPLES].len / 8;
    Py_buffer *corrections = calloc((size_t)lanes + 1, sizeof(Py_buffer));
    Py_ssize_t held = 0;
    void *memory = NULL;
    int ok = corrections != NULL && (size == 4 || size == 8) && s > 0 && lanes > 0;
    for (Py_ssize_t i = 0; ok && i < s && i < v[HORIZONS].len / 8; i++)
        steps = horizons[i] > steps ? (Py_ssize_t)horizons[i] : steps;
    if (ok && steps > 0)
        width = rows_read / (steps * s);
    if (!ok)
        PyErr_SetString(PyExc_ValueError, "no clients, no lanes, or an unknown type");
    ok = ok && holds(&v[FEATURES], m * p, size) && holds(&v[LABELS], m, 8) &&
         holds(&v[SAMPLES], steps * s * width, 8) && holds(&v[HORIZONS], s, 8) &&
         holds(&v[ANCHORS], lanes * d, size) && holds(&v[ETA], lanes * s, 8) &&
         holds(&v[HOLD], lanes, 8) && holds(&v[OUT], lanes * s * d, size);
    if (ok && !valid(samples, counts, horizons, labels, s, width, m, classes, steps)) {
        PyErr_SetString(PyExc_ValueError, "a sample, label, count or horizon is out of range");
        ok = 0;
    }
    for (; ok && held < lanes; held++) {
        PyObject *item = PySequence_GetItem(list, held);
        ok = item != NULL;
        if (ok && item != Py_None) {
            ok = PyObject_GetBuffer(item, &corrections[held], PyBUF_SIMPLE) == 0;
            if (ok && !holds(&corrections[held], s * d, size)) {
                PyBuffer_Release(&corrections[held]);
                ok = 0;
            }
        }
        Py_XDECREF(item);
        if (!ok)
            break;
    }
    if (ok) {
        Py_ssize_t bytes;
        Step step = choose(size, &bytes);
        Py_ssize_t n = bytes / size;
        Branch g = {.p = p, .classes = classes, .l2 = l2, .group = choose_group(classes)};
        g.whole = p / n * n;
        g.stride = (p + n - 1) / n * n;
        g.padded = (classes + g.group - 1) / g.group * g.group;
        size_t model = (size_t)(g.padded * g.stride * size) + MAX_BYTES;
        size_t table = (size_t)(width * g.padded * size) + MAX_BYTES;
        size_t row = (size_t)(width * size) + MAX_BYTES, tail = (size_t)(width * bytes) + MAX_BYTES;
        size_t pointers = (size_t)width * sizeof(void *) + MAX_BYTES;
        size_t all = 4 * model + 2 * table + 2 * row + tail + 4 * pointers;
        memory = calloc(1, all + MAX_BYTES);
        ok = memory != NULL;
        if (!ok)
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            char *free_at = memory;
#define TAKE(bytes)                                                                        \
    (free_at = (char *)(((uintptr_t)free_at + MAX_BYTES - 1) & ~(uintptr_t)(MAX_BYTES - 1)), \
     free_at += (bytes) - MAX_BYTES, free_at - ((bytes) - MAX_BYTES))
            g.W = TAKE(model), g.D = TAKE(model), g.X = TAKE(model);
            void *C = TAKE(model);
            g.S = TAKE(table), g.Z = TAKE(table), g.top = TAKE(row), g.total = TAKE(row);
            g.tails = TAKE(tail), g.tail_rows = TAKE(pointers);
            const void **rows = (const void **)TAKE(pointers);
            const void **next = (const void **)TAKE(pointers);
            int64_t *chosen = (int64_t *)TAKE(pointers);
            size_t unit = (size_t)size;
            const double *eta = v[ETA].buf, *pull = v[PULL].buf;
            const int64_t *hold = v[HOLD].buf;
            for (Py_ssize_t i = 0; i < s; i++) {
                g.b = (Py_ssize_t)counts[i];
                for (Py_ssize_t k = 0; k < lanes; k++) {
                    pad(&g, (const char *)v[ANCHORS].buf + (size_t)(k * d) * unit, g.X, unit);
                    memcpy(g.W, g.X, model - MAX_BYTES);
                    memset(g.D, 0, model - MAX_BYTES);
                    g.C = NULL;
                    if (corrections[k].buf) {
                        pad(&g, (const char *)corrections[k].buf + (size_t)(i * d) * unit, C, unit);
                        g.C = C;
                    }
                    g.eta = eta[k * s + i], g.pull = pull[k], g.hold = hold[k] != 0;
                    for (Py_ssize_t l = 0; l < horizons[i]; l++) {
                        const int64_t *at = samples + (l * s + i) * width;
                        point(v[FEATURES].buf, labels, at, g.b, p, unit, rows, chosen);
                        int more = k == 0 && l + 1 < horizons[i];
                        int other = k == lanes - 1 && l + 1 == horizons[i] && i + 1 < s &&
                                    horizons[i + 1] > 0;
                        if (more)
                            point(v[FEATURES].buf, labels, at + s * width, g.b, p, unit, next, NULL);
                        else if (other) {
                            Py_ssize_t b = (Py_ssize_t)counts[i + 1];
                            b = b < g.b ? b : g.b;
                            memcpy(next, rows, (size_t)g.b * sizeof(void *));
                            point(v[FEATURES].buf, labels, samples + (i + 1) * width, b, p, unit,
                                  next, NULL);
                        }
                        step(&g, rows, more || other ? next : NULL, chosen);
                    }
                    unpad(&g, g.D, (char *)v[OUT].buf + (size_t)((k * s + i) * d) * unit, unit);
                }
            }
            Py_END_ALLOW_THREADS
        }
    }
    free(memory);
    for (Py_ssize_t k = 0; corrections && k < held; k++)
        if (corrections[k].buf)
            PyBuffer_Release(&corrections[k]);
    free(corrections);
    for (int i = 0; i < BUFFERS; i++)
        PyBuffer_Release(&v[i]);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* losses(size, classes, scores, labels, out, hits): floats or doubles (lanes, classes, b),
 * by their size in bytes; int64 (b,); doubles (lanes, b); bytes (lanes, b) or empty
 */
static PyObject *softmax_losses(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t size, classes;
    Py_buffer scores, labels, out, hits;
    if (!PyArg_ParseTuple(args, "nny*y*w*w*", &size, &classes, &scores, &labels, &out,
                          &hits))
        return NULL;
    Py_ssize_t b = labels.len / 8, lanes = b ? out.len / 8 / b : 0;
    const int64_t *given = labels.buf;
    int ok = classes > 0 && (size == 4 || size == 8) && holds(&labels, b, 8) &&
             holds(&out, lanes * b, 8) && holds(&scores, lanes * classes * b, size) &&
             (hits.len == 0 || holds(&hits, lanes * b, 1));
    for (Py_ssize_t j = 0; ok && j < b; j++)
        ok = given[j] >= 0 && given[j] < classes;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        choose_losses()(scores.buf, given, out.buf, hits.len ? hits.buf : NULL, lanes,
                        classes, b, size == 4);
        Py_END_ALLOW_THREADS
    }
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a label is out of range");
    PyBuffer_Release(&scores);
    PyBuffer_Release(&labels);
    PyBuffer_Release(&out);
    PyBuffer_Release(&hits);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"losses", softmax_losses, METH_VARARGS, "Losses of softmax regression from scores."},
    {"branches", softmax_branches, METH_VARARGS, "Branches of softmax regression."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_softmax", "Compiled parts of softmax regression.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__softmax(void) { return PyModule_Create(&module); }
