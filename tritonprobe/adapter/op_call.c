/* A call of an op that is like one before: asks `supports`, calls the function and counts, as `op.py` does in Python.
 *
 * What is not like one before goes to Python (`slow`): another runtime, a switched-off probe, a first call, arguments
 * that are no plain values. So do a refusal and an error of the function, once they are there.
 */

#include <stddef.h>

#include "cell.h"
#include "launch_end.h"
#include "op_table.h"

/* What a call needs of the runtime that it is counted in; the order of the tuple that `counts_in` takes. */
enum { WATCH, FORGET_ERROR, REFUSAL, SUPPORTS_RAISED, FAILED, FALL_BACK, TOOK_TRITON, PLACES };

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
    int has_bucket, refusals;
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

/* Why it is not to be called: None if it is. NULL with an exception. */
static PyObject *
refusal(Op *op, PyObject *places, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    if (op->supports == NULL) {
        return Py_NewRef(Py_None);
    }
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
    struct known *known = op->places == places ? find(&op->table, look) : NULL;
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
fall_back(PyObject *places, PyObject *where, PyObject *reason, PyObject *const *arguments, Py_ssize_t count,
          PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    PyObject *result = NULL, *tuple = PyTuple_New(count), *dict = PyDict_New();
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
    result = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(places, FALL_BACK), where, reason, tuple, dict, NULL);
end:
    Py_XDECREF(tuple);
    Py_XDECREF(dict);
    return result;
}

static PyObject *
call_op(PyObject *callable, PyObject *const *arguments, size_t flagged, PyObject *names)
{
    Op *op = (Op *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    PyObject *runtime = PyDict_GetItemWithError(op->namespace, current_name);
    struct known *known = NULL;
    struct look look;
    if (runtime != NULL && runtime == op->runtime) {
        look.types = &op->types;
        look.refusals = &op->refusals;
        look.count = 0; /* without a bucket all calls look alike */
        if (!op->has_bucket || look_at_call(&look, arguments, count, names) == 0) {
            known = find(&op->table, &look);
        }
    }
    if (known == NULL) {
        PyErr_Clear();
        return PyObject_Vectorcall(op->slow, arguments, (size_t)count, names);
    }
    /* All that is needed from here on is held: the program's functions may change what the op knows. */
    PyObject *places = Py_NewRef(op->places), *where = Py_NewRef(known->where), *cell = Py_XNewRef(known->cell);
    PyObject *result = NULL, *reason = refusal(op, places, arguments, count, names);
    if (reason == Py_None) {
        Py_CLEAR(reason);
        result = observed_call(op, places, where, cell, &look, arguments, count, names, &reason);
    }
    if (reason != NULL) {
        result = fall_back(places, where, reason, arguments, count, names);
        Py_DECREF(reason);
    }
    Py_DECREF(places);
    Py_DECREF(where);
    Py_XDECREF(cell);
    return result;
}

/* counts_in(runtime, places): forgets what it knew, and counts in that runtime from now on. */
static PyObject *
counts_in(PyObject *self, PyObject *arguments)
{
    Op *op = (Op *)self;
    PyObject *runtime, *places;
    if (!PyArg_ParseTuple(arguments, "OO!", &runtime, &PyTuple_Type, &places)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(places) != PLACES || !PyList_CheckExact(PyTuple_GET_ITEM(places, WATCH))) {
        PyErr_Format(PyExc_TypeError, "counts_in() takes %d places, the first a list", PLACES);
        return NULL;
    }
    op->refusals = 0;
    PyObject *former = op->runtime, *former_places = op->places;
    op->runtime = Py_NewRef(runtime);
    op->places = Py_NewRef(places);
    Py_XDECREF(former);
    Py_XDECREF(former_places);
    forget_all(&op->table);
    Py_RETURN_NONE;
}

/* remember(places, where, args, kwargs): the bucket of such a call; of those places, if they are not others by now. */
static PyObject *
remember(PyObject *self, PyObject *arguments)
{
    Op *op = (Op *)self;
    PyObject *places, *where, *args, *kwargs, *name, *value;
    if (!PyArg_ParseTuple(arguments, "OUO!O!", &places, &where, &PyTuple_Type, &args, &PyDict_Type, &kwargs)) {
        return NULL;
    }
    struct look look = {.types = &op->types, .refusals = &op->refusals, .count = 0};
    int is_unknown = 0;
    if (op->has_bucket) {
        is_unknown = look_at_call(&look, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args), NULL) < 0;
        for (Py_ssize_t at = 0; !is_unknown && PyDict_Next(kwargs, &at, &name, &value);) {
            is_unknown = !PyUnicode_Check(name) || look_at_text(&look, name) < 0 || look_at(&look, value) < 0;
        }
    }
    if (!is_unknown && places == op->places) {
        keep(&op->table, &look, where);
    }
    Py_RETURN_NONE;
}

#if PY_VERSION_HEX >= 0x030C0000
/* Since Python 3.12 a function may be called by other means than a frame. Dynamo, which traces frames, still gets one:
 * its hook stands in the interpreter while it is at work. */
static PyObject *front_code;
static Py_ssize_t front_place;
static vectorcallfunc plain_call;

static PyObject *
front_call(PyObject *callable, PyObject *const *arguments, size_t flagged, PyObject *names)
{
    if (PyFunction_GET_CODE(callable) == front_code
        && _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == _PyEval_EvalFrameDefault) {
        PyObject *op = PyCell_GET(PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(callable), front_place));
        if (op != NULL && ((Op *)op)->call == call_op) {
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

static PyObject *
none_to_null(PyObject *value)
{
    return value == Py_None ? NULL : Py_NewRef(value);
}

/* Op(ends, function, fallback, supports, slow, namespace, drivers, is_compile_only, compiler, tensor, parameter, dtype,
 * exchange, has_bucket, limit): see `op_call.py`. None for what there is not. */
static PyObject *
make(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *ends, *function, *fallback, *supports, *slow, *namespace, *drivers, *is_compile_only, *compiler, *tensor,
        *parameter, *dtype, *exchange;
    int has_bucket;
    Py_ssize_t limit;
    if (keywords != NULL || !PyArg_ParseTuple(arguments, "OOOOOO!O!OOOOOOpn", &ends, &function, &fallback, &supports,
                                              &slow, &PyDict_Type, &namespace, &PyDict_Type, &drivers, &is_compile_only,
                                              &compiler, &tensor, &parameter, &dtype, &exchange, &has_bucket, &limit)) {
        return NULL;
    }
    const struct launch_end_ops *functions = PyCapsule_GetPointer(ends, LAUNCH_END_OPS);
    if (functions == NULL) {
        return NULL;
    }
    Op *op = (Op *)type->tp_alloc(type, 0);
    if (op == NULL) {
        return NULL;
    }
    op->call = call_op;
    op->ends = functions;
    op->function = Py_NewRef(function);
    op->fallback = Py_NewRef(fallback);
    op->supports = none_to_null(supports);
    op->slow = Py_NewRef(slow);
    op->namespace = Py_NewRef(namespace);
    op->drivers = Py_NewRef(drivers);
    op->is_compile_only = Py_NewRef(is_compile_only);
    op->compiler = none_to_null(compiler);
    op->types.tensor = none_to_null(tensor);
    op->types.parameter = none_to_null(parameter);
    op->types.dtype = none_to_null(dtype);
    op->types.describe = exchange == Py_None ? NULL : describe_of(exchange);
    op->has_bucket = has_bucket;
    op->table.limit = limit < 1 ? 1 : (size_t)limit;
    return (PyObject *)op;
}

static int
traverse(PyObject *self, visitproc visit, void *arg)
{
    Op *op = (Op *)self;
    Py_VISIT(op->function);
    Py_VISIT(op->fallback);
    Py_VISIT(op->supports);
    Py_VISIT(op->slow);
    Py_VISIT(op->is_compile_only);
    Py_VISIT(op->runtime);
    Py_VISIT(op->places);
    return 0;
}

static int
clear(PyObject *self)
{
    Op *op = (Op *)self;
    Py_CLEAR(op->runtime); /* first: without it a call goes to `slow` */
    return 0;
}

static void
dealloc(PyObject *self)
{
    Op *op = (Op *)self;
    PyObject_GC_UnTrack(self);
    forget_all(&op->table);
    Py_XDECREF(op->function);
    Py_XDECREF(op->fallback);
    Py_XDECREF(op->supports);
    Py_XDECREF(op->slow);
    Py_XDECREF(op->namespace);
    Py_XDECREF(op->drivers);
    Py_XDECREF(op->is_compile_only);
    Py_XDECREF(op->compiler);
    Py_XDECREF(op->driver);
    Py_XDECREF(op->runtime);
    Py_XDECREF(op->places);
    Py_XDECREF(op->types.tensor);
    Py_XDECREF(op->types.parameter);
    Py_XDECREF(op->types.dtype);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef op_methods[] = {
    {"counts_in", counts_in, METH_VARARGS, NULL},
    {"remember", remember, METH_VARARGS, NULL},
    {"stand_in_for", stand_in_for, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject op_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "op_call.Op",
    .tp_basicsize = sizeof(Op),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Op, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = make,
    .tp_dealloc = dealloc,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = op_methods,
};

static int
fill(PyObject *module)
{
    current_name = PyUnicode_InternFromString("_current");
    active_name = PyUnicode_InternFromString("_active");
    compiling_name = PyUnicode_InternFromString("_is_compiling_flag");
    if (current_name == NULL || active_name == NULL || compiling_name == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &op_type);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "op_call", NULL, 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_op_call(void)
{
    return PyModuleDef_Init(&definition);
}
