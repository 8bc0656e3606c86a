/* Which launches of a window count, and whether their order is that of the records: each in one pass.
 *
 * Arrays come as buffers that the caller made and typed; they are checked for their size. A pass takes less than it costs
 * to give the interpreter's lock away and to wait for it, so it keeps it.
 */

#include "buffers.h"
#include <stdint.h>

/* Borrows buffers, the last `written` of them to be written; -1 with an exception, and then none. */
static int
borrow_all(PyObject *const *objects, Py_buffer *views, int count, int written)
{
    for (int i = 0; i < count; i++) {
        if (borrow(objects[i], &views[i], -1, i >= count - written ? PyBUF_WRITABLE : 0) < 0) {
            give_back(views, i);
            return -1;
        }
    }
    return 0;
}

static PyObject *
answer(Py_buffer *views, int count, PyObject *found)
{
    give_back(views, count);
    if (found == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "an array is too small, or a number leads outside of it");
    }
    return found;
}

enum { S_BEFORE, S_AFTER, S_RETURNED, S_KIND, S_SORT, S_CHOSEN, S_CERTAIN, S_COUNTS, SIFT, S_EDGES = 4 };

/* sift(before, after, returned, kind, sort, chosen, certain, counts, opening, opened, closing, closed)
 *
 * `sort` says of each kind whether it leaves no record (0), one (1), or may leave one (2). Writes the places of the launches
 * that may have left a record, whether each certainly did (bytes), and how many there are of each kind, and certainly.
 * Returns how many, and whether they began in this order. */
static PyObject *
sift(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Py_buffer views[SIFT];
    int64_t edges[S_EDGES];
    if (count != SIFT + S_EDGES) {
        PyErr_SetString(PyExc_TypeError, "sift() takes eight arrays and four edges");
        return NULL;
    }
    for (int i = 0; i < S_EDGES; i++) {
        edges[i] = PyLong_AsLongLong(arguments[SIFT + i]);
        if (edges[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (borrow_all(arguments, views, SIFT, 3) < 0) {
        return NULL;
    }
    const int64_t *before = views[S_BEFORE].buf, *after = views[S_AFTER].buf, *returned = views[S_RETURNED].buf;
    const int64_t *kind = views[S_KIND].buf, *sort = views[S_SORT].buf;
    int64_t *chosen = views[S_CHOSEN].buf, *counts = views[S_COUNTS].buf;
    uint8_t *certain = views[S_CERTAIN].buf;
    Py_ssize_t launches = views[S_KIND].len / 8, kinds = views[S_SORT].len / 8, found = 0;
    int fits = views[S_BEFORE].len == 8 * launches && views[S_AFTER].len == 8 * launches && views[S_CERTAIN].len == launches
               && views[S_RETURNED].len == 8 * launches && views[S_CHOSEN].len == 8 * launches
               && views[S_COUNTS].len == 16 * kinds;
    int in_order = 1;
    int64_t last = INT64_MIN;
    for (Py_ssize_t i = 0; i < launches && fits; i++) {
        fits = kind[i] >= 0 && kind[i] < kinds;
        if (!fits || sort[kind[i]] == 0 || after[i] < edges[0] || before[i] > edges[3]) {
            continue;
        }
        int sure = before[i] > edges[1] && after[i] < edges[2] && returned[i] != 0 && sort[kind[i]] == 1;
        counts[2 * kind[i]]++;
        counts[2 * kind[i] + 1] += sure;
        in_order &= before[i] >= last;
        last = before[i];
        chosen[found] = i;
        certain[found++] = (uint8_t)sure;
    }
    return answer(views, SIFT, fits ? Py_BuildValue("nN", found, PyBool_FromLong(in_order)) : NULL);
}

enum { P_WHICH, P_CLASS, P_KIND, P_KINDS, P_RECORDS, P_LAUNCHES, PAIR };

/* The next of those whose key is not -1; its key, or -1 at the end, or -2 if a number leads outside. */
static int64_t
next(const int64_t *which, Py_ssize_t count, const int64_t *key_of, Py_ssize_t keys, Py_ssize_t *place)
{
    for (; *place < count; ++*place) {
        if (which[*place] < 0 || which[*place] >= keys) {
            return -2;
        }
        if (key_of[which[*place]] >= 0) {
            return key_of[which[*place]];
        }
    }
    return -1;
}

/* pair(which, key_of_class, kind, key_of_kind, records, launches): the n-th record that has a key, and the n-th launch.
 *
 * Writes their places, as long as they have the same keys. Returns how many, or -1 if they do not to the end. */
static PyObject *
pair(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    Py_buffer views[PAIR];
    if (count != PAIR) {
        PyErr_SetString(PyExc_TypeError, "pair(which, key_of_class, kind, key_of_kind, records, launches)");
        return NULL;
    }
    if (borrow_all(arguments, views, PAIR, 2) < 0) {
        return NULL;
    }
    Py_ssize_t record = 0, launch = 0, records = views[P_WHICH].len / 8, launches = views[P_KIND].len / 8;
    int64_t *these = views[P_RECORDS].buf, *those = views[P_LAUNCHES].buf, key, other;
    int fits = views[P_RECORDS].len == 8 * records && views[P_LAUNCHES].len == 8 * launches;
    for (Py_ssize_t found = 0; fits; record++, launch++, found++) {
        key = next(views[P_WHICH].buf, records, views[P_CLASS].buf, views[P_CLASS].len / 8, &record);
        other = next(views[P_KIND].buf, launches, views[P_KINDS].buf, views[P_KINDS].len / 8, &launch);
        if (key < 0 || key != other) {
            fits = key >= -1 && other >= -1;
            return answer(views, PAIR, fits ? PyLong_FromSsize_t(key == other ? found : -1) : NULL);
        }
        these[found] = record;
        those[found] = launch;
    }
    return answer(views, PAIR, NULL);
}

static PyMethodDef methods[] = {
    {"sift", (PyCFunction)(void (*)(void))sift, METH_FASTCALL, NULL},
    {"pair", (PyCFunction)(void (*)(void))pair, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "matching", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_matching(void)
{
    return PyModuleDef_Init(&definition);
}
