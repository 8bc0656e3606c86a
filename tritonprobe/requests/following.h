/* An engine's batch read: the last one, or what has become of it, or another one. */

#ifndef TRITONPROBE_FOLLOWING_H
#define TRITONPROBE_FOLLOWING_H

#include "batches.h"

enum { ROOM = 64 };

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
    if (entries.count > 0) {
        memcpy(((PyListObject *)given)->ob_item, self->scratch, (size_t)entries.count * sizeof(PyObject *));
    }
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

#endif
