/* The launches of one window as columns of numbers, written as they come: no object of a launch outlives its call.
 *
 * What recurs (binary, grid and stream, bucket's arguments, whether it is a trial) is kept once and numbered. Where these
 * are what Triton and we make of them (exact integers, texts and tuples, objects compared by identity), they are compared
 * here and no Python code runs; all others go through a dict. What cannot be hashed has a number of its own each time.
 *
 * The functions need the interpreter's lock. A log is not tracked by the collector: nothing that it holds knows it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* A `seen.Seen`, field by field. */
enum { BINARY, TARGET, KEY, BEFORE, AFTER, START, END, RETURNED, TRIAL, MARK, THREAD, FIELDS };
static const int KINDS[] = {BINARY, TARGET, KEY, TRIAL};
static const int NUMBERS[] = {BEFORE, AFTER, START, END, RETURNED, THREAD};
enum { OF_A_KIND = 4, NUMBERED = 6, COLUMNS = NUMBERED + 1 }; /* the last column is the number of the kind */
enum { DEPTH = 4 };                                           /* of tuples in tuples */

typedef struct {
    uint64_t hash; /* 0: it is one of those that only Python can compare */
    PyObject *parts[OF_A_KIND];
} Kind;

typedef struct {
    PyObject_HEAD
    int64_t *columns; /* `most` numbers each */
    Py_ssize_t most, count;
    Kind *kinds;
    Py_ssize_t known, room;
    int32_t *slots; /* numbers of kinds by their hash, open addressing; -1: free */
    uint64_t mask;
    PyObject *others; /* of kinds that only Python can compare: their numbers */
} Log;

static uint64_t
mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static int
is_whole(PyObject *object)
{
    return PyLong_CheckExact(object) || PyBool_Check(object);
}

/* Whether objects of this type are equal only if they are the same. */
static int
is_itself(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    return type->tp_hash == PyBaseObject_Type.tp_hash && type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

/* Mixes a plain object into `hash`; 0 if it is not plain. */
static int
mix(uint64_t *hash, PyObject *object, int depth)
{
    if (is_whole(object)) {
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
        *hash = mixed(*hash, (uint64_t)value);
        return !overflow;
    }
    if (PyTuple_CheckExact(object)) {
        Py_ssize_t size = PyTuple_GET_SIZE(object);
        *hash = mixed(*hash, (uint64_t)size);
        for (Py_ssize_t i = 0; i < size; i++) {
            if (depth == 0 || !mix(hash, PyTuple_GET_ITEM(object, i), depth - 1)) {
                return 0;
            }
        }
        return 1;
    }
    if (PyUnicode_CheckExact(object)) {
        *hash = mixed(*hash, (uint64_t)PyObject_Hash(object));
        return 1;
    }
    *hash = mixed(*hash, (uint64_t)(uintptr_t)object);
    return object == Py_None || is_itself(object);
}

/* Whether two plain objects are equal. */
static int
same(PyObject *one, PyObject *other)
{
    if (one == other) {
        return 1;
    }
    if (is_whole(one) && is_whole(other)) {
        int overflow;
        return PyLong_AsLongLongAndOverflow(one, &overflow) == PyLong_AsLongLongAndOverflow(other, &overflow);
    }
    if (PyTuple_CheckExact(one) && PyTuple_CheckExact(other) && PyTuple_GET_SIZE(one) == PyTuple_GET_SIZE(other)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(one); i++) {
            if (!same(PyTuple_GET_ITEM(one, i), PyTuple_GET_ITEM(other, i))) {
                return 0;
            }
        }
        return 1;
    }
    return PyUnicode_CheckExact(one) && PyUnicode_CheckExact(other) && PyUnicode_Compare(one, other) == 0;
}

static void
put(Log *log, uint64_t hash, int32_t number)
{
    if (hash != 0) {
        uint64_t place = hash & log->mask;
        while (log->slots[place] >= 0) {
            place = (place + 1) & log->mask;
        }
        log->slots[place] = number;
    }
}

/* Room for one more kind, and a table that is half empty; -1 with an exception. */
static int
make_room(Log *log)
{
    if (log->known < log->room) {
        return 0;
    }
    Py_ssize_t room = log->room ? 2 * log->room : 64;
    Kind *kinds = PyMem_Realloc(log->kinds, (size_t)room * sizeof(Kind));
    if (kinds == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    log->kinds = kinds;
    int32_t *slots = PyMem_Realloc(log->slots, (size_t)(2 * room) * sizeof(int32_t));
    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    log->slots = slots;
    log->room = room;
    log->mask = (uint64_t)(2 * room - 1);
    memset(slots, 0xFF, (size_t)(2 * room) * sizeof(int32_t));
    for (Py_ssize_t i = 0; i < log->known; i++) {
        put(log, kinds[i].hash, (int32_t)i);
    }
    return 0;
}

static int32_t
add(Log *log, PyObject *seen, uint64_t hash)
{
    if (make_room(log) < 0) {
        return -1;
    }
    int32_t number = (int32_t)log->known++;
    log->kinds[number].hash = hash;
    for (int i = 0; i < OF_A_KIND; i++) {
        log->kinds[number].parts[i] = Py_NewRef(PyTuple_GET_ITEM(seen, KINDS[i]));
    }
    put(log, hash, number);
    return number;
}

/* The number of a kind that Python compares; -1 with an exception that is none of hashing or comparing. */
static int32_t
number_by_dict(Log *log, PyObject *seen)
{
    PyObject *whole = PyTuple_Pack(OF_A_KIND, PyTuple_GET_ITEM(seen, BINARY), PyTuple_GET_ITEM(seen, TARGET),
                                   PyTuple_GET_ITEM(seen, KEY), PyTuple_GET_ITEM(seen, TRIAL));
    if (whole == NULL) {
        return -1;
    }
    int32_t number = -1;
    PyObject *found = PyDict_GetItemWithError(log->others, whole);
    if (found != NULL) {
        number = (int32_t)PyLong_AsLong(found);
    } else if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Clear();
            number = add(log, seen, 0);
        }
    } else if ((number = add(log, seen, 0)) >= 0) {
        PyObject *value = PyLong_FromLong(number);
        if (value == NULL || PyDict_SetItem(log->others, whole, value) < 0) {
            number = -1;
        }
        Py_XDECREF(value);
    }
    Py_DECREF(whole);
    return number;
}

static int32_t
number_of(Log *log, PyObject *seen)
{
    uint64_t hash = mixed(1, (uint64_t)(uintptr_t)PyTuple_GET_ITEM(seen, BINARY));
    for (int i = 1; i < OF_A_KIND; i++) {
        if (!mix(&hash, PyTuple_GET_ITEM(seen, KINDS[i]), DEPTH)) {
            return number_by_dict(log, seen);
        }
    }
    hash |= 1;
    uint64_t place = hash & log->mask;
    for (; log->slots != NULL && log->slots[place] >= 0; place = (place + 1) & log->mask) {
        const Kind *kind = &log->kinds[log->slots[place]];
        int equal = kind->hash == hash && kind->parts[0] == PyTuple_GET_ITEM(seen, BINARY);
        for (int i = 1; equal && i < OF_A_KIND; i++) {
            equal = same(kind->parts[i], PyTuple_GET_ITEM(seen, KINDS[i]));
        }
        if (equal) {
            return log->slots[place];
        }
    }
    return add(log, seen, hash);
}

/* append(seen): one launch more; where there are `most` already, nothing. */
static PyObject *
append(PyObject *self, PyObject *seen)
{
    Log *log = (Log *)self;
    if (!PyTuple_Check(seen) || PyTuple_GET_SIZE(seen) != FIELDS) {
        PyErr_SetString(PyExc_TypeError, "append() takes a Seen");
        return NULL;
    }
    int64_t numbers[COLUMNS];
    for (int i = 0; i < NUMBERED; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(seen, NUMBERS[i]));
        if (numbers[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (log->count < log->most && (numbers[NUMBERED] = number_of(log, seen)) < 0) {
        return NULL;
    }
    if (log->count < log->most) { /* asked again, for comparing may have run others' code */
        for (int i = 0; i < COLUMNS; i++) {
            log->columns[i * log->most + log->count] = numbers[i];
        }
        log->count++;
    }
    Py_RETURN_NONE;
}

/* kinds(): what the last column numbers, each as (binary, target, key, trial). */
static PyObject *
kinds(PyObject *self, PyObject *unused)
{
    (void)unused;
    Log *log = (Log *)self;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < log->known; i++) {
        PyObject **parts = log->kinds[i].parts;
        PyObject *kind = PyTuple_Pack(OF_A_KIND, parts[0], parts[1], parts[2], parts[3]);
        if (kind == NULL || PyList_Append(list, kind) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(kind);
    }
    return list;
}

static PyObject *
make(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"most", NULL};
    Py_ssize_t most;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "n", names, &most)) {
        return NULL;
    }
    if (most < 1 || most > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "Log(most): at least one launch");
        return NULL;
    }
    Log *log = (Log *)type->tp_alloc(type, 0);
    if (log == NULL) {
        return NULL;
    }
    log->most = most;
    log->columns = PyMem_RawCalloc((size_t)most * COLUMNS, sizeof(int64_t)); /* what is never written is never touched */
    log->others = PyDict_New();
    if (log->columns == NULL || log->others == NULL) {
        Py_DECREF(log);
        return PyErr_NoMemory();
    }
    return (PyObject *)log;
}

static void
destroy(PyObject *self)
{
    Log *log = (Log *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < log->known; i++) {
        for (int part = 0; part < OF_A_KIND; part++) {
            Py_DECREF(log->kinds[i].parts[part]);
        }
    }
    Py_XDECREF(log->others);
    PyMem_Free(log->kinds);
    PyMem_Free(log->slots);
    PyMem_RawFree(log->columns);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
lend(PyObject *self, Py_buffer *view, int flags)
{
    Log *log = (Log *)self;
    Py_ssize_t bytes = log->most * COLUMNS * (Py_ssize_t)sizeof(int64_t);
    return PyBuffer_FillInfo(view, self, log->columns, bytes, 1, flags);
}

static Py_ssize_t
length(PyObject *self)
{
    return ((Log *)self)->count;
}

static PyMethodDef log_methods[] = {
    {"append", append, METH_O, NULL},
    {"kinds", kinds, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot log_slots[] = {
    {Py_tp_new, (void *)make},
    {Py_tp_dealloc, (void *)destroy},
    {Py_tp_methods, log_methods},
    {Py_sq_length, (void *)length},
    {Py_bf_getbuffer, (void *)lend},
    {0, NULL},
};

static PyType_Spec log_type = {"launch_log.Log", sizeof(Log), 0, Py_TPFLAGS_DEFAULT, log_slots};

static int
add_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&log_type);
    if (type == NULL || PyModule_AddObject(module, "Log", type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_type},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "launch_log", NULL, 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_launch_log(void)
{
    return PyModuleDef_Init(&definition);
}
