/* CUPTI's records as columns, in one pass. What recurs in them (name, grid, graph and device) is numbered.
 *
 * Arrays come as buffers that the caller made and typed; they are checked for their size. The lock of the interpreter is
 * free during the pass: no object is touched there.
 */

#include "buffers.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Where the fields lie in eight-byte words, as `records.py` has it. */
enum { W_KIND = 0, W_START = 2, W_END = 3, W_PLACE = 5, W_STREAM_X = 6, W_YZ = 7, W_CORRELATION = 11, W_NAME = 13,
       W_NODE = 18, W_GRAPH = 19, W_LEAST = 20 };

typedef struct {
    uint64_t name, grid, place; /* `place`: the graph's number, then the device's, 32 bits each */
    uint64_t count;             /* records of it */
} Class;

typedef struct {
    Class *classes;
    size_t known, room; /* a power of two */
    int64_t *slots;     /* of `2 * room`, -1: free */
} Table;

typedef struct {
    int64_t *start, *end, *correlation, *which;
    uint64_t *node;
    int64_t last; /* correlation id, of the record before */
    int in_order;
    int64_t wrong; /* the kind of a record that is no kernel's, or -1 */
} Columns;

static uint64_t
word(const uint8_t *record, int place)
{
    uint64_t found;
    memcpy(&found, record + 8 * place, sizeof(found));
    return found;
}

static uint64_t
hash_of(const Class *class)
{
    uint64_t hash = class->name * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ class->grid) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ class->place) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static int
is_same(const Class *one, const Class *other)
{
    return one->name == other->name && one->grid == other->grid && one->place == other->place;
}

/* The place of a class in the table, or the free one where it belongs. */
static size_t
slot_of(const Table *table, const Class *class)
{
    size_t mask = 2 * table->room - 1, place = hash_of(class) & mask;
    while (table->slots[place] >= 0 && !is_same(&table->classes[table->slots[place]], class)) {
        place = (place + 1) & mask;
    }
    return place;
}

/* Makes room; -1 where there is no memory. */
static int
grow(Table *table)
{
    size_t room = table->room ? 2 * table->room : 256;
    Class *classes = realloc(table->classes, room * sizeof(Class));
    if (classes == NULL) {
        return -1;
    }
    table->classes = classes;
    int64_t *slots = realloc(table->slots, 2 * room * sizeof(int64_t));
    if (slots == NULL) {
        return -1;
    }
    table->slots = slots;
    table->room = room;
    memset(slots, 0xFF, 2 * room * sizeof(int64_t));
    for (size_t i = 0; i < table->known; i++) {
        slots[slot_of(table, &classes[i])] = (int64_t)i;
    }
    return 0;
}

/* The records of one buffer, behind the first `done`; -1 where there is no memory. */
static int
read_chunk(const uint8_t *chunk, size_t records, size_t stride, size_t done, Table *table, Columns *out)
{
    const int64_t kernels = 10; /* CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL */
    for (size_t i = done; i < done + records; i++, chunk += stride) {
        int64_t kind = (int64_t)(word(chunk, W_KIND) & UINT32_MAX);
        int64_t correlation = (int64_t)(word(chunk, W_CORRELATION) >> 32);
        uint64_t yz = word(chunk, W_YZ);
        if (kind != kernels && out->wrong < 0) {
            out->wrong = kind;
        }
        Class class = {
            word(chunk, W_NAME),
            (word(chunk, W_STREAM_X) & ~(uint64_t)UINT32_MAX) | (yz & UINT32_MAX) << 16 | yz >> 32,
            (word(chunk, W_GRAPH) & ~(uint64_t)UINT32_MAX) | (word(chunk, W_PLACE) & UINT32_MAX),
            0,
        };
        if (table->known == table->room && grow(table) < 0) {
            return -1;
        }
        int64_t *slot = &table->slots[slot_of(table, &class)];
        if (*slot < 0) {
            *slot = (int64_t)table->known;
            table->classes[table->known++] = class;
        }
        table->classes[*slot].count++;
        out->start[i] = (int64_t)word(chunk, W_START);
        out->end[i] = (int64_t)word(chunk, W_END);
        out->correlation[i] = correlation;
        out->node[i] = word(chunk, W_NODE);
        out->which[i] = *slot;
        out->in_order &= correlation >= out->last;
        out->last = correlation;
    }
    return 0;
}

enum { READ = 5 };

/* Reads all chunks, which are lent; NULL with an exception. */
static PyObject *
read_all(Py_buffer *chunks, Py_ssize_t count, Py_ssize_t stride, PyObject *const *columns)
{
    Py_ssize_t records = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        records += chunks[i].len / stride;
    }
    Py_buffer views[READ];
    for (int i = 0; i < READ; i++) {
        if (borrow(columns[i], &views[i], records * (Py_ssize_t)sizeof(int64_t), PyBUF_WRITABLE) < 0) {
            give_back(views, i);
            return NULL;
        }
    }
    Table table = {0};
    Columns out = {views[0].buf, views[1].buf, views[2].buf, views[3].buf, views[4].buf, 0, 1, -1};
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    size_t done = 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        size_t these = (size_t)(chunks[i].len / stride);
        failed = read_chunk(chunks[i].buf, these, (size_t)stride, done, &table, &out);
        done += these;
    }
    free(table.slots);
    Py_END_ALLOW_THREADS
    give_back(views, READ);
    PyObject *found = failed ? PyErr_NoMemory()
                             : Py_BuildValue("y#NL", table.known ? (char *)table.classes : "",
                                             (Py_ssize_t)(table.known * sizeof(Class)), PyBool_FromLong(out.in_order),
                                             (long long)out.wrong);
    free(table.classes);
    return found;
}

/* read(chunks, stride, start, end, correlation, which, node): fills the columns with the records of a list of buffers.
 *
 * Returns the classes that `which` numbers, as bytes (four words each: name, grid, graph and device, records); whether the
 * correlation ids never fall; and the kind of the first record that is no kernel's, or -1. */
static PyObject *
read_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 + READ || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "read(chunks, stride, start, end, correlation, which, node)");
        return NULL;
    }
    Py_ssize_t stride = PyLong_AsSsize_t(arguments[1]);
    if (stride < W_LEAST * 8) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "read(): a stride that no record has");
        }
        return NULL;
    }
    Py_ssize_t many = PyList_GET_SIZE(arguments[0]), held = 0;
    Py_buffer *chunks = PyMem_Calloc((size_t)many + 1, sizeof(Py_buffer));
    PyObject *found = NULL;
    if (chunks == NULL) {
        return PyErr_NoMemory();
    }
    while (held < many && borrow(PyList_GET_ITEM(arguments[0], held), &chunks[held], -1, 0) == 0) {
        held++;
    }
    if (held == many) {
        found = read_all(chunks, many, stride, arguments + 2);
    }
    give_back(chunks, held);
    PyMem_Free(chunks);
    return found;
}

static PyMethodDef methods[] = {
    {"read", (PyCFunction)(void (*)(void))read_records, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "reading", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_reading(void)
{
    return PyModuleDef_Init(&definition);
}
