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

#include "differ.h"
#include "seats.h"
#include <limits.h>
#include <structmember.h>

enum { ROOM = 64, FOUND_OUT = 4 };

typedef struct {
    PyObject_HEAD
    PyTypeObject *request_type, *batch_type;
    Py_ssize_t joined, executed, first_step; /* where a request has these */
    Py_ssize_t given, found_out[FOUND_OUT];  /* where a batch has these */
    PyObject *listed, *look;
    PyObject *nobody;
    PyObject *last; /* the batch that was read last */
    int last_has_ids;
    PyObject *metered;      /* the batch whose requests have joined, but for the two that follow */
    struct few left;        /* who is not in it any more, held here */
    struct few came;        /* who is in it since */
    long long ns;           /* the meter of calm steps */
    struct seats seats;     /* of those who have joined */
    PyObject **scratch;     /* room for a batch that is being read */
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

/* A list of the plain entries of a list or tuple: a new reference. NULL if there are others, or no memory; without an
 * exception. It has room for some more. */
static PyObject *
plain_entries(const Batches *self, PyObject *batch, int *has_ids)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(batch);
    PyObject *made = PyList_New(size + ROOM);
    if (made == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_SET_SIZE(made, 0);
    struct entries entries = entries_of(batch); /* the collector may have run, and changed the engine's list */
    int is_good = entries.count <= size;
    for (Py_ssize_t i = 0; is_good && i < entries.count; i++) {
        PyObject *entry = without_beside(entries.items[i]);
        is_good = is_plain(self, entry);
        if (is_good) {
            *has_ids |= PyUnicode_CheckExact(entry);
            Py_SET_SIZE(made, i + 1);
            PyList_SET_ITEM(made, i, Py_NewRef(entry));
        }
    }
    if (!is_good) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}

/* A batch of that list, which it takes over. NULL without memory, without an exception. */
static PyObject *
batch_of(const Batches *self, PyObject *given)
{
    PyObject *batch = self->batch_type->tp_alloc(self->batch_type, 0);
    if (batch == NULL) {
        PyErr_Clear();
        Py_DECREF(given);
        return NULL;
    }
    *slot_of(batch, self->given) = given;
    return batch;
}

/* What Python finds in it: a new reference. NULL with an exception: an interrupt, or no memory. */
static PyObject *
look_at(const Batches *self, PyObject *batch, int ids)
{
    PyObject *entries = PySequence_List(batch);
    for (Py_ssize_t i = 0; entries != NULL && i < PyList_GET_SIZE(entries); i++) {
        PyObject *entry = PyList_GET_ITEM(entries, i);
        PyList_SET_ITEM(entries, i, Py_NewRef(without_beside(entry)));
        Py_DECREF(entry);
    }
    if (entries == NULL) {
        return NULL;
    }
    PyObject *found = PyObject_CallFunctionObjArgs(self->look, entries, ids ? Py_True : Py_False, NULL);
    Py_DECREF(entries);
    return found;
}

/* What was found out about a batch that nobody else holds is not so any more, or is to hold no request. */
static void
forget_found_out(const Batches *self, PyObject *batch)
{
    for (int i = 0; i < FOUND_OUT; i++) {
        Py_CLEAR(*slot_of(batch, self->found_out[i]));
    }
}

static int
make_scratch(Batches *self, Py_ssize_t size)
{
    if (size > self->scratch_size) {
        PyObject **made = PyMem_Realloc(self->scratch, (size_t)size * sizeof(PyObject *));
        if (made == NULL) {
            return -1;
        }
        self->scratch = made;
        self->scratch_size = size;
    }
    return 0;
}

/* The last batch becomes what an engine's has become of it. Whether it has; else nothing is changed. */
static int
follow(Batches *self, PyObject *given, struct entries entries)
{
    /* Held by nobody else: by no step in progress, and no thread that reads in it. Held twice here. */
    if (self->last != self->metered || self->last == self->nobody || Py_REFCNT(self->last) != 2
        || Py_REFCNT(given) != 1 || self->last_has_ids || ((PyListObject *)given)->allocated < entries.count
        || make_scratch(self, entries.count) < 0) {
        return 0;
    }
    struct few left = self->left, came = self->came;
    if (differ(entries_of(given), entries, &left, &came, self->scratch) < 0) {
        return 0;
    }
    for (Py_ssize_t i = self->came.count; i < came.count; i++) {
        if (!is_plain(self, came.items[i]) || !is_request(self, came.items[i])) {
            return 0;
        }
    }
    for (Py_ssize_t i = self->came.count; i < came.count; i++) {
        Py_INCREF(came.items[i]);
    }
    memcpy(((PyListObject *)given)->ob_item, self->scratch, (size_t)entries.count * sizeof(PyObject *));
    Py_SET_SIZE(given, entries.count);
    self->left = left; /* with the references that the list had */
    self->came = came;
    forget_found_out(self, self->last); /* whose requests are all held otherwise, too */
    return 1;
}

static PyObject *
read_entries(Batches *self, PyObject *batch, int ids)
{
    PyObject *given = given_of(self, self->last);
    if (given != NULL) {
        struct entries entries = entries_of(batch);
        int is_same = are_same(entries_of(given), entries) && (ids || !self->last_has_ids);
        if (is_same || follow(self, given, entries)) {
            return Py_NewRef(self->last);
        }
    }
    int has_ids = 0;
    PyObject *plain = plain_entries(self, batch, &has_ids);
    PyObject *made = plain == NULL || (has_ids && !ids) ? NULL : batch_of(self, Py_NewRef(plain));
    Py_XDECREF(plain);
    if (made == NULL) {
        return look_at(self, batch, ids);
    }
    PyObject *former = self->last;
    self->last = Py_NewRef(made);
    self->last_has_ids = has_ids;
    Py_DECREF(former);
    return made;
}

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

static void
join(const Batches *self, PyObject *request, long long start, PyObject *ns, PyObject *since)
{
    put_in(request, self->joined, ns);
    if (start < number_in(request, self->first_step, LLONG_MAX)) {
        put_in(request, self->first_step, since);
    }
}

static void
leave(const Batches *self, PyObject *request)
{
    long long took = self->ns - number_in(request, self->joined, self->ns);
    put_in(request, self->joined, Py_None);
    PyObject *executed = PyLong_FromLongLong(number_in(request, self->executed, 0) + took);
    if (executed == NULL) {
        PyErr_Clear(); /* too little is counted, which is better than a step that fails */
        return;
    }
    put_in(request, self->executed, executed);
    Py_DECREF(executed);
}

static void
all_leave(Batches *self, struct entries entries)
{
    for (Py_ssize_t i = 0; i < entries.count; i++) {
        if (is_request(self, entries.items[i]) && get_up(&self->seats, entries.items[i])) {
            leave(self, entries.items[i]);
        }
    }
}

/* From now on the meter turns for `batch`, in a step that began at `start`. 0, or -1 with MemoryError and nothing
 * changed. */
static int
change(Batches *self, PyObject *batch, PyObject *given, long long start)
{
    struct few left = {.count = 0}, came = {.count = 0}, gone = self->left;
    struct entries old = {NULL, 0}, new = {NULL, 0};
    PyObject *former = self->metered, *had = given_of(self, former);
    if (batch != former) {
        old = had == NULL ? old : entries_of(had);
        new = entries_of(given);
        if (differ(old, new, &left, &came, NULL) == 0) {
            old = (struct entries){left.items, left.count};
            new = (struct entries){came.items, came.count};
        }
    }
    PyObject *ns = PyLong_FromLongLong(self->ns), *since = PyLong_FromLongLong(start);
    if (ns == NULL || since == NULL || make_room(&self->seats, (size_t)(self->came.count + new.count)) < 0) {
        Py_XDECREF(ns);
        Py_XDECREF(since);
        PyErr_NoMemory();
        return -1;
    }
    /* First those who came: who is among those who left as well has only moved, or was there for a while in between. */
    unsigned char is_new[FEW];
    for (Py_ssize_t i = 0; i < self->came.count; i++) {
        is_new[i] = (unsigned char)sit_down(&self->seats, self->came.items[i]);
    }
    for (Py_ssize_t i = 0; i < new.count; i++) {
        if (is_request(self, new.items[i]) && sit_down(&self->seats, new.items[i])) {
            join(self, new.items[i], start, ns, since);
        }
    }
    all_leave(self, old);
    all_leave(self, (struct entries){gone.items, gone.count});
    for (Py_ssize_t i = 0; i < self->came.count; i++) {
        if (is_new[i] && times_of(&self->seats, self->came.items[i]) > 0) {
            join(self, self->came.items[i], start, ns, since);
        }
    }
    Py_DECREF(ns);
    Py_DECREF(since);
    self->left.count = self->came.count = 0;
    self->metered = Py_NewRef(batch);
    Py_DECREF(former);
    for (Py_ssize_t i = 0; i < gone.count; i++) {
        Py_DECREF(gone.items[i]);
    }
    return 0;
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

static PyObject *
metered(PyObject *batches, PyObject *request)
{
    Batches *self = (Batches *)batches;
    return PyLong_FromLongLong(is_request(self, request) ? self->ns - number_in(request, self->joined, self->ns) : 0);
}

/* Whether somebody else holds each request of the last batch, so that there is nothing to forget: in an engine that takes
 * requests in between its steps. */
static int
are_all_held(const Batches *self)
{
    PyObject *given = given_of(self, self->last);
    if (self->last != self->metered || Py_REFCNT(self->last) != 2 || given == NULL || self->last_has_ids
        || self->left.count > 0 || self->came.count > 0) {
        return 0;
    }
    forget_found_out(self, self->last);
    struct entries entries = entries_of(given);
    for (Py_ssize_t i = 0; i < entries.count; i++) {
        if (Py_REFCNT(entries.items[i]) <= times_of(&self->seats, entries.items[i])) {
            return 0;
        }
    }
    return 1;
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
