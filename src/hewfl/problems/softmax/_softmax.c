/* Softmax regression, compiled: whole branches, losses from scores, and products with
 * samples whose entries mostly equal the minimum of their column.
 *
 * A branch is one client, one model, all its steps in cache. The Python twins are
 * hewfl.simulation.branches with Softmax.minibatch_gradients, passes.losses, and the
 * products of NumPy; tests compare them. All other parts of branches stay in Python.
 */

#include "../../core/_buffers.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES 64 /* of a vector register and of a cache line */
#define CHUNK 256    /* samples whose losses are computed at a time */
#define TILE 64      /* sparse samples whose scores are turned at a time */

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

/* rows of a sparse matrix, `rows` of them from `first` on, and what they are to meet */
typedef struct {
    const int64_t *starts;    /* of each row, and the end of the last */
    const int32_t *columns;   /* of each entry */
    const void *values, *background; /* of each entry, of each column; floats if narrow */
    Py_ssize_t p, first, rows, classes, stride; /* stride: classes in whole vectors */
    int narrow;
} Sparse;

typedef int (*Product)(Sparse *, const void *, void *);
typedef void (*Losses)(const void *, const int64_t *, double *, uint8_t *, Py_ssize_t,
                       Py_ssize_t, Py_ssize_t, int);
typedef void (*Step)(const Branch *, const void *const *, const void *const *,
                     const int64_t *);

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#endif

#define JOIN_(x, type, processor) x##_##type##processor
#define JOIN(x, type, processor) JOIN_(x, type, processor)

#ifdef X86
#define PROCESSOR _v4
#define TARGET __attribute__((target("arch=x86-64-v4")))
#define BYTES 64
#define ROWS(K) ((K) == 8 ? 3 : 4) /* 32 registers: 24 of sums, or at most 20 */
#include "_processor.h"

#define PROCESSOR _v3
#define TARGET __attribute__((target("arch=x86-64-v3")))
#define BYTES 32
#define ROWS(K) ((K) == 8 ? 1 : 2) /* 16 registers: 8 of sums, or at most 10 */
#include "_processor.h"
#endif

#define PROCESSOR
#define TARGET
#define BYTES 16
#define ROWS(K) ((K) == 8 ? 1 : 2)
#include "_processor.h"

/* vector width in bytes; steps, and both products, in float and in double; the losses */
typedef struct {
    Py_ssize_t bytes;
    Step step_float, step_double;
    Product products[2][2];
    Losses losses;
} Kernels;

#define KERNELS(bytes, processor)                                                          \
    {                                                                                      \
        bytes, JOIN(step, float, processor), JOIN(step, double, processor),                \
            {{JOIN(sparse_scores, float, processor), JOIN(sparse_sums, float, processor)},   \
             {JOIN(sparse_scores, double, processor), JOIN(sparse_sums, double, processor)}}, \
            JOIN(losses, double, processor)                                                \
    }

/* those for the processor that this runs on */
static Kernels choose_kernels(void)
{
#ifdef X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return (Kernels)KERNELS(64, _v4);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        return (Kernels)KERNELS(32, _v3);
#endif
    return (Kernels)KERNELS(16, );
}

/* Classes go in groups of 5, 8, 4 or 2, as many as have their sums in registers at once.
 * The least padding wins, earlier sizes on ties: ten classes are two groups of five.
 */
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

/* the rows of a model, from one stride to another: whole vectors, or none to spare */
static void copy_rows(const Branch *g, const void *from, Py_ssize_t stride, void *to,
                      Py_ssize_t other, size_t size)
{
    for (Py_ssize_t k = 0; k < g->classes; k++)
        memcpy((char *)to + (size_t)(k * other) * size,
               (const char *)from + (size_t)(k * stride) * size, (size_t)g->p * size);
}

/* whether a buffer has room for just `count` numbers; sets an error where not */
static int holds(const Py_buffer *buffer, Py_ssize_t count, Py_ssize_t size)
{
    if (count >= 0 && buffer->len == times(count, size, 1))
        return 1;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a buffer has the wrong length");
    return 0;
}

/* what a call of branches() asks for */
typedef struct {
    int size; /* bytes of a number */
    Py_ssize_t m, p, classes, s, models, steps, width;
    double l2;
    const char *features, *anchors;
    char *out;
    const int64_t *labels, *samples, *counts, *horizons, *hold;
    const double *eta, *pull;
    Py_buffer *corrections; /* of each model; its buf is NULL where there is none */
} Call;

/* whether every sample that will be read is one of the m, and its label a class */
static int valid(const Call *call)
{
    for (Py_ssize_t i = 0; i < call->s; i++) {
        int64_t count = call->counts[i], horizon = call->horizons[i];
        if (count < 1 || count > call->width || horizon < 0 || horizon > call->steps)
            return 0;
        for (Py_ssize_t l = 0; l < horizon; l++)
            for (Py_ssize_t j = 0; j < count; j++) {
                int64_t row = call->samples[(l * call->s + i) * call->width + j];
                if (row < 0 || row >= call->m || call->labels[row] < 0 ||
                    call->labels[row] >= call->classes)
                    return 0;
            }
    }
    return 1;
}

/* rows, and labels if wanted, of one step of one client */
static void point(const Call *call, const int64_t *samples, Py_ssize_t b, const void **rows,
                  int64_t *chosen)
{
    for (Py_ssize_t j = 0; j < b; j++) {
        rows[j] = call->features + (size_t)(samples[j] * call->p) * (size_t)call->size;
        if (chosen)
            chosen[j] = call->labels[samples[j]];
    }
}

/* pieces of one block of memory, each at the start of a cache line */
static void *take(char **free_at, size_t bytes)
{
    void *piece = *free_at;
    *free_at += (bytes + MAX_BYTES - 1) / MAX_BYTES * MAX_BYTES;
    return piece;
}

/* all steps of client i in model k; rows, next and chosen have room for one step each */
static void branch(const Call *call, Branch *g, Step step, Py_ssize_t i, Py_ssize_t k,
                   const void **rows, const void **next, int64_t *chosen)
{
    Py_ssize_t s = call->s, width = call->width;
    const int64_t *horizons = call->horizons;
    for (Py_ssize_t l = 0; l < horizons[i]; l++) {
        const int64_t *at = call->samples + (l * s + i) * width;
        point(call, at, g->b, rows, chosen);
        /* Samples lie scattered in memory and would be waited for. While this step runs
         * the first model fetches those of the next; later models find them in cache. The
         * last step of the last model fetches the first of the next client. */
        int more = k == 0 && l + 1 < horizons[i];
        int other = k == call->models - 1 && l + 1 == horizons[i] && i + 1 < s &&
                    horizons[i + 1] > 0;
        if (more)
            point(call, at + s * width, g->b, next, NULL);
        else if (other) {
            Py_ssize_t b = (Py_ssize_t)call->counts[i + 1];
            memcpy(next, rows, (size_t)g->b * sizeof(void *)); /* it may have fewer */
            point(call, call->samples + (i + 1) * width, b < g->b ? b : g->b, next, NULL);
        }
        step(g, rows, more || other ? next : NULL, chosen);
    }
}

/* every client in every model; 0 where there is no memory. The lock of Python is free. */
static int run(const Call *call)
{
    Py_ssize_t s = call->s, d = call->p * call->classes;
    Kernels kernels = choose_kernels();
    Step step = call->size == 4 ? kernels.step_float : kernels.step_double;
    Py_ssize_t n = kernels.bytes / call->size;
    Branch g = {.p = call->p, .classes = call->classes, .l2 = call->l2};
    g.group = choose_group(call->classes);
    g.whole = g.p / n * n;
    g.stride = (g.p + n - 1) / n * n;
    g.padded = (g.classes + g.group - 1) / g.group * g.group;
    size_t unit = (size_t)call->size, width = (size_t)call->width;
    size_t model = (size_t)(g.padded * g.stride) * unit, table = width * (size_t)g.padded * unit;
    size_t row = width * unit, tail = width * (size_t)kernels.bytes, pointers = width * sizeof(void *);
    /* zeros, as the padding is multiplied along and must add nothing */
    char *memory = calloc(1, 4 * model + 2 * table + 2 * row + tail + 4 * pointers +
                                 14 * MAX_BYTES);
    if (!memory)
        return 0;
    char *free_at = memory + (MAX_BYTES - (uintptr_t)memory % MAX_BYTES);
    g.W = take(&free_at, model), g.D = take(&free_at, model), g.X = take(&free_at, model);
    void *C = take(&free_at, model);
    g.S = take(&free_at, table), g.Z = take(&free_at, table);
    g.top = take(&free_at, row), g.total = take(&free_at, row);
    g.tails = take(&free_at, tail), g.tail_rows = take(&free_at, pointers);
    const void **rows = take(&free_at, pointers), **next = take(&free_at, pointers);
    int64_t *chosen = take(&free_at, pointers);
    for (Py_ssize_t i = 0; i < s; i++) {
        g.b = (Py_ssize_t)call->counts[i];
        for (Py_ssize_t k = 0; k < call->models; k++) {
            copy_rows(&g, call->anchors + (size_t)(k * d) * unit, g.p, g.X, g.stride, unit);
            memcpy(g.W, g.X, model);
            memset(g.D, 0, model);
            const char *given = call->corrections[k].buf;
            g.C = given ? C : NULL;
            if (given)
                copy_rows(&g, given + (size_t)(i * d) * unit, g.p, C, g.stride, unit);
            g.eta = call->eta[k * s + i], g.pull = call->pull[k], g.hold = call->hold[k] != 0;
            branch(call, &g, step, i, k, rows, next, chosen);
            char *moved = call->out + (size_t)((k * s + i) * d) * unit;
            copy_rows(&g, g.D, g.stride, moved, g.p, unit);
        }
    }
    free(memory);
    return 1;
}

enum { FEATURES, LABELS, SAMPLES, COUNTS, HORIZONS, ANCHORS, ETA, PULL, HOLD, OUT, BUFFERS };

/* the call that these buffers make, or 0 with an error set: a wrong length or a sample
 * out of range would read or write memory that is not ours */
static int understand(Call *call, Py_buffer *v)
{
    Py_ssize_t s = v[COUNTS].len / 8, models = v[PULL].len / 8, d = times(call->p, call->classes, 1);
    int size = call->size;
    call->s = s, call->models = models;
    call->features = v[FEATURES].buf, call->labels = v[LABELS].buf;
    call->samples = v[SAMPLES].buf, call->counts = v[COUNTS].buf;
    call->horizons = v[HORIZONS].buf, call->anchors = v[ANCHORS].buf;
    call->eta = v[ETA].buf, call->pull = v[PULL].buf, call->hold = v[HOLD].buf;
    call->out = v[OUT].buf;
    if ((size != 4 && size != 8) || s < 1 || models < 1) {
        PyErr_SetString(PyExc_ValueError, "no clients, no models, or an unknown type");
        return 0;
    }
    for (Py_ssize_t i = 0; i < s && i < v[HORIZONS].len / 8; i++)
        if (call->horizons[i] > call->steps)
            call->steps = (Py_ssize_t)call->horizons[i];
    if (call->steps > 0)
        call->width = v[SAMPLES].len / 8 / s / call->steps;
    if (!(holds(&v[FEATURES], times(call->m, call->p, 1), size) && holds(&v[LABELS], call->m, 8) &&
          holds(&v[SAMPLES], times(call->steps, s, call->width), 8) && holds(&v[HORIZONS], s, 8) &&
          holds(&v[ANCHORS], times(models, d, 1), size) && holds(&v[ETA], models * s, 8) &&
          holds(&v[HOLD], models, 8) && holds(&v[OUT], times(models, s, d), size)))
        return 0;
    if (valid(call))
        return 1;
    PyErr_SetString(PyExc_ValueError, "a sample, label, count or horizon is out of range");
    return 0;
}

/* buffers of the corrections, which `release` gives back whatever this returns */
static int hold_corrections(Call *call, PyObject *list)
{
    call->corrections = calloc((size_t)call->models, sizeof(Py_buffer));
    if (!call->corrections)
        return PyErr_NoMemory() != NULL;
    for (Py_ssize_t k = 0; k < call->models; k++) {
        PyObject *item = PySequence_GetItem(list, k);
        int ok = item != NULL;
        if (ok && item != Py_None)
            ok = PyObject_GetBuffer(item, &call->corrections[k], PyBUF_SIMPLE) == 0 &&
                 holds(&call->corrections[k], times(call->s, call->p, call->classes), call->size);
        Py_XDECREF(item);
        if (!ok)
            return 0;
    }
    return 1;
}

static void release(Call *call, Py_buffer *v)
{
    for (Py_ssize_t k = 0; call->corrections && k < call->models; k++)
        if (call->corrections[k].obj)
            PyBuffer_Release(&call->corrections[k]);
    free(call->corrections);
    for (int i = 0; i < BUFFERS; i++)
        PyBuffer_Release(&v[i]);
}

/* branches(size, m, p, classes, l2, features, labels, samples, counts, horizons, anchors,
 *          step_sizes, proximal, hold, out, corrections)
 *
 * Types: features, anchors, out and corrections are of `size` bytes a number; step_sizes
 * (models, s) and proximal (models) doubles; the rest int64. corrections: for each model a
 * buffer (s, d) or None. samples: (steps, s, width). out: (models, s, d).
 */
static PyObject *softmax_branches(PyObject *self, PyObject *args)
{
    (void)self;
    Call call = {0};
    Py_buffer v[BUFFERS];
    PyObject *list;
    if (!PyArg_ParseTuple(args, "innndy*y*y*y*y*y*y*y*y*w*O", &call.size, &call.m, &call.p,
                          &call.classes, &call.l2, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                          &v[6], &v[7], &v[8], &v[9], &list))
        return NULL;
    int ok = understand(&call, v) && hold_corrections(&call, list);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        ok = run(&call);
        Py_END_ALLOW_THREADS
        if (!ok)
            PyErr_NoMemory();
    }
    release(&call, v);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* losses(size, classes, scores, labels, out, hits): floats or doubles (models, classes, b),
 * by their size in bytes; int64 (b,); doubles (models, b); bytes (models, b) or empty
 */
static PyObject *softmax_losses(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t size, classes;
    Py_buffer scores, labels, out, hits;
    if (!PyArg_ParseTuple(args, "nny*y*w*w*", &size, &classes, &scores, &labels, &out,
                          &hits))
        return NULL;
    Py_ssize_t b = labels.len / 8, models = b ? out.len / 8 / b : 0;
    const int64_t *given = labels.buf;
    int ok = classes > 0 && (size == 4 || size == 8) && holds(&labels, b, 8) &&
             holds(&out, models * b, 8) && holds(&scores, times(models, classes, b), size) &&
             (hits.len == 0 || holds(&hits, models * b, 1));
    for (Py_ssize_t j = 0; ok && j < b; j++)
        ok = given[j] >= 0 && given[j] < classes;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        choose_kernels().losses(scores.buf, given, out.buf, hits.len ? hits.buf : NULL, models,
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

/* whether the rows asked for are there: else memory that is not ours would be read */
static int within(const Sparse *x, Py_ssize_t m, Py_ssize_t entries)
{
    if (x->first < 0 || x->rows < 1 || x->first + x->rows > m || x->starts[x->first] < 0 ||
        x->starts[x->first + x->rows] > entries)
        return 0;
    for (Py_ssize_t j = x->first; j < x->first + x->rows; j++)
        if (x->starts[j] > x->starts[j + 1])
            return 0;
    return 1;
}

/* product(kind, size, wide, first, classes, starts, columns, values, background, left, out)
 *
 * With samples A from `first` on: kind 0 is left Aᵀ with left (classes, p) and out
 * (classes, rows); kind 1 is left A with left (classes, rows) and out (classes, p).
 * values and background are of `size` bytes a number, left and out of `wide`; starts are
 * int64, columns int32.
 */
static PyObject *softmax_product(PyObject *self, PyObject *args)
{
    (void)self;
    int kind, size, wide;
    Sparse x = {0};
    Py_buffer v[6];
    if (!PyArg_ParseTuple(args, "iiinny*y*y*y*y*w*", &kind, &size, &wide, &x.first,
                          &x.classes, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]))
        return NULL;
    int ok = (kind == 0 || kind == 1) && (size == 4 || size == 8) && (wide == 4 || wide == 8) &&
             size <= wide && x.classes > 0;
    if (ok) {
        Py_ssize_t m = v[0].len / 8 - 1, entries = v[1].len / 4;
        x.starts = v[0].buf, x.columns = v[1].buf, x.values = v[2].buf;
        x.background = v[3].buf, x.p = v[3].len / size, x.narrow = size == 4;
        x.rows = v[kind == 0 ? 5 : 4].len / wide / x.classes;
        ok = holds(&v[0], m + 1, 8) && holds(&v[1], entries, 4) && holds(&v[2], entries, size) &&
             holds(&v[3], x.p, size) && holds(&v[4 + kind], times(x.classes, x.p, 1), wide) &&
             holds(&v[5 - kind], times(x.classes, x.rows, 1), wide) && within(&x, m, entries);
    }
    if (ok) {
        Product product = choose_kernels().products[wide == 8][kind];
        Py_BEGIN_ALLOW_THREADS
        ok = product(&x, v[4].buf, v[5].buf);
        Py_END_ALLOW_THREADS
        if (!ok)
            PyErr_NoMemory();
        ok = ok == 1;
    }
    if (!ok && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a row, a column or a size is out of range");
    for (int i = 0; i < 6; i++)
        PyBuffer_Release(&v[i]);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"product", softmax_product, METH_VARARGS, "Products with sparse samples."},
    {"losses", softmax_losses, METH_VARARGS, "Losses of softmax regression from scores."},
    {"branches", softmax_branches, METH_VARARGS, "Branches of softmax regression."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_softmax", "Compiled parts of softmax regression.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__softmax(void) { return PyModule_Create(&module); }
