/* What CUPTI calls: for a buffer, with a full one, and to be detached. No Python runs here: a callback that waited for
 * the interpreter's lock inside one of CUPTI's own could stand still for ever with a thread that launches while it holds
 * that lock.
 *
 * Buffers lie in one block of memory that is never freed, for CUPTI knows it. A buffer is free, lent to CUPTI, full, or
 * taken to be read, and changes state by one atomic step; nothing waits. The functions that Python calls need its lock, as ever.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

enum { FREE, LENT, FULL, TAKEN };

typedef struct {
    int32_t state;
    uint64_t used;  /* bytes */
    uint64_t place; /* in the order in which buffers came back */
} Buffer;

static uint8_t *memory;
static size_t size, number;
static Buffer *buffers;
static uint64_t turn, lent, back, declined;

static void
requested(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
    *buffer = NULL;
    *bytes = *most_records = 0;
    for (size_t i = 0; i < number; i++) {
        int32_t expected = FREE;
        if (__atomic_compare_exchange_n(&buffers[i].state, &expected, LENT, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            __atomic_add_fetch(&lent, 1, __ATOMIC_RELAXED);
            *buffer = memory + i * size;
            *bytes = size;
            return;
        }
    }
    __atomic_add_fetch(&declined, 1, __ATOMIC_RELAXED);
}

static void
completed(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t used)
{
    (void)context;
    (void)stream;
    (void)bytes;
    if (buffer < memory || buffer >= memory + number * size) {
        return;
    }
    Buffer *found = &buffers[(size_t)(buffer - memory) / size];
    found->used = used;
    found->place = __atomic_add_fetch(&turn, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&found->state, used ? FULL : FREE, __ATOMIC_RELEASE);
    __atomic_add_fetch(&back, 1, __ATOMIC_RELEASE);
}

/* cuptiFinalize, when it is asked for: CUPTI's documentation wants it called from the exit of a call of CUDA's API. */
typedef int (*Finalize)(void);
static Finalize finalize;
static int wanted;      /* 1 until the callback has called it */
static int answer = -1;

static void
leave(void *user, int domain, uint32_t event, const void *data)
{
    const int API_EXIT = 1; /* CUPTI_API_EXIT; the site is the first field of CUpti_CallbackData */
    (void)user;
    (void)domain;
    (void)event;
    int expected = 1;
    if (*(const int *)data == API_EXIT
        && __atomic_compare_exchange_n(&wanted, &expected, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        __atomic_store_n(&answer, finalize(), __ATOMIC_RELEASE);
    }
}

/* leave_with(address): the next exit of a call that `LEAVE` is told of calls the function there. */
static PyObject *
leave_with(PyObject *module, PyObject *address)
{
    (void)module;
    size_t place = PyLong_AsSize_t(address);
    if (place == (size_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    finalize = (Finalize)(uintptr_t)place;
    __atomic_store_n(&answer, -1, __ATOMIC_RELAXED);
    __atomic_store_n(&wanted, place != 0, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* left(): what it returned, or -1 if it was not called; and from now on it will not be. */
static PyObject *
left(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    __atomic_store_n(&wanted, 0, __ATOMIC_RELEASE);
    return PyLong_FromLong(__atomic_load_n(&answer, __ATOMIC_ACQUIRE));
}

/* set_up(size, number): so many buffers of so many bytes. The first call decides; later ones must say the same. */
static PyObject *
set_up(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_ssize_t bytes, many;
    if (!PyArg_ParseTuple(arguments, "nn", &bytes, &many)) {
        return NULL;
    }
    if (memory != NULL) {
        if ((size_t)bytes != size || (size_t)many != number) {
            PyErr_SetString(PyExc_ValueError, "the buffers are set up already, with another size or number");
            return NULL;
        }
        Py_RETURN_NONE;
    }
    if (bytes < 8 || bytes % 8 || many < 1 || many > PY_SSIZE_T_MAX / bytes) {
        PyErr_SetString(PyExc_ValueError, "set_up(size, number): a multiple of 8 bytes, and at least one buffer");
        return NULL;
    }
    uint8_t *block = calloc((size_t)many, (size_t)bytes); /* pages that are never lent are never touched */
    Buffer *states = calloc((size_t)many, sizeof(Buffer));
    if (block == NULL || states == NULL) {
        free(block);
        free(states);
        return PyErr_NoMemory();
    }
    memory = block;
    buffers = states;
    size = (size_t)bytes;
    number = (size_t)many;
    Py_RETURN_NONE;
}

/* take(): views of the full buffers' bytes, in the order in which they came back. Until `put_back()` they stay as they are. */
static PyObject *
take(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *taken = PyList_New(0);
    uint64_t after = 0;
    while (taken != NULL) {
        Buffer *next = NULL;
        for (size_t i = 0; i < number; i++) {
            if (__atomic_load_n(&buffers[i].state, __ATOMIC_ACQUIRE) == FULL && buffers[i].place > after
                && (next == NULL || buffers[i].place < next->place)) {
                next = &buffers[i];
            }
        }
        if (next == NULL) {
            break;
        }
        after = next->place;
        uint8_t *start = memory + (size_t)(next - buffers) * size;
        PyObject *view = PyMemoryView_FromMemory((char *)start, (Py_ssize_t)next->used, PyBUF_READ);
        if (view == NULL || PyList_Append(taken, view) < 0) {
            Py_CLEAR(taken);
        }
        Py_XDECREF(view);
        __atomic_store_n(&next->state, TAKEN, __ATOMIC_RELEASE);
    }
    return taken;
}

/* put_back(): the buffers that were taken are free again, and what views of them show is no longer theirs. */
static PyObject *
put_back(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    for (size_t i = 0; i < number; i++) {
        int32_t expected = TAKEN;
        __atomic_compare_exchange_n(&buffers[i].state, &expected, FREE, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    Py_RETURN_NONE;
}

/* counts(): buffers lent so far, buffers that CUPTI holds, requests declined for want of a free one. */
static PyObject *
counts(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    uint64_t returned = __atomic_load_n(&back, __ATOMIC_ACQUIRE);
    uint64_t given = __atomic_load_n(&lent, __ATOMIC_ACQUIRE);
    uint64_t refused = __atomic_load_n(&declined, __ATOMIC_ACQUIRE);
    return Py_BuildValue("KKK", (unsigned long long)given, (unsigned long long)(given - returned),
                         (unsigned long long)refused);
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, NULL},
    {"take", take, METH_NOARGS, NULL},
    {"put_back", put_back, METH_NOARGS, NULL},
    {"counts", counts, METH_NOARGS, NULL},
    {"leave_with", leave_with, METH_O, NULL},
    {"left", left, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
add_addresses(PyObject *module)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } found[] = {
        {"REQUESTED", (void (*)(void))requested},
        {"COMPLETED", (void (*)(void))completed},
        {"LEAVE", (void (*)(void))leave},
    };
    for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++) {
        PyObject *address = PyLong_FromSize_t((size_t)(uintptr_t)found[i].function);
        if (address == NULL || PyModule_AddObject(module, found[i].name, address) < 0) {
            Py_XDECREF(address);
            return -1;
        }
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_addresses},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "callbacks", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_callbacks(void)
{
    return PyModuleDef_Init(&definition);
}
