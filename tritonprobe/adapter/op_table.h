/* What is known of calls that look alike (`op_look.h`): the name of their bucket, the cell of their count, and whether they
 * are supported. Bounded. */

#ifndef TRITONPROBE_OP_TABLE_H
#define TRITONPROBE_OP_TABLE_H

#include "op_look.h"

struct known {
    uint64_t hash;
    PyObject *where, *cell; /* the cell is NULL until the first count */
    int is_supported; /* if that is remembered */
    Py_ssize_t count;
    uint64_t words[];
};

struct table {
    struct known **slots; /* open addressing; at most half of them taken */
    struct known *last;   /* the one found last: most ops are called alike again and again */
    size_t size, taken, limit;
};

static uint64_t
hash_of(const struct look *look)
{
    uint64_t hash = (uint64_t)look->count;
    for (Py_ssize_t i = 0; i < look->count; i++) {
        hash = (hash ^ look->words[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

static int
is_alike(const struct known *known, const struct look *look)
{
    return known->count == look->count && memcmp(known->words, look->words, (size_t)look->count * 8) == 0;
}

/* The slot where it is, or would be. */
static struct known **
slot_of(const struct table *table, const struct look *look, uint64_t hash)
{
    size_t at = (size_t)hash & (table->size - 1);
    while (table->slots[at] != NULL && !(table->slots[at]->hash == hash && is_alike(table->slots[at], look))) {
        at = (at + 1) & (table->size - 1);
    }
    return &table->slots[at];
}

static struct known *
find(struct table *table, const struct look *look)
{
    if (table->last != NULL && is_alike(table->last, look)) {
        return table->last;
    }
    struct known *found = table->size == 0 ? NULL : *slot_of(table, look, hash_of(look));
    if (found != NULL) {
        table->last = found;
    }
    return found;
}

static void
forget_all(struct table *table)
{
    struct known **slots = table->slots;
    size_t size = table->size;
    table->slots = NULL;
    table->last = NULL;
    table->size = table->taken = 0;
    for (size_t i = 0; i < size; i++) { /* the table is whole and empty while the objects go */
        if (slots[i] != NULL) {
            Py_DECREF(slots[i]->where);
            Py_XDECREF(slots[i]->cell);
            PyMem_Free(slots[i]);
        }
    }
    PyMem_Free(slots);
}

static int
grow(struct table *table)
{
    size_t size = table->size == 0 ? 16 : table->size * 2;
    struct known **slots = PyMem_Calloc(size, sizeof(*slots));
    if (slots == NULL) {
        return -1;
    }
    for (size_t i = 0; i < table->size; i++) {
        struct known *known = table->slots[i];
        if (known != NULL) {
            size_t at = (size_t)known->hash & (size - 1);
            while (slots[at] != NULL) {
                at = (at + 1) & (size - 1);
            }
            slots[at] = known;
        }
    }
    PyMem_Free(table->slots);
    table->slots = slots;
    table->size = size;
    return 0;
}

/* Remembers the bucket of what looks like this; without memory for it, does not. */
static void
keep(struct table *table, const struct look *look, PyObject *where)
{
    if (table->taken >= table->limit) {
        forget_all(table);
    }
    if (2 * (table->taken + 1) > table->size && grow(table) < 0) {
        return;
    }
    uint64_t hash = hash_of(look);
    struct known **slot = slot_of(table, look, hash);
    if (*slot != NULL) {
        return; /* another thread was faster */
    }
    struct known *known = PyMem_Malloc(sizeof(*known) + (size_t)look->count * 8);
    if (known == NULL) {
        return;
    }
    known->hash = hash;
    Py_INCREF(where);
    known->where = where;
    known->cell = NULL;
    known->is_supported = 0;
    known->count = look->count;
    memcpy(known->words, look->words, (size_t)look->count * 8);
    *slot = known;
    table->taken++;
}

#endif
