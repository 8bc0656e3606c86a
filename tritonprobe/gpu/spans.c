/* Times from one number to another: counted between edges and added up; and how long at least one of them lasts.
 *
 * Arrays come as buffers that the caller made and typed; they are checked for their size. No object is touched in a pass,
 * so a long one gives the interpreter's lock away. To wait for it again costs more than a short one takes.
 */

#include "buffers.h"
#include <stdint.h>
#include <string.h>

/* Numbers by their size: so many steps to each power of two. The first step begins at minus infinity, the last has no end. */
enum { FINE = 4, STEPS = 44 << FINE };

static size_t
step_of(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    int64_t step = (bits >> (52 - FINE)) - ((int64_t)1023 << FINE);
    return step < 0 ? 0 : step < STEPS ? (size_t)step : STEPS - 1;
}

/* For each step the first edge that is not below all of it. */
static void
find_first(int32_t *first, const double *edges, size_t count)
{
    size_t edge = 0;
    for (size_t step = 0; step < STEPS; step++) {
        while (edge < count && step_of(edges[edge]) < step) {
            edge++;
        }
        first[step] = (int32_t)edge;
    }
}

enum { LONG = 1 << 16 }; /* times: some tenths of a millisecond */

enum { OF, ROW_OF, SINCE, UNTIL, EDGE, CELL, TOTAL, TALLY };

/* tally(of, row_of, since, until, edges, cells, totals): counts and adds up each time from `since` to `until`, in the row
 * `row_of[of]` unless that is -1; without any `of` all in the row `row_of[0]`.
 *
 * `edges` are rising doubles, all else 64-bit numbers; `cells` has rows of one cell more than there are edges, and a value
 * on an edge falls below it. Raises ValueError if a number leads outside of the arrays. */
static PyObject *
tally(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != TALLY) {
        PyErr_SetString(PyExc_TypeError, "tally(of, row_of, since, until, edges, cells, totals)");
        return NULL;
    }
    Py_buffer views[TALLY];
    for (int i = 0; i < TALLY; i++) {
        Py_ssize_t bytes = i == UNTIL ? views[SINCE].len : -1;
        if (borrow(arguments[i], &views[i], bytes, i >= CELL ? PyBUF_WRITABLE : 0) < 0) {
            give_back(views, i);
            return NULL;
        }
    }
    const int64_t *of = views[OF].buf, *row_of = views[ROW_OF].buf, *since = views[SINCE].buf, *until = views[UNTIL].buf;
    const double *edges = views[EDGE].buf;
    int64_t *cells = views[CELL].buf, *totals = views[TOTAL].buf;
    size_t told = (size_t)views[OF].len / 8, spans = (size_t)views[SINCE].len / 8;
    size_t labels = (size_t)views[ROW_OF].len / 8, rows = (size_t)views[TOTAL].len / 8;
    size_t bounds = (size_t)views[EDGE].len / 8;
    int32_t first[STEPS];
    find_first(first, edges, bounds);
    int failed = (told != 0 && told != spans) || (size_t)views[CELL].len / 8 != rows * (bounds + 1);
    PyThreadState *state = spans < LONG ? NULL : PyEval_SaveThread();
    for (size_t i = 0; i < spans && !failed; i++) {
        uint64_t label = told ? (uint64_t)of[i] : 0;
        int64_t row = label < labels ? row_of[label] : (int64_t)rows;
        if (row >= 0 && (size_t)row < rows) {
            int64_t span = until[i] > since[i] ? until[i] - since[i] : 0;
            size_t place = (size_t)first[step_of((double)span)];
            while (place < bounds && edges[place] < (double)span) {
                place++;
            }
            cells[(size_t)row * (bounds + 1) + place]++;
            totals[row] += span;
        } else {
            failed = row != -1;
        }
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    give_back(views, TALLY);
    if (failed) {
        PyErr_SetString(PyExc_ValueError, "tally(): a number leads outside of the arrays");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* busy(start, end): how long at least one of them lasts, or -1 if they do not begin in order. */
static PyObject *
busy(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Py_buffer start, end;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "busy(start, end)");
        return NULL;
    }
    if (borrow(arguments[0], &start, -1, 0) < 0) {
        return NULL;
    }
    if (borrow(arguments[1], &end, start.len, 0) < 0) {
        PyBuffer_Release(&start);
        return NULL;
    }
    const int64_t *starts = start.buf, *ends = end.buf;
    int64_t found = 0, reached = INT64_MIN, before = INT64_MIN;
    PyThreadState *state = start.len / 8 < LONG ? NULL : PyEval_SaveThread();
    for (Py_ssize_t i = 0; i < start.len / 8 && found >= 0; i++) {
        int64_t from = starts[i] > reached ? starts[i] : reached;
        if (starts[i] < before) {
            found = -1;
        } else if (ends[i] > from) {
            found += ends[i] - from;
            reached = ends[i];
        }
        before = starts[i];
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&start);
    PyBuffer_Release(&end);
    return PyLong_FromLongLong(found);
}

/* shift(times, by): later by so much, but 0 stays 0. */
static PyObject *
shift(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Py_buffer times;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "shift(times, by)");
        return NULL;
    }
    int64_t by = PyLong_AsLongLong(arguments[1]);
    if ((by == -1 && PyErr_Occurred()) || borrow(arguments[0], &times, -1, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    uint64_t *values = times.buf; /* unsigned: it may wrap around */
    for (Py_ssize_t i = 0; i < times.len / 8; i++) {
        values[i] += values[i] != 0 ? (uint64_t)by : 0;
    }
    PyBuffer_Release(&times);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"tally", (PyCFunction)(void (*)(void))tally, METH_FASTCALL, NULL},
    {"shift", (PyCFunction)(void (*)(void))shift, METH_FASTCALL, NULL},
    {"busy", (PyCFunction)(void (*)(void))busy, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "spans", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_spans(void)
{
    return PyModuleDef_Init(&definition);
}
