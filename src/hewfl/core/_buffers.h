/* Whether a buffer holds what a call says: the checks of all compiled kernels. */
#ifndef HEWFL_BUFFERS_H
#define HEWFL_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* a b c, or -1, which no buffer fits, where that is negative or too large a number */
static inline Py_ssize_t times(Py_ssize_t a, Py_ssize_t b, Py_ssize_t c)
{
    Py_ssize_t product;
    if (a < 0 || b < 0 || c < 0 || __builtin_mul_overflow(a, b, &product) ||
        __builtin_mul_overflow(product, c, &product))
        return -1;
    return product;
}

/* Whether a buffer holds `count` items of `size` bytes; sets the error where not. The
 * division cannot overflow, the product count * size could. */
static inline int fits(const Py_buffer *buffer, Py_ssize_t count, Py_ssize_t size)
{
    if (count >= 0 && (size == 0 || buffer->len / size >= count))
        return 1;
    PyErr_SetString(PyExc_ValueError, "a buffer is shorter than its declared shape");
    return 0;
}

#endif
