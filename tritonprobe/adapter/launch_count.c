/* One count: what `cells[M][N][0] += 1.0` does, in one call instead of three lookups and a memoryview's read and write.
 *
 * A number that is not there, and may be rounded, is looked up as the next power of two: a seed, or a length that grows
 * with each step, finds its bucket's cell although nobody has seen that number before.
 *
 * Only plain keys are looked up (int, str, bool, None): comparing them runs no Python code, so nothing can change the
 * dicts meanwhile, and borrowed references hold. A value of a subclass of int or str, such as an enumeration's, is looked
 * up as the number or text that it is, and True as the key (True,), which 1 is not (`sites.own_key`). Everything else is
 * an exception.
 *
 * Kernels of engines have forty keys and more, and the launches of a step are mostly alike: so a counter compares the
 * keys with those of its latest launches first, which is much less than a dict's lookup for each.
 * That holds as long as keys lead to the cell that they once led to, a number to that of its power of two (`sites.Shape`).
 */

#include "cell.h"
#include <limits.h>
#include <stddef.h>

static int
is_plain(PyObject *key)
{
    return PyLong_CheckExact(key) || PyUnicode_CheckExact(key) || key == Py_None || PyBool_Check(key);
}

/* What a value is looked up by that is no key itself, without asking its methods: a new reference, or NULL with an
 * exception. */
static PyObject *
key_of(PyObject *key)
{
    if (PyBool_Check(key)) {
        return PyTuple_Pack(1, key);
    }
    if (PyLong_Check(key)) {
        return PyNumber_Index(key);
    }
    if (PyUnicode_Check(key)) {
        return PyUnicode_FromObject(key);
    }
    PyErr_SetString(PyExc_TypeError, "a counter looks plain keys up in dicts of dicts");
    return NULL;
}

/* The next power of two, 0 for 0 and below, as `shapes.buckets.pow2` has it, of a value up to 2**62. */
static long long
edge_of(long long value)
{
    long long edge = value <= 0 ? 0 : 1;
    while (edge > 0 && edge < value) {
        edge <<= 1;
    }
    return edge;
}

/* What stands under the next power of two in a dict: a borrowed reference, or NULL, with an exception or without. */
static PyObject *
rounded(PyObject *dict, PyObject *key)
{
    if (!PyLong_Check(key)) {
        return NULL;
    }
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(key, &overflow);
    if ((value == -1 && PyErr_Occurred()) || overflow > 0 || value > (1LL << 62)) {
        return NULL;
    }
    PyObject *number = PyLong_FromLongLong(overflow < 0 ? 0 : edge_of(value));
    if (number == NULL) {
        return NULL;
    }
    PyObject *found = PyDict_GetItemWithError(dict, number);
    Py_DECREF(number);
    return found;
}

#define RARE __attribute__((noinline, cold))

enum { LATEST = 4, MOST_KEYS = 256 };

/* The numbers that a key may have: above one and up to another. None at all if it was no number. */
struct numbers {
    long long above, upto;
};

/* A launch as it was, and where it was counted. A step of an engine takes all of this out of the processor's caches again,
 * code too: so what is read for a launch like it lies close together (the numbers are for keys that are other objects than
 * then), and what is seldom run stands apart (RARE). */
struct launch {
    PyObject *cells; /* NULL: nothing is remembered here */
    PyObject *cell;
    double *number;       /* the cell's; NULL if it is a list */
    PyObject *objects[1]; /* as many as keys; NULL where nothing is held */
};

struct counter {
    PyObject_HEAD
    vectorcallfunc call;
    unsigned long long mask;
    Py_ssize_t size; /* keys of a launch */
    int latest;      /* the one that the last launch was like */
    struct launch *launches[LATEST];
};

static struct numbers *
numbers_of(struct launch *launch, Py_ssize_t size)
{
    return (struct numbers *)(launch->objects + size);
}

/* The value of a number of one digit, which is up to 2**30; `otherwise` of any other object. */
static inline long long
small_value(PyObject *key, long long otherwise)
{
    if (!PyLong_CheckExact(key)) {
        return otherwise;
    }
#if PY_VERSION_HEX >= 0x030C0000
    const PyLongObject *number = (const PyLongObject *)key;
    return PyUnstable_Long_IsCompact(number) ? (long long)PyUnstable_Long_CompactValue(number) : otherwise;
#else
    Py_ssize_t size = Py_SIZE(key);
    return size == 1 ? (long long)((const PyLongObject *)key)->ob_digit[0] : size == 0 ? 0 : otherwise;
#endif
}

/* Whether a key that is another object is what was there. Leaves no exception. */
RARE static int
is_like(PyObject *object, const struct numbers *numbers, PyObject *key)
{
    if (PyLong_Check(key)) {
        int overflow = 0;
        long long value = PyBool_Check(key) ? LLONG_MIN : PyLong_AsLongLongAndOverflow(key, &overflow);
        return overflow == 0 && value > numbers->above && value <= numbers->upto;
    }
    return object != NULL && PyUnicode_Check(object) && PyUnicode_Check(key) && PyUnicode_Compare(key, object) == 0;
}

static inline int
is_this(struct launch *launch, PyObject *cells, PyObject *const *keys, Py_ssize_t size)
{
    if (launch == NULL || launch->cells != cells) {
        return 0;
    }
    const struct numbers *numbers = numbers_of(launch, size);
    __builtin_prefetch(numbers);
    __builtin_prefetch(launch->cell);
    __builtin_prefetch(launch->number, 1);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (keys[i] != launch->objects[i]) {
            long long value = small_value(keys[i], LLONG_MIN); /* which lies above nothing */
            if (!(value > numbers[i].above && value <= numbers[i].upto)
                && !is_like(launch->objects[i], &numbers[i], keys[i])) {
                return 0;
            }
        }
    }
    return 1;
}

static void
forget(struct launch *launch, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++) {
        Py_CLEAR(launch->objects[i]);
    }
    launch->number = NULL;
    Py_CLEAR(launch->cells);
    Py_CLEAR(launch->cell);
}

/* 0, or -1 for a number that is too large, and without memory. Of a subclass's value nothing is held but its text. */
RARE static int
want(PyObject **object, struct numbers *numbers, PyObject *key, int may_be_rounded)
{
    numbers->above = numbers->upto = 0;
    if (PyLong_Check(key) && !PyBool_Check(key)) {
        int overflow = 0;
        long long value = PyLong_AsLongLongAndOverflow(key, &overflow);
        if (overflow != 0 || value == LLONG_MIN) {
            return -1;
        }
        numbers->above = value - 1;
        numbers->upto = value;
        if (may_be_rounded && value <= (1LL << 62)) {
            numbers->upto = edge_of(value);
            numbers->above = numbers->upto > 1 ? numbers->upto / 2 : numbers->upto == 1 ? 0 : LLONG_MIN;
        }
    }
    if (is_plain(key)) {
        *object = Py_NewRef(key);
    }
    else if (PyUnicode_Check(key) && (*object = PyUnicode_FromObject(key)) == NULL) {
        PyErr_Clear();
        return -1;
    }
    return 0;
}

RARE static void
remember(struct counter *self, PyObject *cells, PyObject *const *keys, PyObject *cell)
{
    int place = (self->latest + 1) % LATEST;
    size_t size = (size_t)self->size;
    struct launch *launch = self->launches[place];
    if (launch == NULL) {
        size_t bytes = offsetof(struct launch, objects) + size * (sizeof(PyObject *) + sizeof(struct numbers));
        launch = self->launches[place] = PyMem_Calloc(1, bytes);
        if (launch == NULL) {
            return;
        }
    }
    forget(launch, self->size);
    for (Py_ssize_t i = 0; i < self->size; i++) {
        int may_be_rounded = i < 64 && (self->mask >> i & 1);
        if (want(&launch->objects[i], numbers_of(launch, self->size) + i, keys[i], may_be_rounded) < 0) {
            forget(launch, self->size);
            return;
        }
    }
    launch->cells = Py_NewRef(cells);
    launch->cell = Py_NewRef(cell);
    launch->number = number_of(cell);
    self->latest = place;
}

RARE static int
count_slowly(PyObject *cell)
{
    return count_in(cell);
}

/* As `count_in`. A memoryview's number stays where it is until it is released, which is all that has to be looked at. */
static inline int
count_again(const struct launch *launch)
{
    if (launch->number == NULL || ((PyMemoryViewObject *)launch->cell)->flags & _Py_MEMORYVIEW_RELEASED) {
        return count_slowly(launch->cell);
    }
    *launch->number += 1.0;
    return 0;
}

/* The cell that the keys lead to: a borrowed reference. NULL with KeyError or TypeError. */
RARE static PyObject *
look_up(PyObject *cells, unsigned long long mask, PyObject *const *keys, Py_ssize_t size)
{
    PyObject *found = cells;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (!PyDict_CheckExact(found)) {
            PyErr_SetString(PyExc_TypeError, "a counter looks plain keys up in dicts of dicts");
            return NULL;
        }
        PyObject *key = keys[i], *made = NULL;
        if (!is_plain(key) || PyBool_Check(key)) {
            key = made = key_of(key);
            if (made == NULL) {
                return NULL;
            }
        }
        PyObject *place = found;
        found = PyDict_GetItemWithError(place, key);
        if (found == NULL && i < 64 && (mask >> i & 1) && !PyErr_Occurred()) {
            found = rounded(place, key);
        }
        Py_XDECREF(made);
        if (found == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetObject(PyExc_KeyError, keys[i]);
            }
            return NULL;
        }
    }
    return found;
}

/* The keys of a call that has them in tuples; 0, or -1 if they are not as many as they should be. */
static int
unpack(PyObject **keys, Py_ssize_t size, PyObject *const *groups, Py_ssize_t count)
{
    Py_ssize_t found = 0;
    for (Py_ssize_t group = 0; group < count; group++) {
        if (!PyTuple_CheckExact(groups[group]) || found + PyTuple_GET_SIZE(groups[group]) > size) {
            return -1;
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(groups[group]); i++) {
            keys[found++] = PyTuple_GET_ITEM(groups[group], i);
        }
    }
    return found == size ? 0 : -1;
}

/* Of a launch that is not like the last one. */
RARE static PyObject *
count_otherwise(struct counter *self, PyObject *cells, PyObject *const *keys)
{
    for (int i = 0; i < LATEST; i++) {
        if (is_this(self->launches[i], cells, keys, self->size)) {
            self->latest = i;
            if (count_again(self->launches[i]) < 0) {
                return NULL;
            }
            Py_RETURN_NONE;
        }
    }
    PyObject *cell = look_up(cells, self->mask, keys, self->size);
    if (cell == NULL || count_in(cell) < 0) {
        return NULL;
    }
    remember(self, cells, keys, cell);
    Py_RETURN_NONE;
}

RARE static PyObject *
refuse(const struct counter *self)
{
    return PyErr_Format(PyExc_TypeError, "this counter takes cells and %zd keys", self->size);
}

/* counter(cells, key, key, ...), or counter(cells, (key, key, ...), ...): cells[key][key]...[0] += 1.0.
 * Raises KeyError or TypeError, and then changed nothing. */
static PyObject *
count(PyObject *counter, PyObject *const *arguments, size_t flags, PyObject *names)
{
    struct counter *self = (struct counter *)counter;
    Py_ssize_t given = PyVectorcall_NARGS(flags) - 1, size = self->size;
    if (given < 1 || names != NULL) {
        return refuse(self);
    }
    PyObject *cells = arguments[0], *const *keys = arguments + 1, *unpacked[MOST_KEYS];
    if (given != size) {
        if (unpack(unpacked, size, keys, given) < 0) {
            return refuse(self);
        }
        keys = unpacked;
    }
    struct launch *last = self->launches[self->latest];
    if (!is_this(last, cells, keys, size)) {
        return count_otherwise(self, cells, keys);
    }
    if (count_again(last) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
counter_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"size", "rounded", NULL};
    Py_ssize_t size;
    unsigned long long mask;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "nK", names, &size, &mask)) {
        return NULL;
    }
    if (size < 1 || size > MOST_KEYS) {
        return PyErr_Format(PyExc_ValueError, "a counter of %zd keys: expected 1 to %d", size, MOST_KEYS);
    }
    struct counter *self = (struct counter *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->call = count;
        self->size = size;
        self->mask = mask;
    }
    return (PyObject *)self;
}

static void
counter_dealloc(PyObject *counter)
{
    struct counter *self = (struct counter *)counter;
    for (int i = 0; i < LATEST; i++) {
        if (self->launches[i] != NULL) {
            forget(self->launches[i], self->size);
            PyMem_Free(self->launches[i]);
        }
    }
    Py_TYPE(counter)->tp_free(counter);
}

/* No subject of the garbage collector: what it holds (dicts of dicts of memoryviews, plain keys) leads nowhere back. */
static PyTypeObject counter_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "launch_count.Counter",
    .tp_doc = "Counter(size, rounded) counts launches of `size` keys; the n-th may be rounded if that bit is set.",
    .tp_basicsize = sizeof(struct counter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = counter_new,
    .tp_dealloc = counter_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(struct counter, call),
};

static int
fill(PyObject *module)
{
    if (PyType_Ready(&counter_type) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Counter", (PyObject *)&counter_type);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "launch_count", NULL, 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_launch_count(void)
{
    return PyModuleDef_Init(&definition);
}
