/* The loops of filters.py in C: the same functions, the same answers, no state. See there for what each
 * promises; tests/unit/kernels compares the two on random input. Part of the extension of _kernels.c. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_filters.h"

typedef unsigned char u8;

/* Room for a filter that is being written; the heap serves the few that are longer. */
#define ROOM 512

PyObject *kernel_shape_of(PyObject *self, PyObject *filter) {
  (void)self;
  Py_ssize_t size, level = 0, n = 0;
  if (!PyUnicode_Check(filter)) return PyErr_Format(PyExc_TypeError, "shape_of(filter: str)");
  const char *text = PyUnicode_AsUTF8AndSize(filter, &size);
  if (!text) return NULL;
  if (!memchr(text, '+', (size_t)size) && !memchr(text, '#', (size_t)size)) Py_RETURN_NONE;
  char local[ROOM], *room = size < ROOM ? local : PyMem_Malloc((size_t)size + 1);
  if (!room) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i <= size; i++) {
    if (i < size && text[i] != '/') continue;
    if (i == level + 1 && (text[level] == '+' || text[level] == '#')) room[n++] = text[level];
    if (i < size) room[n++] = '/';
    level = i + 1;
  }
  PyObject *shape = PyUnicode_DecodeASCII(room, n, NULL);
  if (room != local) PyMem_Free(room);
  return shape;
}

/* The filter of this shape that takes the topic, written to `w`, which has room for both; its size, or -1. */
static Py_ssize_t fit(const char *topic, Py_ssize_t topic_n, const char *shape, Py_ssize_t shape_n, char *w) {
  const char *t = topic, *topic_end = topic + topic_n, *s = shape, *shape_end = shape + shape_n;
  char *begin = w;
  int is_over = 0; /* the topic has no further level */
  if (shape_n && *s != '/' && topic_n && *t == '$') return -1;
  for (;;) {
    char mark = s < shape_end && *s != '/' ? *s++ : 0;
    if (mark == '#' && s == shape_end) {
      *w++ = '#';
      return w - begin;
    }
    if (is_over) return -1;
    const char *slash = memchr(t, '/', (size_t)(topic_end - t)), *end = slash ? slash : topic_end;
    if (mark) *w++ = mark;
    else {
      memcpy(w, t, (size_t)(end - t));
      w += end - t;
    }
    is_over = !slash;
    t = slash ? slash + 1 : topic_end;
    if (s == shape_end) return is_over ? w - begin : -1;
    s++; /* the slash */
    *w++ = '/';
  }
}

/* Calls for the topic and each filter that takes it: the text goes to `found`, or with `filters` what is there. */
static int add_fit(PyObject *found, PyObject *filters, PyObject *text) {
  if (!filters) return PyList_Append(found, text);
  PyObject *value = PyDict_GetItemWithError(filters, text);
  if (!value) return PyErr_Occurred() ? -1 : 0;
  return PyList_Append(found, value);
}

static PyObject *fit_all(PyObject *topic, PyObject *shapes, PyObject *filters) {
  Py_ssize_t topic_n, shape_n, room_n = ROOM;
  const char *text = PyUnicode_AsUTF8AndSize(topic, &topic_n);
  if (!text) return NULL;
  char local[ROOM], *room = local;
  PyObject *found = PyList_New(0);
  if (!found || add_fit(found, filters, topic) < 0) goto failed;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shapes); i++) {
    PyObject *item = PyTuple_GET_ITEM(shapes, i);
    const char *shape = PyUnicode_Check(item) ? PyUnicode_AsUTF8AndSize(item, &shape_n) : NULL;
    if (!shape) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "shapes are str");
      goto failed;
    }
    if (topic_n + shape_n + 1 > room_n) {
      if (room != local) PyMem_Free(room);
      room_n = topic_n + shape_n + 1;
      room = PyMem_Malloc((size_t)room_n);
      if (!room) {
        room = local;
        PyErr_NoMemory();
        goto failed;
      }
    }
    Py_ssize_t n = fit(text, topic_n, shape, shape_n, room);
    if (n < 0) continue;
    PyObject *filter = PyUnicode_DecodeUTF8(room, n, NULL);
    int is_added = filter ? add_fit(found, filters, filter) : -1;
    Py_XDECREF(filter);
    if (is_added < 0) goto failed;
  }
  if (room != local) PyMem_Free(room);
  return found;
failed:
  if (room != local) PyMem_Free(room);
  Py_XDECREF(found);
  return NULL;
}

PyObject *kernel_fitting_filters(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 2 || !PyUnicode_Check(args[0]) || !PyTuple_CheckExact(args[1]))
    return PyErr_Format(PyExc_TypeError, "fitting_filters(topic: str, shapes: tuple)");
  return fit_all(args[0], args[1], NULL);
}

PyObject *kernel_find_filters(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 3 || !PyUnicode_Check(args[0]) || !PyTuple_CheckExact(args[1]) || !PyDict_CheckExact(args[2]))
    return PyErr_Format(PyExc_TypeError, "find_filters(topic: str, shapes: tuple, filters: dict)");
  return fit_all(args[0], args[1], args[2]);
}

/* Whether every wildcard fills its level, and # is the last one. */
static int is_in_form(const char *text, Py_ssize_t n) {
  for (Py_ssize_t i = 0; i < n; i++) {
    if (text[i] != '+' && text[i] != '#') continue;
    if (i && text[i - 1] != '/') return 0;
    if (i + 1 < n && (text[i] == '#' || text[i + 1] != '/')) return 0;
  }
  return 1;
}

/* A text of UTF-8 without U+0000; NULL without an error where it is none. */
static PyObject *text_of(const char *data, Py_ssize_t n) {
  if (memchr(data, 0, (size_t)n)) return NULL;
  PyObject *text = PyUnicode_DecodeUTF8(data, n, NULL);
  if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
  return text;
}

PyObject *kernel_read_filters(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 4 || !PyBytes_Check(args[0]))
    return PyErr_Format(PyExc_TypeError, "read_filters(body: bytes, pos, has_options, count_max)");
  const u8 *d = (const u8 *)PyBytes_AS_STRING(args[0]);
  Py_ssize_t size = PyBytes_GET_SIZE(args[0]), pos = PyLong_AsSsize_t(args[1]);
  int has_options = PyObject_IsTrue(args[2]);
  Py_ssize_t left = PyLong_AsSsize_t(args[3]);
  if (PyErr_Occurred()) return NULL;
  if (pos < 0 || pos > size) return PyErr_Format(PyExc_ValueError, "position outside the data");
  PyObject *found = PyList_New(0);
  if (!found) return NULL;
  for (; left > 0 && pos + 2 < size; left--) {
    Py_ssize_t start = pos + 2, end = start + (d[pos] << 8 | d[pos + 1]), after = end + has_options;
    const char *at = (const char *)d + start;
    if (after > size || end == start || !is_in_form(at, end - start)) break;
    if (end - start >= 7 && !memcmp(at, "$share/", 7)) break;
    PyObject *text = text_of(at, end - start);
    if (!text && !PyErr_Occurred()) break;
    PyObject *options = text && has_options ? PyLong_FromLong(d[end]) : NULL;
    int is_added = text && (options || !has_options) && PyList_Append(found, text) == 0 &&
                   (!options || PyList_Append(found, options) == 0);
    Py_XDECREF(text);
    Py_XDECREF(options);
    if (!is_added) {
      Py_DECREF(found);
      return NULL;
    }
    pos = after;
  }
  return Py_BuildValue("(nN)", pos, found);
}

/* Where the topic of the PUBLISH at pos begins and ends, and the packet ends; 0 where its lengths are broken. */
static int topic_bounds(const u8 *d, Py_ssize_t pos, Py_ssize_t size, Py_ssize_t *start, Py_ssize_t *after,
                        Py_ssize_t *end) {
  Py_ssize_t body = pos + 1, value = 0;
  for (int shift = 0; body < size && shift < 28; shift += 7) {
    u8 byte = d[body++];
    value |= (Py_ssize_t)(byte & 127) << shift;
    if (byte > 127) continue;
    *end = body + value;
    if ((!byte && shift) || body + 2 > *end || *end > size) return 0;
    *start = body + 2;
    *after = *start + (d[body] << 8 | d[body + 1]);
    return *after <= *end;
  }
  return 0;
}

static int is_good_topic(const char *topic, Py_ssize_t n, Py_ssize_t levels_max, Py_ssize_t bytes_max) {
  Py_ssize_t slashes = 0;
  if (!n || n > bytes_max) return 0;
  for (Py_ssize_t i = 0; i < n; i++) {
    if (topic[i] == '+' || topic[i] == '#') return 0;
    slashes += topic[i] == '/';
  }
  return slashes < levels_max;
}

PyObject *kernel_new_topics(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 6 || !PyBytes_Check(args[0]) || !PyDict_Check(args[2]))
    return PyErr_Format(PyExc_TypeError,
                        "new_topics(data: bytes, pos, routes: dict, levels_max, bytes_max, count_max)");
  const u8 *d = (const u8 *)PyBytes_AS_STRING(args[0]);
  Py_ssize_t size = PyBytes_GET_SIZE(args[0]), pos = PyLong_AsSsize_t(args[1]), start, after, end;
  Py_ssize_t levels_max = PyLong_AsSsize_t(args[3]), bytes_max = PyLong_AsSsize_t(args[4]);
  Py_ssize_t count_max = PyLong_AsSsize_t(args[5]);
  if (PyErr_Occurred()) return NULL;
  if (pos < 0 || pos > size) return PyErr_Format(PyExc_ValueError, "position outside the data");
  PyObject *found = PyList_New(0);
  if (!found) return NULL;
  for (; PyList_GET_SIZE(found) < count_max && size - pos >= 2; pos = end) {
    if (d[pos] != 0x30 && d[pos] != 0x31 && d[pos] != 0x32 && d[pos] != 0x34) break;
    if (!topic_bounds(d, pos, size, &start, &after, &end)) break;
    const char *topic = (const char *)d + start;
    PyObject *key = PyBytes_FromStringAndSize(topic, after - start);
    int is_known = key ? PyDict_Contains(args[2], key) : -1;
    Py_XDECREF(key);
    if (is_known < 0) goto failed;
    if (is_known && !PyList_GET_SIZE(found)) break;
    if (is_known) continue;
    if (!is_good_topic(topic, after - start, levels_max, bytes_max)) break;
    PyObject *text = text_of(topic, after - start);
    if (!text && !PyErr_Occurred()) break;
    int is_added = text ? PyList_Append(found, text) : -1;
    Py_XDECREF(text);
    if (is_added < 0) goto failed;
  }
  return found;
failed:
  Py_DECREF(found);
  return NULL;
}
