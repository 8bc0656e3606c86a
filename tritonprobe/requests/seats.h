/* How often each request is in a batch, by its address. A table with gaps, at most half of it taken. Holds nobody. */

#ifndef TRITONPROBE_SEATS_H
#define TRITONPROBE_SEATS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

struct seat {
    PyObject *who; /* NULL: nobody */
    Py_ssize_t times;
};

struct seats {
    struct seat *table; /* NULL: there are none */
    size_t mask;        /* one less than there are, which is a power of two */
    size_t taken;
};

static inline size_t
place_of(const struct seats *seats, PyObject *who)
{
    /* Addresses of objects are multiples of 16; what multiplying them has mixed is in the upper half. */
    return (size_t)(((uint64_t)(uintptr_t)who >> 4) * 0x9E3779B97F4A7C15u >> 32) & seats->mask;
}

static inline struct seat *
seat_of(const struct seats *seats, PyObject *who)
{
    size_t at = place_of(seats, who);
    while (seats->table[at].who != NULL && seats->table[at].who != who) {
        at = (at + 1) & seats->mask;
    }
    return &seats->table[at];
}

/* Makes room for so many more. 0, or -1 without memory and with nothing changed; sets no exception. */
static int
make_room(struct seats *seats, size_t more)
{
    size_t size = 64;
    while (size / 2 < seats->taken + more) {
        size *= 2;
    }
    if (seats->table != NULL && size <= seats->mask + 1) {
        return 0;
    }
    struct seats made = {PyMem_Calloc(size, sizeof(struct seat)), size - 1, seats->taken};
    if (made.table == NULL) {
        return -1;
    }
    for (size_t i = 0; seats->table != NULL && i <= seats->mask; i++) {
        if (seats->table[i].who != NULL) {
            *seat_of(&made, seats->table[i].who) = seats->table[i];
        }
    }
    PyMem_Free(seats->table);
    *seats = made;
    return 0;
}

/* Once more, and there is room. Whether it was not there before. */
static inline int
sit_down(struct seats *seats, PyObject *who)
{
    struct seat *seat = seat_of(seats, who);
    if (seat->who == NULL) {
        seat->who = who;
        seats->taken++;
    }
    return seat->times++ == 0;
}

/* Once less. Whether it is not there any more. */
static int
get_up(struct seats *seats, PyObject *who)
{
    struct seat *seat = seat_of(seats, who);
    if (seat->who == NULL || --seat->times > 0) {
        return 0;
    }
    seats->taken--;
    /* Whoever sits behind, and nearer to its place from here, moves up: else nobody would find it any more. */
    size_t gap = (size_t)(seat - seats->table);
    for (size_t at = (gap + 1) & seats->mask; seats->table[at].who != NULL; at = (at + 1) & seats->mask) {
        size_t away = (at - place_of(seats, seats->table[at].who)) & seats->mask;
        if (away >= ((at - gap) & seats->mask)) {
            seats->table[gap] = seats->table[at];
            gap = at;
        }
    }
    seats->table[gap] = (struct seat){NULL, 0};
    return 1;
}

static inline Py_ssize_t
times_of(const struct seats *seats, PyObject *who)
{
    return seats->table == NULL ? 0 : seat_of(seats, who)->times;
}

static void
free_seats(struct seats *seats)
{
    PyMem_Free(seats->table);
    *seats = (struct seats){NULL, 0, 0};
}

#endif
