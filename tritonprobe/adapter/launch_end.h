/* What `launch_end.c` does for an op that is called in C (`op_call.c`): its module's `for_ops` is a capsule of these. */

#ifndef TRITONPROBE_LAUNCH_END_H
#define TRITONPROBE_LAUNCH_END_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_GIL_DISABLED
#error "the counts and lists here rely on the interpreter lock"
#endif

#define LAUNCH_END_OPS "launch_end.for_ops"

struct launch_end_ops {
    /* An op begins on this thread; `any` is the list of its watch. How many launches came back before. -1 with an
     * exception, and then nothing began. */
    int (*begin)(PyObject *any, long long *before);
    /* The innermost one ends. Whether a launch raised meanwhile. */
    int (*finish)(PyObject *any);
};

#endif
