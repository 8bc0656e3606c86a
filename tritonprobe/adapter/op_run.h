/* A call of an op: asks `supports`, calls the function and counts, as `op.py` does in Python.
 *
 * The first call in a runtime begins in Python (`slow`), and those of a disabled probe are made there. Of one that is not
 * like one before Python says the bucket. A refusal and an error of the function go to Python, once they are there. Whatever
 * interrupts the program (a signal's handler that raises) finds each op that began ended: no Python lies in between.
 */

#ifndef TRITONPROBE_OP_RUN_H
#define TRITONPROBE_OP_RUN_H

#include "cell.h"
#include "op_type.h"

/* What is known of such a call, looked up once more: the program's functions ran since. NULL if it was forgotten, or if
 * nothing is ever known of such (`look` is NULL). */
static struct known *
still_known(Op *op, PyObject *places, const struct look *look)
{
    return look != NULL && op->places == places ? find(&op->table, look) : NULL;
}

/* A call's arguments as Python has them, behind what comes first: `asked(*first, args, kwargs)`. NULL with an exception. */
static PyObject *
ask(PyObject *asked, PyObject *const *first, Py_ssize_t firsts, PyObject *const *arguments, Py_ssize_t count,
    PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    PyObject *answer = NULL, *given[4], *tuple = PyTuple_New(count), *dict = PyDict_New();
    if (tuple == NULL || dict == NULL) {
        goto end;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(arguments[i]));
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        if (PyDict_SetItem(dict, PyTuple_GET_ITEM(names, i), arguments[count + i]) < 0) {
            goto end;
        }
    }
    for (Py_ssize_t i = 0; i < firsts; i++) {
        given[i] = first[i];
    }
    given[firsts] = tuple;
    given[firsts + 1] = dict;
    answer = PyObject_Vectorcall(asked, given, (size_t)firsts + 2, NULL);
end:
    Py_XDECREF(tuple);
    Py_XDECREF(dict);
    return answer;
}

/* Why it is not to be called, as `supports` has it: None if it is. NULL with an exception. */
static PyObject *
refusal(Op *op, PyObject *places, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    PyObject *said = PyObject_Vectorcall(op->supports, arguments, (size_t)count, names);
    if (said == Py_True) {
        Py_DECREF(said);
        return Py_NewRef(Py_None);
    }
    int asked = REFUSAL;
    if (said == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        asked = SUPPORTS_RAISED;
        said = take_error();
    }
    PyObject *reason = PyObject_CallOneArg(PyTuple_GET_ITEM(places, asked), said);
    Py_DECREF(said);
    return reason;
}

static int
is_compile_only(Op *op)
{
    PyObject *driver = PyDict_GetItemWithError(op->drivers, active_name);
    if (driver != NULL && driver == op->driver) {
        return 0;
    }
    Py_XINCREF(driver);
    PyObject *answer = PyObject_CallNoArgs(op->is_compile_only);
    int is = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (is == 0) {
        Py_XSETREF(op->driver, driver);
    }
    else {
        Py_XDECREF(driver);
    }
    return is;
}

/* Counts a call that took the Triton path. 0, or -1 with an exception. */
static int
count_call(Op *op, PyObject *places, PyObject *where, PyObject *cell, const struct look *look)
{
    if (cell != NULL) {
        if (count_in(cell) == 0) {
            return 0;
        }
        PyErr_Clear();
    }
    cell = PyObject_CallOneArg(PyTuple_GET_ITEM(places, TOOK_TRITON), where);
    if (cell == NULL) {
        return -1;
    }
    struct known *known = still_known(op, places, look);
    if (known != NULL && known->cell == NULL) {
        known->cell = Py_NewRef(cell);
    }
    Py_DECREF(cell);
    return 0;
}

/* The function's answer, or the fallback's in its place on the compile-only device. NULL with an exception; or without
 * one and with the reason, if the fallback has to answer. */
static PyObject *
observed_call(Op *op, PyObject *places, PyObject *where, PyObject *cell, const struct look *look,
              PyObject *const *arguments, Py_ssize_t count, PyObject *names, PyObject **reason)
{
    PyObject *watch = PyTuple_GET_ITEM(places, WATCH), *error = NULL;
    const struct launch_end_ops *ends = op->ends;
    long long before;
    if (ends->begin(watch, &before) < 0) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(op->function, arguments, (size_t)count, names);
    if (result != NULL) {
        int nothing_ran = count_call(op, places, where, cell, look) < 0 ? -1 : is_compile_only(op);
        if (nothing_ran != 0) {
            Py_DECREF(result);
            result = nothing_ran < 0 ? NULL : PyObject_Vectorcall(op->fallback, arguments, (size_t)count, names);
        }
    }
    else if (PyErr_ExceptionMatches(PyExc_Exception)) {
        error = take_error();
        *reason = PyObject_CallFunction(PyTuple_GET_ITEM(places, FAILED), "OOL", where, error, before);
        if (*reason == Py_None) {
            Py_CLEAR(*reason);
        }
        else if (*reason != NULL) {
            Py_CLEAR(error);
        }
        PyErr_Clear(); /* what the function raised comes first */
    }
    if (ends->finish(watch)) {
        if (error == NULL && PyErr_Occurred()) {
            error = take_error();
        }
        PyObject *done = PyObject_CallNoArgs(PyTuple_GET_ITEM(places, FORGET_ERROR));
        Py_XDECREF(done);
        PyErr_Clear();
    }
    if (error != NULL) {
        raise_error(error);
    }
    return result;
}

static PyObject *
call_op(PyObject *callable, PyObject *const *arguments, size_t flagged, PyObject *names)
{
    Op *op = (Op *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    PyObject *runtime = PyDict_GetItemWithError(op->namespace, current_name);
    if (runtime == NULL || runtime != op->runtime) {
        PyErr_Clear();
        return PyObject_Vectorcall(op->slow, arguments, (size_t)count, names);
    }
    struct look look, *seen = NULL; /* its words are left as they are: to clear them takes longer than to write a few */
    struct known *known = NULL;
    look.types = &op->types;
    look.refusals = &op->refusals;
    look.count = 0;
    if (!op->has_looks || look_at_call(&look, arguments, count, names) == 0) {
        seen = &look;
        known = find(&op->table, seen);
    }
    /* All that is needed from here on is held: the program's functions may change what the op knows. */
    PyObject *places = Py_NewRef(op->places), *where, *cell = NULL, *result = NULL, *reason = NULL;
    int is_supported = op->supports == NULL;
    if (known != NULL) {
        where = Py_NewRef(known->where);
        cell = Py_XNewRef(known->cell);
        is_supported |= known->is_supported;
    }
    else {
        where = ask(PyTuple_GET_ITEM(places, WHERE), NULL, 0, arguments, count, names);
        if (where == NULL) {
            goto end;
        }
    }
    if (is_supported) {
        reason = Py_NewRef(Py_None);
    }
    else {
        reason = refusal(op, places, arguments, count, names);
        if (op->remembers_supports && reason == Py_None && (known = still_known(op, places, seen)) != NULL) {
            known->is_supported = 1;
        }
    }
    if (reason == Py_None) {
        Py_CLEAR(reason);
        result = observed_call(op, places, where, cell, seen, arguments, count, names, &reason);
    }
    if (reason != NULL) {
        PyObject *first[] = {where, reason};
        result = ask(PyTuple_GET_ITEM(places, FALL_BACK), first, 2, arguments, count, names);
    }
end:
    Py_XDECREF(reason);
    Py_DECREF(places);
    Py_XDECREF(where);
    Py_XDECREF(cell);
    return result;
}

#endif
