/* What _filters.c gives to the table of _kernels.c. */
#ifndef MILLRACE_FILTERS_H
#define MILLRACE_FILTERS_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *kernel_shape_of(PyObject *self, PyObject *filter);
PyObject *kernel_fitting_filters(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *kernel_find_filters(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *kernel_read_filters(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *kernel_new_topics(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
