/* An op in the place of the Python function that hands over to it: since Python 3.12 a function may be called by other
 * means than a frame. Dynamo, which traces frames, still gets one: its hook stands in the interpreter while it is at work.
 */

#ifndef TRITONPROBE_OP_FRONT_H
#define TRITONPROBE_OP_FRONT_H

#include "op_type.h"

static PyTypeObject op_type;
static PyObject *call_op(PyObject *op, PyObject *const *arguments, size_t flagged, PyObject *names);

#if PY_VERSION_HEX >= 0x030C0000
static PyObject *front_code;
static Py_ssize_t front_place;
static vectorcallfunc plain_call;

static PyObject *
front_call(PyObject *callable, PyObject *const *arguments, size_t flagged, PyObject *names)
{
    if (PyFunction_GET_CODE(callable) == front_code
        && _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == _PyEval_EvalFrameDefault) {
        PyObject *op = PyCell_GET(PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(callable), front_place));
        if (op != NULL && Py_IS_TYPE(op, &op_type)) {
            PyObject *compiler = ((Op *)op)->compiler;
            if (compiler == NULL || PyDict_GetItemWithError(compiler, compiling_name) == Py_False) {
                Py_INCREF(op);
                PyObject *result = call_op(op, arguments, flagged, names);
                Py_DECREF(op);
                return result;
            }
        }
    }
    return plain_call(callable, arguments, flagged, names);
}
#endif

/* stand_in_for(function, place): calls of a Python function that hands all it gets to what its closure has at that place,
 * this op, go straight to it. Before Python 3.12 nothing is done. */
static PyObject *
stand_in_for(PyObject *self, PyObject *arguments)
{
    PyObject *function;
    Py_ssize_t place;
    if (!PyArg_ParseTuple(arguments, "O!n", &PyFunction_Type, &function, &place)) {
        return NULL;
    }
    PyObject *closure = PyFunction_GET_CLOSURE(function);
    if (closure == NULL || place < 0 || place >= PyTuple_GET_SIZE(closure)
        || PyCell_GET(PyTuple_GET_ITEM(closure, place)) != self) {
        PyErr_SetString(PyExc_ValueError, "stand_in_for() takes a function whose closure has the op at that place");
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030C0000
    vectorcallfunc its_call = ((PyFunctionObject *)function)->vectorcall;
    if (front_code == NULL) {
        front_code = Py_NewRef(PyFunction_GET_CODE(function));
        front_place = place;
        plain_call = its_call;
    }
    if (PyFunction_GET_CODE(function) == front_code && front_place == place && its_call == plain_call) {
        PyFunction_SetVectorcall((PyFunctionObject *)function, front_call);
    }
#endif
    Py_RETURN_NONE;
}

#endif
