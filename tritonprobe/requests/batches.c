/* The batches of steps: what `InPython` in `batches.py` does, at a cost that hardly grows with them.
 *
 * A batch is laid beside the last one (`differ.h`). Where few have left or come, and nobody else holds the last batch any
 * more, that becomes the new one, and the requests that stay are not even fetched: a step of an engine has taken them out
 * of the processor's caches. Who has left or come is counted out or in (`seats.h`) by the next calm step.
 *
 * Nothing here runs Python code while it relies on what an engine gave: no stranger is compared, hashed or asked for
 * anything. What is not plain is handed to Python: see `listed` and `look`. The numbers of requests, which nobody but us
 * sets, are read and written in their slots. Making what the garbage collector knows may run anything: after it, what may
 * have changed is looked at anew. Whoever is let go may end, and run anything: that comes last.
 */

#include "following.h"
#include "meter.h"
#include <structmember.h>

static PyObject *
read_batch(PyObject *batches, PyObject *const *arguments, Py_ssize_t count)
{
    Batches *self = (Batches *)batches;
    int ids = count == 2 ? PyObject_IsTrue(arguments[1]) : -1;
    if (ids < 0) {
        return count == 2 ? NULL : PyErr_Format(PyExc_TypeError, "read(batch, ids) got %zd arguments", count);
    }
    PyObject *batch = arguments[0];
    if (PyList_CheckExact(batch) || PyTuple_CheckExact(batch)) {
        return read_entries(self, batch, ids);
    }
    PyObject *list = PyObject_CallOneArg(self->listed, batch);
    if (list == NULL || !PyList_CheckExact(list)) {
        Py_XDECREF(list);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a batch has to be a list by now");
    }
    PyObject *found = read_entries(self, list, ids);
    Py_DECREF(list);
    return found;
}

static PyObject *
turn(PyObject *batches, PyObject *const *arguments, Py_ssize_t count)
{
    Batches *self = (Batches *)batches;
    PyObject *batch = count == 3 ? arguments[0] : Py_None, *given = given_of(self, batch);
    if (given == NULL) {
        return PyErr_Format(PyExc_TypeError, "turn(batch, start, end) takes what read() gave");
    }
    long long start = PyLong_AsLongLong(arguments[1]), end = PyLong_AsLongLong(arguments[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int is_other = batch != self->metered || self->left.count > 0 || self->came.count > 0;
    if (is_other && change(self, batch, given, start) < 0) {
        return NULL;
    }
    self->ns += end - start;
    Py_RETURN_NONE;
}

/* beside(batch, start, end, overlaps): see `batches.py`. */
static PyObject *
beside(PyObject *batches, PyObject *arguments)
{
    Batches *self = (Batches *)batches;
    PyObject *batch;
    long long start, end;
    int overlaps;
    if (!PyArg_ParseTuple(arguments, "OLLp", &batch, &start, &end, &overlaps)) {
        return NULL;
    }
    PyObject *waiting = PyList_New(0), *given = given_of(self, batch); /* the second is held by the caller's batch */
    if (given == NULL && waiting != NULL) {
        PyErr_Format(PyExc_TypeError, "beside(batch, ...) takes what read() gave");
    }
    if (given == NULL || waiting == NULL || count_beside(self, given, start, end, overlaps, waiting) < 0) {
        Py_XDECREF(waiting);
        return NULL;
    }
    return waiting;
}

static PyObject *
metered(PyObject *batches, PyObject *request)
{
    Batches *self = (Batches *)batches;
    return PyLong_FromLongLong(is_request(self, request) ? self->ns - number_in(request, self->joined, self->ns) : 0);
}

static PyObject *
forget(PyObject *batches, PyObject *Py_UNUSED(nothing))
{
    Batches *self = (Batches *)batches;
    PyObject *given = given_of(self, self->nobody);
    if (given == NULL || are_all_held(self)) {
        Py_RETURN_NONE;
    }
    PyObject *former = self->last;
    self->last = Py_NewRef(self->nobody);
    self->last_has_ids = 0;
    int is_good = self->metered == self->nobody || change(self, self->nobody, given, 0) == 0;
    Py_DECREF(former);
    if (!is_good) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Where the instances of a class have a slot: 0, or -1 with an exception. */
static int
find_slot(PyTypeObject *type, const char *name, Py_ssize_t *offset)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL) {
        return -1;
    }
    int is_slot = Py_IS_TYPE(found, &PyMemberDescr_Type) && PyDescr_TYPE(found) == type
                  && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX;
    if (is_slot) {
        *offset = ((PyMemberDescrObject *)found)->d_member->offset;
    }
    else {
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
    }
    Py_DECREF(found);
    return is_slot ? 0 : -1;
}

/* Batches(request type, batch type, nobody, listed, look): see `batches.py`. */
static PyObject *
make(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static const char *const found_out[FOUND_OUT] = {"_requests", "_others", "_members", "_traces"};
    PyTypeObject *request, *batch;
    PyObject *nobody, *listed, *look;
    if (keywords != NULL) {
        return PyErr_Format(PyExc_TypeError, "Batches() takes no keywords");
    }
    if (!PyArg_ParseTuple(arguments, "O!O!OOO", &PyType_Type, &request, &PyType_Type, &batch, &nobody, &listed, &look)) {
        return NULL;
    }
    Batches *self = (Batches *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->request_type = (PyTypeObject *)Py_NewRef(request);
    self->batch_type = (PyTypeObject *)Py_NewRef(batch);
    self->listed = Py_NewRef(listed);
    self->look = Py_NewRef(look);
    self->nobody = Py_NewRef(nobody);
    self->last = Py_NewRef(nobody);
    self->metered = Py_NewRef(nobody);
    int is_good = find_slot(request, "_joined", &self->joined) == 0
                  && find_slot(request, "_executed", &self->executed) == 0
                  && find_slot(request, "_executed_to", &self->executed_to) == 0
                  && find_slot(request, "_windows", &self->windows) == 0
                  && find_slot(request, "_pipelined", &self->pipelined) == 0
                  && find_slot(request, "_first_step_ns", &self->first_step) == 0
                  && find_slot(batch, "given", &self->given) == 0;
    for (int i = 0; is_good && i < FOUND_OUT; i++) {
        is_good = find_slot(batch, found_out[i], &self->found_out[i]) == 0;
    }
    if (!is_good) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
traverse(PyObject *batches, visitproc visit, void *arg)
{
    Batches *self = (Batches *)batches;
    Py_VISIT(self->request_type);
    Py_VISIT(self->batch_type);
    Py_VISIT(self->listed);
    Py_VISIT(self->look);
    Py_VISIT(self->nobody);
    Py_VISIT(self->last);
    Py_VISIT(self->metered);
    for (Py_ssize_t i = 0; i < self->left.count; i++) {
        Py_VISIT(self->left.items[i]);
    }
    return 0;
}

static void
become_none(PyObject **held)
{
    PyObject *former = *held;
    *held = Py_NewRef(Py_None);
    Py_XDECREF(former);
}

static void
let_go(Batches *self)
{
    struct few left = self->left;
    self->left.count = self->came.count = 0;
    free_seats(&self->seats);
    for (Py_ssize_t i = 0; i < left.count; i++) {
        Py_DECREF(left.items[i]);
    }
}

/* What it holds may lead back to it. Whoever calls it even so finds nobody in it. */
static int
clear(PyObject *batches)
{
    Batches *self = (Batches *)batches;
    let_go(self);
    become_none(&self->last);
    become_none(&self->metered);
    become_none(&self->listed);
    become_none(&self->look);
    return 0;
}

static void
dealloc(PyObject *batches)
{
    Batches *self = (Batches *)batches;
    PyObject_GC_UnTrack(self);
    let_go(self);
    PyMem_Free(self->scratch);
    Py_XDECREF(self->last);
    Py_XDECREF(self->metered);
    Py_XDECREF(self->nobody);
    Py_XDECREF(self->listed);
    Py_XDECREF(self->look);
    Py_XDECREF(self->request_type);
    Py_XDECREF(self->batch_type);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"read", (PyCFunction)(void (*)(void))read_batch, METH_FASTCALL, NULL},
    {"turn", (PyCFunction)(void (*)(void))turn, METH_FASTCALL, NULL},
    {"beside", beside, METH_VARARGS, NULL},
    {"metered", metered, METH_O, NULL},
    {"forget", forget, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject batches_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "batches.Batches",
    .tp_basicsize = sizeof(Batches),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = make,
    .tp_dealloc = dealloc,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = methods,
};

static int
fill(PyObject *module)
{
    return PyModule_AddType(module, &batches_type);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "batches", NULL, 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_batches(void)
{
    return PyModuleDef_Init(&definition);
}
