/* One count into a cell of a ledger: what `cell[0] += 1.0` does to a memoryview of doubles, or to a list of floats. */

#ifndef TRITONPROBE_CELL_H
#define TRITONPROBE_CELL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The double that a memoryview of one double shows, or NULL. */
static inline double *
number_of(PyObject *cell)
{
    if (!PyMemoryView_Check(cell)) {
        return NULL;
    }
    const PyMemoryViewObject *view = (const PyMemoryViewObject *)cell;
    if ((view->flags & _Py_MEMORYVIEW_RELEASED) || (view->mbuf->flags & _Py_MANAGED_BUFFER_RELEASED)) {
        return NULL;
    }
    const Py_buffer *buffer = &view->view;
    if (buffer->readonly || buffer->ndim != 1 || buffer->itemsize != sizeof(double) || buffer->shape[0] < 1
        || buffer->format == NULL || buffer->format[0] != 'd' || buffer->format[1] != '\0') {
        return NULL;
    }
    return (double *)buffer->buf;
}

/* 0, or -1 with an exception: TypeError if it is no such cell. */
static inline int
count_in(PyObject *cell)
{
    double *number = number_of(cell);
    if (number != NULL) {
        *number += 1.0;
        return 0;
    }
    if (PyList_CheckExact(cell) && PyList_GET_SIZE(cell) > 0 && PyFloat_CheckExact(PyList_GET_ITEM(cell, 0))) {
        PyObject *more = PyFloat_FromDouble(PyFloat_AS_DOUBLE(PyList_GET_ITEM(cell, 0)) + 1.0);
        return more == NULL ? -1 : PyList_SetItem(cell, 0, more);
    }
    PyErr_SetString(PyExc_TypeError, "a count goes into a list or a memoryview of floats");
    return -1;
}

#endif
