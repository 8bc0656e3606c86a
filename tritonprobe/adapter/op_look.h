/* What the arguments of a call look like, as a row of words: calls that look the same have the same row, and no others.
 *
 * A tensor's type, dtype, device, sizes and strides, and the types and values of plain arguments. Everything else looks
 * like nothing known. A tensor is described by torch itself, through the DLPack exchange API (dlpack.h 1.3): sizes and
 * strides of the tensor, read where they lie; nothing is copied, nothing waits for the GPU.
 */

#ifndef TRITONPROBE_OP_LOOK_H
#define TRITONPROBE_OP_LOOK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MOST_WORDS 160     /* of a call; one that needs more looks like nothing known */
#define MOST_TEXT 128      /* bytes of a text */
#define FREE_REFUSALS 4    /* of tensors that torch could not describe */
#define FIRST_PAUSE 1024   /* tensors: a further refusal costs as much as a thousand calls, so some are not asked about */
#define MOST_DOUBLINGS 10  /* of the pause, one with each refusal */

struct dl_version {
    uint32_t major, minor;
};

struct dl_tensor {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct dl_exchange {
    struct dl_version version;
    struct dl_exchange *older;
    void *allocate, *export_owning, *import_owning;
    int (*describe)(void *tensor, struct dl_tensor *out);
    void *stream;
};

/* How often torch could not describe a tensor, which is an exception of C++ and may take a millisecond; and how many
 * tensors it is not asked about until it is once more: such tensors may come for a time only, as while a model is made. */
struct refusals {
    unsigned count, pause;
};

/* What torch has that can be looked at. All NULL without torch. */
struct look_types {
    PyObject *tensor, *parameter, *dtype; /* types */
    int (*describe)(void *tensor, struct dl_tensor *out);
};

struct look {
    const struct look_types *types;
    struct refusals *refusals;
    Py_ssize_t count; /* words so far */
    uint64_t words[MOST_WORDS];
};

enum { TENSOR = 1, PARAMETER, NONE, BOOL, INT, FLOAT, TEXT, DTYPE };

/* The function that describes a tensor, out of torch's capsule; NULL if this torch has none that we know. */
static int (*describe_of(PyObject *capsule))(void *, struct dl_tensor *)
{
    struct dl_exchange *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (api != NULL && api->version.major > 1) {
        api = api->older;
    }
    if (api == NULL || api->version.major != 1 || api->version.minor < 3) {
        PyErr_Clear();
        return NULL;
    }
    return api->describe;
}

static int
look_at_text(struct look *look, PyObject *text)
{
#if PY_VERSION_HEX < 0x030C0000
    if (PyUnicode_READY(text) < 0) {
        PyErr_Clear();
        return -1;
    }
#endif
    size_t size = (size_t)PyUnicode_GET_LENGTH(text) * PyUnicode_KIND(text);
    if (size > MOST_TEXT) {
        return -1;
    }
    size_t words = (size + 7) / 8;
    if (look->count + 1 + (Py_ssize_t)words > MOST_WORDS) {
        return -1;
    }
    look->words[look->count++] = TEXT | (uint64_t)PyUnicode_KIND(text) << 8 | (uint64_t)size << 16;
    if (words > 0) {
        look->words[look->count + (Py_ssize_t)words - 1] = 0; /* beyond the text's end */
        memcpy(&look->words[look->count], PyUnicode_DATA(text), size);
        look->count += (Py_ssize_t)words;
    }
    return 0;
}

static void
refuse(struct refusals *refusals)
{
    if (refusals->count < FREE_REFUSALS + MOST_DOUBLINGS) {
        refusals->count++;
    }
    if (refusals->count >= FREE_REFUSALS) {
        refusals->pause = FIRST_PAUSE << (refusals->count - FREE_REFUSALS);
    }
}

static int
look_at_tensor(struct look *look, PyObject *tensor, uint64_t kind)
{
    struct dl_tensor found;
    if (look->types->describe == NULL) {
        return -1;
    }
    if (look->refusals->pause > 0) {
        look->refusals->pause--;
        return -1;
    }
    if (look->types->describe(tensor, &found) != 0) { /* sparse, quantised, on no device, of a transform, ... */
        PyErr_Clear();
        refuse(look->refusals);
        return -1;
    }
    Py_ssize_t ndim = found.ndim;
    if (ndim < 0 || look->count + 3 + 2 * ndim > MOST_WORDS) {
        return -1;
    }
    uint64_t *word = &look->words[look->count];
    *word++ = kind | (uint64_t)found.ndim << 8 | (uint64_t)found.code << 32 | (uint64_t)found.bits << 40
              | (uint64_t)found.lanes << 48;
    *word++ = (uint32_t)found.device_type | (uint64_t)(uint32_t)found.device_id << 32;
    if (found.code <= 1 && found.bits == 8) { /* int8 and uint8, or an integer of fewer bits */
        PyObject *dtype = PyObject_GetAttrString(tensor, "dtype");
        if (dtype == NULL) {
            PyErr_Clear();
            return -1;
        }
        int is_one = (PyObject *)Py_TYPE(dtype) == look->types->dtype; /* a mode of torch's may answer in its place */
        *word++ = (uint64_t)(uintptr_t)dtype; /* torch's own, for ever */
        Py_DECREF(dtype);
        if (!is_one) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        *word++ = (uint64_t)found.shape[i];
        *word++ = (uint64_t)found.strides[i];
    }
    look->count = word - look->words;
    return 0;
}

static int
look_at(struct look *look, PyObject *value)
{
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (type == look->types->tensor) {
        return look_at_tensor(look, value, TENSOR);
    }
    if (type == look->types->parameter) {
        return look_at_tensor(look, value, PARAMETER);
    }
    if (PyUnicode_CheckExact(value)) {
        return look_at_text(look, value);
    }
    if (look->count + 2 > MOST_WORDS) {
        return -1;
    }
    uint64_t *word = &look->words[look->count];
    if (value == Py_None) {
        *word++ = NONE;
    }
    else if (PyBool_Check(value)) {
        *word++ = BOOL | (uint64_t)(value == Py_True) << 8;
    }
    else if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0) {
            return -1;
        }
        *word++ = INT;
        *word++ = (uint64_t)number;
    }
    else if (PyFloat_CheckExact(value)) { /* bit by bit: -0.0 is not 0.0, and a NaN is itself */
        double number = PyFloat_AS_DOUBLE(value);
        *word++ = FLOAT;
        memcpy(word++, &number, sizeof(number));
    }
    else if (type == look->types->dtype) {
        *word++ = DTYPE;
        *word++ = (uint64_t)(uintptr_t)value; /* torch's own, for ever */
    }
    else {
        return -1;
    }
    look->count = word - look->words;
    return 0;
}

/* 0, or -1 if there is something unknown among the arguments; never an exception. */
static int
look_at_call(struct look *look, PyObject *const *arguments, Py_ssize_t positional, PyObject *names)
{
    look->words[0] = (uint64_t)positional;
    look->count = 1;
    for (Py_ssize_t i = 0; i < positional; i++) {
        if (look_at(look, arguments[i]) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (look_at_text(look, PyTuple_GET_ITEM(names, i)) < 0 || look_at(look, arguments[positional + i]) < 0) {
            return -1;
        }
    }
    return 0;
}

#endif
