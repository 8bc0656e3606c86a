/* The type of an op that is called in C, for `op_call.py`. What a call does is in `op_run.h`, which calls are alike in
 * `op_look.h`, what is remembered of them in `op_table.h`.
 */

#include <stddef.h>

#include "op_front.h"
#include "op_run.h"

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
    op->refusals = (struct refusals){0, 0};
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
    if (op->has_looks) {
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

static PyObject *
none_to_null(PyObject *value)
{
    return value == Py_None ? NULL : Py_NewRef(value);
}

/* Op(ends, function, fallback, supports, slow, namespace, drivers, is_compile_only, compiler, tensor, parameter, dtype,
 * exchange, has_looks, remembers_supports, limit): see `op_call.py`. None for what there is not. */
static PyObject *
make(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *ends, *function, *fallback, *supports, *slow, *namespace, *drivers, *is_compile_only, *compiler, *tensor,
        *parameter, *dtype, *exchange;
    int has_looks, remembers_supports;
    Py_ssize_t limit;
    if (keywords != NULL || !PyArg_ParseTuple(arguments, "OOOOOO!O!OOOOOOppn", &ends, &function, &fallback, &supports,
                                              &slow, &PyDict_Type, &namespace, &PyDict_Type, &drivers, &is_compile_only,
                                              &compiler, &tensor, &parameter, &dtype, &exchange, &has_looks,
                                              &remembers_supports, &limit)) {
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
    op->has_looks = has_looks;
    op->remembers_supports = remembers_supports;
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
