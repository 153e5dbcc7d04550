/* What _blocks.c gives to the table of _kernels.c. */
#ifndef MILLRACE_BLOCKS_H
#define MILLRACE_BLOCKS_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *kernel_scan_rows(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *kernel_first_bytes(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *kernel_join_body(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
