/* What calm steps took of their requests: by the meter, or, where they ran beside others, of each one by itself. */

#ifndef TRITONPROBE_METER_H
#define TRITONPROBE_METER_H

#include "batches.h"
#include <limits.h>

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

/* A calm step ran beside another one: what they share counts once, in the figures of each request. Those whose figures
 * wait for older steps are added to `waiting`. 0, or -1 with MemoryError. */
static int
count_beside(const Batches *self, PyObject *given, long long start, long long end, int overlaps, PyObject *waiting)
{
    PyObject *since = PyLong_FromLongLong(start), *until = PyLong_FromLongLong(end);
    int is_good = since != NULL && until != NULL;
    struct entries entries = entries_of(given);
    for (Py_ssize_t i = 0; is_good && i < entries.count; i++) {
        PyObject *request = entries.items[i];
        if (!is_request(self, request)) {
            continue;
        }
        if (overlaps) {
            put_in(request, self->pipelined, Py_True);
        }
        PyObject *windows = *slot_of(request, self->windows);
        if (windows != NULL && PyList_CheckExact(windows) && PyList_GET_SIZE(windows) > 0) {
            is_good = PyList_Append(waiting, request) == 0;
            continue;
        }
        long long from = number_in(request, self->executed_to, 0);
        from = from < start ? start : from;
        if (from < end) {
            PyObject *executed = PyLong_FromLongLong(number_in(request, self->executed, 0) + end - from);
            is_good = executed != NULL;
            if (is_good) {
                put_in(request, self->executed, executed);
                put_in(request, self->executed_to, until);
                Py_DECREF(executed);
            }
        }
        if (start < number_in(request, self->first_step, LLONG_MAX)) {
            put_in(request, self->first_step, since);
        }
    }
    Py_XDECREF(since);
    Py_XDECREF(until);
    return is_good ? 0 : -1;
}

#endif
