/* The batches of steps: what `InPython` in `batches.py` does, at a cost that hardly grows with them.
 *
 * A batch is told from the last one by the addresses of its requests. Where it is another one, it is laid beside the one
 * that the meter turned for: whoever is in both at about the same place is passed over, and only the rest is counted in
 * and out (`seats.h`).
 *
 * Nothing here runs Python code while it relies on what an engine gave: no stranger is compared, hashed or asked for
 * anything. What is not plain is handed to Python: see `listed` and `look`. Numbers of requests are read and written in
 * their slots. An allocation of what the garbage collector knows may run anything: after it everything is looked at anew.
 */

#include "seats.h"
#include <limits.h>
#include <stddef.h>
#include <structmember.h>

enum { AHEAD = 4, FEW = 32 };

typedef struct {
    PyObject_HEAD
    PyTypeObject *request_type, *batch_type;
    Py_ssize_t joined, executed, first_step; /* where a request has these */
    Py_ssize_t given;                        /* where a batch has that */
    PyObject *listed, *look;
    PyObject *nobody;
    PyObject *last;    /* the batch that was read last */
    int last_has_ids;
    PyObject *metered; /* the batch whose requests have joined */
    long long ns;      /* the meter of calm steps */
    struct seats seats; /* of the requests in `metered` */
} Batches;

/* What is in a slot: a borrowed reference, or NULL. */
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

/* The list of a batch, borrowed; NULL if somebody else made the batch. */
static inline PyObject *
given_of(const Batches *self, PyObject *batch)
{
    if (!Py_IS_TYPE(batch, self->batch_type)) {
        return NULL;
    }
    PyObject *given = *slot_of(batch, self->given);
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

/* What stands beside a request is not looked at. */
static inline PyObject *
without_beside(PyObject *entry)
{
    return PyTuple_CheckExact(entry) && PyTuple_GET_SIZE(entry) > 0 ? PyTuple_GET_ITEM(entry, 0) : entry;
}

static int
is_same_id(PyObject *one, PyObject *other)
{
    if (!PyUnicode_CheckExact(one) || !PyUnicode_CheckExact(other)) {
        return 0;
    }
    int order = PyUnicode_Compare(one, other);
    if (order == -1) { /* or there was no memory */
        PyErr_Clear();
    }
    return order == 0;
}

static int
is_same(PyObject *const *entries, Py_ssize_t size, PyObject *last)
{
    if (last == NULL || PyList_GET_SIZE(last) != size) {
        return 0;
    }
    PyObject *const *those = PySequence_Fast_ITEMS(last);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (entries[i] != those[i]) { /* else it is no tuple, and need not be fetched */
            PyObject *entry = without_beside(entries[i]);
            if (entry != those[i] && !is_same_id(entry, those[i])) {
                return 0;
            }
        }
    }
    return 1;
}

/* A list of the plain entries of a list or tuple: a new reference. NULL if there are others, or no memory; without an
 * exception. */
static PyObject *
plain_entries(const Batches *self, PyObject *batch, int *has_ids)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(batch);
    PyObject *made = PyList_New(size);
    if (made == NULL) {
        PyErr_Clear();
        return NULL;
    }
    /* The collector may have run, and whatever it ended may have changed the engine's list. */
    int is_good = PySequence_Fast_GET_SIZE(batch) == size;
    PyObject *const *entries = PySequence_Fast_ITEMS(batch);
    for (Py_ssize_t i = 0; is_good && i < size; i++) {
        PyObject *entry = without_beside(entries[i]);
        is_good = is_plain(self, entry);
        if (is_good) {
            *has_ids |= PyUnicode_CheckExact(entry);
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

static PyObject *
read_entries(Batches *self, PyObject *batch, int ids)
{
    PyObject *last = self->last;
    if (is_same(PySequence_Fast_ITEMS(batch), PySequence_Fast_GET_SIZE(batch), given_of(self, last))
        && (ids || !self->last_has_ids)) {
        return Py_NewRef(last);
    }
    int has_ids = 0;
    PyObject *given = plain_entries(self, batch, &has_ids);
    PyObject *made = given == NULL || (has_ids && !ids) ? NULL : batch_of(self, Py_NewRef(given));
    Py_XDECREF(given);
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

/* Some entries of a batch. */
struct entries {
    PyObject *const *items;
    Py_ssize_t count;
};

/* Who is not in both of two batches, or not at the same place. */
struct few {
    PyObject *items[FEW];
    Py_ssize_t count;
};

/* 0, or -1 if they are not few. */
static int
add(struct few *few, PyObject *const *entries, Py_ssize_t count)
{
    if (count > FEW - few->count) {
        return -1;
    }
    memcpy(few->items + few->count, entries, (size_t)count * sizeof(PyObject *));
    few->count += count;
    return 0;
}

/* How many of some entries come before `entry`, if those are at most `AHEAD`; else 0. */
static inline Py_ssize_t
before(PyObject *const *entries, Py_ssize_t count, PyObject *entry)
{
    for (Py_ssize_t i = 1; i < count && i <= AHEAD; i++) {
        if (entries[i] == entry) {
            return i;
        }
    }
    return 0;
}

/* Lays two batches beside each other, and leaves out who is in both: in place of another, behind those who left, before
 * those who came. 0, or -1 if the rest are not few. */
static int
differ(struct entries old, struct entries new, struct few *left, struct few *came)
{
    while (old.count > 0 && new.count > 0) {
        Py_ssize_t gone = 0, more = 0;
        if (*old.items == *new.items) {
            old.items++, old.count--;
            new.items++, new.count--;
            continue;
        }
        int is_in_place = old.count > 1 && new.count > 1 && old.items[1] == new.items[1];
        if (!is_in_place && (gone = before(old.items, old.count, *new.items)) == 0) {
            more = before(new.items, new.count, *old.items);
        }
        if (gone == 0 && more == 0) {
            gone = more = 1;
        }
        if (add(left, old.items, gone) < 0 || add(came, new.items, more) < 0) {
            return -1;
        }
        old.items += gone, old.count -= gone;
        new.items += more, new.count -= more;
    }
    return add(left, old.items, old.count) < 0 || add(came, new.items, new.count) < 0 ? -1 : 0;
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

/* From now on the meter turns for `batch`. 0, or -1 with MemoryError and nothing changed. */
static int
change(Batches *self, PyObject *batch, PyObject *given, long long start)
{
    PyObject *former = self->metered, *had = given_of(self, former);
    struct entries old = {had == NULL ? NULL : PySequence_Fast_ITEMS(had), had == NULL ? 0 : PyList_GET_SIZE(had)};
    struct entries new = {PySequence_Fast_ITEMS(given), PyList_GET_SIZE(given)};
    struct few left = {.count = 0}, came = {.count = 0};
    if (differ(old, new, &left, &came) == 0) {
        old = (struct entries){left.items, left.count};
        new = (struct entries){came.items, came.count};
    }
    PyObject *ns = PyLong_FromLongLong(self->ns), *since = PyLong_FromLongLong(start);
    int is_good = ns != NULL && since != NULL;
    if (is_good && make_room(&self->seats, (size_t)new.count) < 0) {
        PyErr_NoMemory();
        is_good = 0;
    }
    /* First those who came: who is among both has only moved. */
    for (Py_ssize_t i = 0; is_good && i < new.count; i++) {
        if (is_request(self, new.items[i]) && sit_down(&self->seats, new.items[i])) {
            join(self, new.items[i], start, ns, since);
        }
    }
    for (Py_ssize_t i = 0; is_good && i < old.count; i++) {
        if (is_request(self, old.items[i]) && get_up(&self->seats, old.items[i])) {
            leave(self, old.items[i]);
        }
    }
    Py_XDECREF(ns);
    Py_XDECREF(since);
    if (!is_good) {
        return -1;
    }
    self->metered = Py_NewRef(batch);
    Py_DECREF(former); /* last: it may be the end of requests, which may do anything */
    return 0;
}

static PyObject *
turn(PyObject *batches, PyObject *const *arguments, Py_ssize_t count)
{
    Batches *self = (Batches *)batches;
    PyObject *given = count == 3 ? given_of(self, arguments[0]) : NULL;
    if (given == NULL) {
        return PyErr_Format(PyExc_TypeError, "turn(batch, start, end) takes what read() gave");
    }
    long long start = PyLong_AsLongLong(arguments[1]), end = PyLong_AsLongLong(arguments[2]);
    if (PyErr_Occurred() || (arguments[0] != self->metered && change(self, arguments[0], given, start) < 0)) {
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

static PyObject *
forget(PyObject *batches, PyObject *Py_UNUSED(nothing))
{
    Batches *self = (Batches *)batches;
    PyObject *former = self->last;
    self->last = Py_NewRef(self->nobody);
    self->last_has_ids = 0;
    Py_DECREF(former);
    PyObject *given = given_of(self, self->nobody);
    if (self->metered != self->nobody && change(self, self->nobody, given, 0) < 0) {
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
    if (find_slot(request, "_joined", &self->joined) < 0 || find_slot(request, "_executed", &self->executed) < 0
        || find_slot(request, "_first_step_ns", &self->first_step) < 0 || find_slot(batch, "given", &self->given) < 0) {
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
    return 0;
}

static void
become_none(PyObject **held)
{
    PyObject *former = *held;
    *held = Py_NewRef(Py_None);
    Py_XDECREF(former);
}

/* What it holds may lead back to it. Whoever calls it even so finds nobody in it. */
static int
clear(PyObject *batches)
{
    Batches *self = (Batches *)batches;
    free_seats(&self->seats);
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
    free_seats(&self->seats);
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
