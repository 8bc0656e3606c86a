/* What is remembered of an engine's batches, and how its requests are looked at: by their slots. */

#ifndef TRITONPROBE_BATCHES_H
#define TRITONPROBE_BATCHES_H

#include "differ.h"
#include "seats.h"

enum { FOUND_OUT = 4 };

typedef struct {
    PyObject_HEAD
    PyTypeObject *request_type, *batch_type;
    Py_ssize_t joined, executed, executed_to, first_step, windows, pipelined; /* where a request has these */
    Py_ssize_t given, found_out[FOUND_OUT];                                   /* where a batch has these */
    PyObject *listed, *look;
    PyObject *nobody;
    PyObject *last; /* the batch that was read last */
    int last_has_ids;
    PyObject *metered;  /* the batch whose requests have joined, but for the two that follow */
    struct few left;    /* who is not in it any more, held here */
    struct few came;    /* who is in it since */
    long long ns;       /* the meter of calm steps */
    struct seats seats; /* of those who have joined */
    PyObject **scratch; /* room for a batch that is being read */
    Py_ssize_t scratch_size;
} Batches;

static inline PyObject **
slot_of(PyObject *object, Py_ssize_t offset)
{
    return (PyObject **)((char *)object + offset);
}

/* The number in a slot, or `otherwise`. Runs no Python code, and leaves no exception. */
static inline long long
number_in(PyObject *object, Py_ssize_t offset, long long otherwise)
{
    PyObject *found = *slot_of(object, offset);
    if (found == NULL || !PyLong_Check(found)) {
        return otherwise;
    }
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(found, &overflow);
    return overflow != 0 ? otherwise : value;
}

static inline void
put_in(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject **slot = slot_of(object, offset), *former = *slot;
    *slot = Py_NewRef(value);
    Py_XDECREF(former);
}

/* The list of a batch, borrowed; NULL if it is none of ours. */
static inline PyObject *
given_of(const Batches *self, PyObject *batch)
{
    PyObject *given = Py_IS_TYPE(batch, self->batch_type) ? *slot_of(batch, self->given) : NULL;
    return given != NULL && PyList_CheckExact(given) ? given : NULL;
}

static inline int
is_request(const Batches *self, PyObject *entry)
{
    return PyObject_TypeCheck(entry, self->request_type);
}

/* A request or an id which no class of the engine's has given other ideas of what is equal. */
static inline int
is_plain(const Batches *self, PyObject *entry)
{
    PyTypeObject *type = Py_TYPE(entry);
    return type == self->request_type || type == &PyUnicode_Type
           || (PyType_IsSubtype(type, self->request_type) && type->tp_hash == self->request_type->tp_hash
               && type->tp_richcompare == self->request_type->tp_richcompare);
}

#endif
