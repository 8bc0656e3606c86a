/* One count: what `cells[M][N][0] += 1.0` does, in one call instead of three lookups and a memoryview's read and write.
 *
 * A number that is not there, and may be rounded, is looked up as the next power of two: a seed, or a length that grows
 * with each step, finds its bucket's cell although nobody has seen that number before.
 *
 * Only plain keys are looked up (int, str, bool, None): comparing them runs no Python code, so nothing can change the
 * dicts meanwhile, and borrowed references hold. A value of a subclass of int or str, such as an enumeration's, is looked
 * up as the number or text that it is. Everything else is an exception.
 */

#include "cell.h"

static int
is_plain(PyObject *key)
{
    return PyLong_CheckExact(key) || PyUnicode_CheckExact(key) || key == Py_None || PyBool_Check(key);
}

/* The number or text of a value of a subclass, without asking its methods: a new reference, or NULL with TypeError. */
static PyObject *
plain_of(PyObject *key)
{
    if (PyLong_Check(key)) {
        return PyNumber_Index(key);
    }
    if (PyUnicode_Check(key)) {
        return PyUnicode_FromObject(key);
    }
    PyErr_SetString(PyExc_TypeError, "add_one() looks plain keys up in dicts of dicts");
    return NULL;
}

/* What stands under the next power of two in a dict (0 for 0 and below), as `shapes.buckets.pow2` has it: a borrowed
 * reference, or NULL, with an exception or without. */
static PyObject *
rounded(PyObject *dict, PyObject *key)
{
    if (!PyLong_Check(key)) {
        return NULL;
    }
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(key, &overflow);
    if ((value == -1 && PyErr_Occurred()) || overflow > 0 || value > (1LL << 62)) {
        return NULL;
    }
    long long edge = value <= 0 || overflow < 0 ? 0 : 1;
    while (edge > 0 && edge < value) {
        edge <<= 1;
    }
    PyObject *number = PyLong_FromLongLong(edge);
    if (number == NULL) {
        return NULL;
    }
    PyObject *found = PyDict_GetItemWithError(dict, number);
    Py_DECREF(number);
    return found;
}

/* add_one(cells, mask, key, key, ...): cells[key][key]...[0] += 1.0. The n-th key may be rounded if the n-th bit of `mask`
 * is set. Raises KeyError or TypeError, and then changed nothing. */
static PyObject *
add_one(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count < 3) {
        PyErr_SetString(PyExc_TypeError, "add_one(cells, mask, key, ...) takes a key at least");
        return NULL;
    }
    unsigned long long mask = PyLong_AsUnsignedLongLong(arguments[1]);
    if (mask == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *found = arguments[0];
    for (Py_ssize_t i = 2; i < count; i++) {
        if (!PyDict_CheckExact(found)) {
            PyErr_SetString(PyExc_TypeError, "add_one() looks plain keys up in dicts of dicts");
            return NULL;
        }
        PyObject *key = arguments[i], *made = NULL;
        if (!is_plain(key)) {
            key = made = plain_of(key);
            if (made == NULL) {
                return NULL;
            }
        }
        PyObject *place = found;
        found = PyDict_GetItemWithError(place, key);
        if (found == NULL && i < 66 && (mask >> (i - 2) & 1) && !PyErr_Occurred()) {
            found = rounded(place, key);
        }
        Py_XDECREF(made);
        if (found == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetObject(PyExc_KeyError, arguments[i]);
            }
            return NULL;
        }
    }
    if (count_in(found) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add_one", (PyCFunction)(void (*)(void))add_one, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "launch_count", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_launch_count(void)
{
    return PyModuleDef_Init(&definition);
}
