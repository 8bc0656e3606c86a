/* An op that is called in C: what it is made of. And exceptions, which Python 3.12 hands out in another way. */

#ifndef TRITONPROBE_OP_TYPE_H
#define TRITONPROBE_OP_TYPE_H

#include "launch_end.h"
#include "op_table.h"

/* What a call needs of the runtime that it is counted in; the order of the tuple that `counts_in` takes. */
enum { WATCH, WHERE, FORGET_ERROR, REFUSAL, SUPPORTS_RAISED, FAILED, FALL_BACK, TOOK_TRITON, PLACES };

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *function, *fallback, *supports, *slow; /* `supports` may be NULL */
    PyObject *namespace;                             /* where `_current` is the process's runtime */
    PyObject *drivers, *is_compile_only;             /* where `_active` is Triton's driver, and who knows such a driver */
    PyObject *compiler;                              /* the namespace of torch.compiler, or NULL */
    PyObject *driver;                                /* that launches: the one that was asked about last */
    PyObject *runtime, *places;                      /* counted in now */
    const struct launch_end_ops *ends;
    int has_looks;          /* else all calls are alike */
    int remembers_supports; /* and does not ask again what said True */
    struct refusals refusals;
    struct look_types types;
    struct table table;
} Op;

static PyObject *current_name, *active_name, *compiling_name; /* interned for ever */

static PyObject *
take_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(error, trace);
    }
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
#endif
}

/* Raises what `take_error` took. Steals the reference. */
static void
raise_error(PyObject *error)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

#endif
