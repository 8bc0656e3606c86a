/* Arrays that the caller made, borrowed for a pass. */

#ifndef TRITONPROBE_BUFFERS_H
#define TRITONPROBE_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* A contiguous buffer of `object` of exactly `bytes`, or of any size if that is negative. */
static inline int
borrow(PyObject *object, Py_buffer *view, Py_ssize_t bytes, int flags)
{
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | flags) < 0) {
        return -1;
    }
    if (bytes >= 0 && view->len != bytes) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes: expected %zd", view->len, bytes);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

static inline void
give_back(Py_buffer *views, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyBuffer_Release(&views[i]);
    }
}

#endif
