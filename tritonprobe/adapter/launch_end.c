/* The ends of launch calls, and the ops on whose behalf they are counted.
 *
 * An op only needs to know how many launches of its thread came back, and that only if one of them fails: numbers of
 * the thread's own. While a cold call or a trial is under way, on whichever thread, Python looks at each end.
 */

#include "launch_end.h"

static _Thread_local long long ended; /* launch calls of this thread that came to an end, ever */
static _Thread_local long long raised; /* those of them that did with an exception, in an op */
static _Thread_local long ops;         /* under way, one in the other */
static _Thread_local int has_error;    /* since the outermost began */

enum { SLOW, LOOK };

static PyObject *
end(PyObject *state, PyObject *kernel)
{
    if (PyList_GET_SIZE(PyTuple_GET_ITEM(state, SLOW)) > 0) {
        PyObject *frame = (PyObject *)PyEval_GetFrame();
        return PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(state, LOOK), kernel, frame == NULL ? Py_None : frame, NULL);
    }
    ended++;
    Py_RETURN_NONE;
}

static int
begin(PyObject *any, long long *before)
{
    if (PyList_Append(any, Py_None) < 0) {
        return -1;
    }
    ops++;
    *before = ended - raised;
    return 0;
}

static int
finish(PyObject *any)
{
    Py_ssize_t last = PyList_GET_SIZE(any) - 1, at = last;
    ops--;
    int had_error = has_error;
    has_error = 0;
    while (at >= 0 && PyList_GET_ITEM(any, at) != Py_None) { /* what Python began after it */
        at--;
    }
    if (at >= 0 && at == last) {
        /* Shorter by its last item, and its memory stays: an empty list that gave it back would ask for it again in
         * the next op. */
        Py_SET_SIZE(any, last);
        Py_DECREF(Py_None);
    }
    else if (at >= 0) {
        PyList_SetSlice(any, at, at + 1, NULL);
    }
    return had_error;
}

static struct launch_end_ops for_ops = {begin, finish};

static PyMethodDef of_state = {"ended", end, METH_O, NULL};

/* make(slow, look) -> ended, see `ends.py`. */
static PyObject *
make(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *slow, *look;
    if (!PyArg_ParseTuple(arguments, "O!O", &PyList_Type, &slow, &look)) {
        return NULL;
    }
    PyObject *state = PyTuple_Pack(2, slow, look);
    PyObject *ended = state == NULL ? NULL : PyCFunction_New(&of_state, state);
    Py_XDECREF(state);
    return ended;
}

static PyObject *
had_error(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    int had = has_error;
    has_error = 0;
    return PyBool_FromLong(had);
}

static PyObject *
add(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    ended++;
    Py_RETURN_NONE;
}

static PyObject *
add_raised(PyObject *module, PyObject *counted)
{
    (void)module;
    int is_counted = PyObject_IsTrue(counted);
    if (is_counted < 0) {
        return NULL;
    }
    raised += is_counted;
    has_error = 1;
    Py_RETURN_NONE;
}

static PyObject *
came_back(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(ended - raised);
}

static PyObject *
ops_here(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(ops);
}

static PyMethodDef methods[] = {
    {"make", make, METH_VARARGS, NULL},
    {"add", add, METH_NOARGS, NULL},
    {"add_raised", add_raised, METH_O, NULL},
    {"had_error", had_error, METH_NOARGS, NULL},
    {"came_back", came_back, METH_NOARGS, NULL},
    {"ops", ops_here, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
fill(PyObject *module)
{
    PyObject *capsule = PyCapsule_New(&for_ops, LAUNCH_END_OPS, NULL);
    int status = PyModule_AddObjectRef(module, "for_ops", capsule);
    Py_XDECREF(capsule);
    return status;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "launch_end", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_launch_end(void)
{
    return PyModuleDef_Init(&definition);
}
