/* Two batches laid beside each other: who left, and who came. By addresses; looks at no request, and runs no Python code.
 *
 * Each entry of both is either passed over in both, or counted in what left or came. So what is said is right whatever
 * the order, and however often somebody is in a batch; the order only decides how much is said.
 */

#ifndef TRITONPROBE_DIFFER_H
#define TRITONPROBE_DIFFER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { AHEAD = 4, FEW = 32 };

/* Some of the entries of a batch. */
struct entries {
    PyObject *const *items;
    Py_ssize_t count;
};

struct few {
    PyObject *items[FEW];
    Py_ssize_t count;
};

static inline struct entries
behind(struct entries entries, Py_ssize_t count)
{
    return (struct entries){entries.items + count, entries.count - count};
}

static inline struct entries
entries_of(PyObject *list_or_tuple)
{
    return (struct entries){PySequence_Fast_ITEMS(list_or_tuple), PySequence_Fast_GET_SIZE(list_or_tuple)};
}

/* What stands beside a request is not looked at. */
static inline PyObject *
without_beside(PyObject *entry)
{
    return PyTuple_CheckExact(entry) && PyTuple_GET_SIZE(entry) > 0 ? PyTuple_GET_ITEM(entry, 0) : entry;
}

/* Whether an engine's entry is that one of another batch. An entry that is need not be fetched to be sure of it. */
static inline int
is_it(PyObject *entry, PyObject *other)
{
    return entry == other || without_beside(entry) == other;
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

/* How many entries two batches begin with together; the `given` one is an engine's. */
static inline Py_ssize_t
in_common(struct entries last, struct entries given)
{
    Py_ssize_t size = last.count < given.count ? last.count : given.count, i = 0;
    while (i < size && is_it(given.items[i], last.items[i])) {
        i++;
    }
    return i;
}

/* Whether both are the same, be it by ids that are other objects than those of the last time. */
static inline int
are_same(struct entries last, struct entries given)
{
    for (Py_ssize_t i = in_common(last, given); i < last.count && i < given.count; i++) {
        if (!is_it(given.items[i], last.items[i])
            && !is_same_id(without_beside(given.items[i]), last.items[i])) {
            return 0;
        }
    }
    return last.count == given.count;
}

/* Puts the first entries among the few, and into `out` if there is one, and passes them over. 0, or -1 if that is more
 * than few. */
static int
put(struct few *few, struct entries *entries, Py_ssize_t count, PyObject ***out)
{
    if (count > FEW - few->count) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *entry = few->items[few->count++] = without_beside(entries->items[i]);
        if (*out != NULL) {
            *(*out)++ = entry;
        }
    }
    *entries = behind(*entries, count);
    return 0;
}

/* How many entries come before the one that is `wanted`, if at most `AHEAD` do; else 0, as for the first one. */
static inline Py_ssize_t
before(struct entries entries, PyObject *wanted)
{
    for (Py_ssize_t i = 1; i < entries.count && i <= AHEAD; i++) {
        if (is_it(entries.items[i], wanted)) {
            return i;
        }
    }
    return 0;
}

/* Adds to the few who left `old` and who came into `new`, an engine's, whose requests are written to `out` unless that is
 * NULL. Where the two differ, somebody has taken another one's place, or has left, or has come. 0, or -1 if those are too
 * many. */
static int
differ(struct entries old, struct entries new, struct few *left, struct few *came, PyObject **out)
{
    PyObject **none = NULL;
    for (;;) {
        Py_ssize_t both = in_common(old, new);
        if (out != NULL && both > 0) {
            memcpy(out, old.items, (size_t)both * sizeof(PyObject *));
            out += both;
        }
        old = behind(old, both);
        new = behind(new, both);
        if (old.count == 0 || new.count == 0) {
            return put(left, &old, old.count, &none) < 0 || put(came, &new, new.count, &out) < 0 ? -1 : 0;
        }
        Py_ssize_t gone = 0, more = 0;
        if (old.count == 1 || new.count == 1 || !is_it(new.items[1], old.items[1])) {
            gone = before(old, without_beside(*new.items));
            more = gone == 0 ? before(new, *old.items) : 0;
        }
        if (gone == 0 && more == 0) {
            gone = more = 1;
        }
        if (put(left, &old, gone, &none) < 0 || put(came, &new, more, &out) < 0) {
            return -1;
        }
    }
}

#endif
