/* The byte loops of pure.py and packing.py in C: the same functions, the same answers, no state.
 * Those of filters.py are in _filters.c, and those of blocks.py that read and make rows in _blocks.c.
 *
 * Every length is checked before it is read. Whatever is unusual ends the scan, and the codec decides.
 * See there for what each function promises; tests/unit/kernels compares the two on random input.
 */
#define PY_SSIZE_T_CLEAN
/* As in limits.py; the twins are compared. */
#define USER_PROPERTIES_MAX 1000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_blocks.h"
#include "_filters.h"

typedef unsigned char u8;

/* Body start and end of the packet at pos; 0 when the length is incomplete, malformed or not minimal. */
static inline int length_at(const u8 *d, Py_ssize_t pos, Py_ssize_t size, Py_ssize_t *body, Py_ssize_t *end) {
  Py_ssize_t p = pos + 1;
  uint32_t value = 0;
  for (int shift = 0; shift < 28; shift += 7) {
    if (p >= size) return 0;
    u8 byte = d[p++];
    value |= (uint32_t)(byte & 127) << shift;
    if (byte < 128) {
      if (!byte && shift) return 0;
      *body = p;
      *end = p + (Py_ssize_t)value;
      return 1;
    }
  }
  return 0;
}

/* MQTT 1.5.4: well-formed UTF-8 without U+0000 and without surrogates. */
static int text_ok(const u8 *d, Py_ssize_t n) {
  Py_ssize_t i = 0;
  while (i < n) {
    u8 c = d[i];
    if (c == 0) return 0;
    if (c < 0x80) {
      i++;
      continue;
    }
    int more;
    u8 low = 0x80, high = 0xBF;
    if (c >= 0xC2 && c <= 0xDF) more = 1;
    else if (c >= 0xE0 && c <= 0xEF) {
      more = 2;
      if (c == 0xE0) low = 0xA0;
      if (c == 0xED) high = 0x9F;
    } else if (c >= 0xF0 && c <= 0xF4) {
      more = 3;
      if (c == 0xF0) low = 0x90;
      if (c == 0xF4) high = 0x8F;
    } else return 0;
    if (i + more >= n) return 0;
    if (d[i + 1] < low || d[i + 1] > high) return 0;
    for (int k = 2; k <= more; k++)
      if ((d[i + k] & 0xC0) != 0x80) return 0;
    i += more + 1;
  }
  return 1;
}

/* Whether the property block at pos may be forwarded untouched. */
static int forwardable(const u8 *d, Py_ssize_t pos, Py_ssize_t end) {
  Py_ssize_t stop;
  uint64_t seen = 0;
  int user = 0;
  if (!length_at(d, pos - 1, end, &pos, &stop) || stop > end) return 0;
  while (pos < stop) {
    u8 kind = d[pos++];
    if (kind == 0x26) {
      if (++user > USER_PROPERTIES_MAX) return 0;
    } else {
      if ((kind != 0x01 && kind != 0x03 && kind != 0x08 && kind != 0x09) || (seen & (1ull << kind))) return 0;
      seen |= 1ull << kind;
    }
    if (kind == 0x01) {
      if (pos >= stop || d[pos] > 1) return 0;
      pos++;
      continue;
    }
    for (int k = kind == 0x26 ? 2 : 1; k; k--) {
      if (pos + 2 > stop) return 0;
      Py_ssize_t n = d[pos] << 8 | d[pos + 1];
      const u8 *text = d + pos + 2;
      if (pos + 2 + n > stop) return 0;
      if (k == 2 && n >= 9 && !memcmp(text, "millrace-", 9)) return 0;
      if (kind == 0x08 && (!n || memchr(text, '+', n) || memchr(text, '#', n))) return 0;
      if (kind != 0x09 && !text_ok(text, n)) return 0;
      pos += 2 + n;
    }
  }
  return 1;
}

static int append_span(PyObject *spans, long kind, PyObject *subject, long ack, Py_ssize_t start, Py_ssize_t end,
                       Py_ssize_t count) {
  PyObject *values[5] = {PyLong_FromLong(kind), NULL, PyLong_FromSsize_t(start), PyLong_FromSsize_t(end),
                         PyLong_FromSsize_t(count)};
  int ok = 0;
  if (subject) {
    Py_INCREF(subject);
    values[1] = subject;
  } else values[1] = PyLong_FromLong(ack);
  for (int k = 0; k < 5; k++) {
    if (!values[k] || (ok == 0 && PyList_Append(spans, values[k]) < 0)) ok = -1;
    Py_XDECREF(values[k]);
  }
  return ok;
}

static PyObject *kernel_scan(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 5 || !PyBytes_Check(args[0]) || !PyDict_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "scan(data: bytes, pos, routes: dict, v5, packet_bytes_max)");
    return NULL;
  }
  const u8 *d = (const u8 *)PyBytes_AS_STRING(args[0]);
  Py_ssize_t size = PyBytes_GET_SIZE(args[0]), pos = PyLong_AsSsize_t(args[1]);
  int v5 = PyObject_IsTrue(args[3]);
  Py_ssize_t bytes_max = PyLong_AsSsize_t(args[4]);
  if (PyErr_Occurred()) return NULL;
  if (pos < 0 || pos > size) {
    PyErr_SetString(PyExc_ValueError, "position outside the data");
    return NULL;
  }
  PyObject *spans = PyList_New(0), *subject = NULL; /* subject is borrowed: the routes dict holds it */
  if (!spans) return NULL;
  u8 kind = 0;
  long first_id = 0;
  Py_ssize_t start = 0, count = 0;
  const u8 *last_topic = NULL;
  Py_ssize_t last_topic_n = -1;
  PyObject *last_route = NULL;
  while (size - pos >= 2) {
    u8 first = d[pos];
    if (first == 0x30 || first == 0x32 || first == 0x34) {
      Py_ssize_t body, end;
      if (!length_at(d, pos, size, &body, &end) || end > size || end - pos > bytes_max || body + 2 > end) break;
      Py_ssize_t n = d[body] << 8 | d[body + 1], after = body + 2 + n;
      const u8 *topic = d + body + 2;
      if (after > end) break;
      PyObject *route;
      if (n == last_topic_n && !memcmp(topic, last_topic, n)) route = last_route;
      else {
        PyObject *key = PyBytes_FromStringAndSize((const char *)topic, n);
        if (!key) goto fail;
        route = PyDict_GetItemWithError(args[2], key);
        Py_DECREF(key);
        if (!route) {
          if (PyErr_Occurred()) goto fail;
          break;
        }
        last_topic = topic;
        last_topic_n = n;
        last_route = route;
      }
      if (first != 0x30) {
        if (after + 2 > end || !(d[after] | d[after + 1])) break;
        after += 2;
      }
      if (v5 && (after >= end || (d[after] && !forwardable(d, after, end)))) break;
      if (count && (first != kind || route != subject)) {
        if (append_span(spans, kind, subject, first_id, start, pos, count) < 0) goto fail;
        count = 0;
      }
      if (!count) {
        kind = first;
        subject = route;
        start = pos;
      }
      count++;
      pos = end;
    } else if (first == 0x40 || first == 0x50 || first == 0x62 || first == 0x70) {
      if (size - pos < 4 || d[pos + 1] != 2) break;
      long id = d[pos + 2] << 8 | d[pos + 3];
      if (!id) break;
      if (count && (first != kind || id != first_id + count)) {
        if (append_span(spans, kind, subject, first_id, start, pos, count) < 0) goto fail;
        count = 0;
      }
      if (!count) {
        kind = first;
        subject = NULL;
        first_id = id;
        start = pos;
      }
      count++;
      pos += 4;
    } else break;
  }
  if (count && append_span(spans, kind, subject, first_id, start, pos, count) < 0) goto fail;
  return Py_BuildValue("(nN)", pos, spans);
fail:
  Py_DECREF(spans);
  return NULL;
}

static PyObject *kernel_ack_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 3) {
    PyErr_SetString(PyExc_TypeError, "ack_run(first_byte, packet_id, count)");
    return NULL;
  }
  long first = PyLong_AsLong(args[0]), id = PyLong_AsLong(args[1]);
  Py_ssize_t count = PyLong_AsSsize_t(args[2]);
  if (PyErr_Occurred()) return NULL;
  if (id < 1 || id > 65535 || count < 0 || count > 65535) {
    PyErr_SetString(PyExc_ValueError, "packet id or count out of range");
    return NULL;
  }
  PyObject *out = PyBytes_FromStringAndSize(NULL, count * 4);
  if (!out) return NULL;
  u8 *w = (u8 *)PyBytes_AS_STRING(out);
  for (; count; count--, w += 4) {
    w[0] = (u8)first;
    w[1] = 2;
    w[2] = (u8)(id >> 8);
    w[3] = (u8)id;
    id = id == 65535 ? 1 : id + 1;
  }
  return out;
}

static PyObject *broken_run(void) {
  PyErr_SetString(PyExc_ValueError, "not a run of whole packets");
  return NULL;
}

/* Where the packet id of the PUBLISH at pos stands, and the end of the packet; 0 when it is not whole. */
static inline int id_at(const u8 *d, Py_ssize_t pos, Py_ssize_t size, Py_ssize_t *at, Py_ssize_t *end) {
  Py_ssize_t body;
  if (!length_at(d, pos, size, &body, end) || *end > size || body + 2 > *end) return 0;
  *at = body + 2 + (d[body] << 8 | d[body + 1]);
  return *at + 2 <= *end;
}

static PyObject *kernel_packet_ids(PyObject *self, PyObject *run) {
  (void)self;
  if (!PyBytes_Check(run)) return PyErr_Format(PyExc_TypeError, "packet_ids(run: bytes)");
  const u8 *d = (const u8 *)PyBytes_AS_STRING(run);
  Py_ssize_t size = PyBytes_GET_SIZE(run), at, end;
  PyObject *ids = PyList_New(0);
  if (!ids) return NULL;
  for (Py_ssize_t pos = 0; pos < size; pos = end) {
    if (!id_at(d, pos, size, &at, &end)) {
      Py_DECREF(ids);
      return broken_run();
    }
    PyObject *id = PyLong_FromLong(d[at] << 8 | d[at + 1]);
    if (!id || PyList_Append(ids, id) < 0) {
      Py_XDECREF(id);
      Py_DECREF(ids);
      return NULL;
    }
    Py_DECREF(id);
  }
  return ids;
}

static PyObject *kernel_acks(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 2 || !PyBytes_Check(args[0])) return PyErr_Format(PyExc_TypeError, "acks(run: bytes, first_byte)");
  const u8 *d = (const u8 *)PyBytes_AS_STRING(args[0]);
  Py_ssize_t size = PyBytes_GET_SIZE(args[0]), at, end, count = 0;
  long first = PyLong_AsLong(args[1]);
  if (PyErr_Occurred()) return NULL;
  for (Py_ssize_t pos = 0; pos < size; pos = end, count++)
    if (!id_at(d, pos, size, &at, &end)) return broken_run();
  PyObject *out = PyBytes_FromStringAndSize(NULL, count * 4);
  if (!out) return NULL;
  u8 *w = (u8 *)PyBytes_AS_STRING(out);
  for (Py_ssize_t pos = 0; pos < size; pos = end, w += 4) {
    id_at(d, pos, size, &at, &end);
    w[0] = (u8)first;
    w[1] = 2;
    w[2] = d[at];
    w[3] = d[at + 1];
  }
  return out;
}

static PyObject *kernel_skip(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs < 2 || nargs > 3 || !PyBytes_Check(args[0]))
    return PyErr_Format(PyExc_TypeError, "skip(run: bytes, count, pos=0)");
  const u8 *d = (const u8 *)PyBytes_AS_STRING(args[0]);
  Py_ssize_t size = PyBytes_GET_SIZE(args[0]), body, end, count = PyLong_AsSsize_t(args[1]);
  Py_ssize_t pos = nargs == 3 ? PyLong_AsSsize_t(args[2]) : 0;
  if (PyErr_Occurred()) return NULL;
  if (pos < 0 || pos > size) {
    PyErr_SetString(PyExc_ValueError, "position outside the data");
    return NULL;
  }
  for (; count > 0; count--, pos = end)
    if (!length_at(d, pos, size, &body, &end) || end > size) return broken_run();
  return PyLong_FromSsize_t(pos);
}

static inline u8 *put_length(u8 *w, Py_ssize_t value) {
  while (value > 127) {
    *w++ = (u8)(value & 127) | 128;
    value >>= 7;
  }
  *w++ = (u8)value;
  return w;
}

static inline Py_ssize_t length_bytes(Py_ssize_t value) {
  return value < 128 ? 1 : value < 16384 ? 2 : value < 2097152 ? 3 : 4;
}

static PyObject *kernel_reframe(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 6 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[5]))
    return PyErr_Format(PyExc_TypeError, "reframe(run: bytes, from_v5, to_v5, first_byte, packet_id, extra: bytes)");
  const u8 *d = (const u8 *)PyBytes_AS_STRING(args[0]), *extra = (const u8 *)PyBytes_AS_STRING(args[5]);
  Py_ssize_t size = PyBytes_GET_SIZE(args[0]), extra_n = PyBytes_GET_SIZE(args[5]), at, count = 0;
  Py_ssize_t body = 0, end = 0;
  int from_v5 = PyObject_IsTrue(args[1]), to_v5 = PyObject_IsTrue(args[2]);
  long first = PyLong_AsLong(args[3]), id = PyLong_AsLong(args[4]);
  if (PyErr_Occurred()) return NULL;
  if (size == 0) return PyBytes_FromStringAndSize(NULL, 0);
  int had_id = (d[0] & 6) != 0, has_id = (first & 6) != 0;
  if (has_id && (id < 1 || id > 65535)) {
    PyErr_SetString(PyExc_ValueError, "packet id out of range");
    return NULL;
  }
  if (from_v5 == to_v5 && !extra_n && had_id == has_id) {
    if (!had_id && d[0] == (u8)first) {
      Py_INCREF(args[0]);
      return args[0];
    }
    if (had_id) {
      PyObject *copy = PyBytes_FromStringAndSize((const char *)d, size);
      if (!copy) return NULL;
      u8 *w = (u8 *)PyBytes_AS_STRING(copy);
      for (Py_ssize_t pos = 0; pos < size; pos = end) {
        if (!id_at(d, pos, size, &at, &end)) {
          Py_DECREF(copy);
          return broken_run();
        }
        w[pos] = (u8)first;
        w[at] = (u8)(id >> 8);
        w[at + 1] = (u8)id;
        id = id == 65535 ? 1 : id + 1;
      }
      return copy;
    }
  }
  for (Py_ssize_t pos = 0; pos < size; pos = end, count++)
    if (!length_at(d, pos, size, &body, &end) || end > size || body + 2 > end) return broken_run();
  /* Each packet grows at most by its id, the extra properties, and one more byte in each of two lengths
     for every 127 times they grow; 10 covers both lengths written in full. */
  PyObject *out = PyBytes_FromStringAndSize(NULL, size + count * (extra_n + 10));
  if (!out) return NULL;
  u8 *w0 = (u8 *)PyBytes_AS_STRING(out), *w = w0;
  for (Py_ssize_t pos = 0; pos < size; pos = end) {
    length_at(d, pos, size, &body, &end);
    Py_ssize_t after = body + 2 + (d[body] << 8 | d[body + 1]), rest = after + (had_id ? 2 : 0);
    Py_ssize_t own = 0, own_n = 0;
    if (rest > end || (from_v5 && rest >= end)) goto broken;
    if (from_v5) {
      Py_ssize_t stop;
      if (!length_at(d, rest - 1, end, &own, &stop) || stop > end) goto broken;
      own_n = stop - own;
      rest = stop;
    }
    Py_ssize_t properties_n = own_n + extra_n;
    Py_ssize_t remaining = after - body + (has_id ? 2 : 0) + (end - rest);
    if (to_v5) remaining += length_bytes(properties_n) + properties_n;
    *w++ = (u8)first;
    w = put_length(w, remaining);
    memcpy(w, d + body, after - body);
    w += after - body;
    if (has_id) {
      *w++ = (u8)(id >> 8);
      *w++ = (u8)id;
      id = id == 65535 ? 1 : id + 1;
    }
    if (to_v5) {
      w = put_length(w, properties_n);
      if (own_n) memcpy(w, d + own, own_n);
      w += own_n;
      memcpy(w, extra, extra_n);
      w += extra_n;
    }
    memcpy(w, d + rest, end - rest);
    w += end - rest;
  }
  _PyBytes_Resize(&out, w - w0);
  return out;
broken:
  Py_DECREF(out);
  return broken_run();
}

/* A column that must have elements of so many bytes; 0 with an error set. */
static int get_column(PyObject *from, Py_buffer *column, Py_ssize_t item_bytes) {
  if (PyObject_GetBuffer(from, column, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) return 0;
  if (column->itemsize == item_bytes) return 1;
  PyBuffer_Release(column);
  PyErr_SetString(PyExc_TypeError, "a column has elements of another size");
  return 0;
}

/* Values laid end to end with the places between them, as Arrow has them. */
typedef struct {
  Py_buffer edges, data;
} Values;

static int get_values(PyObject *edges, PyObject *data, Values *values) {
  if (!get_column(edges, &values->edges, 4)) return 0;
  if (get_column(data, &values->data, 1)) return 1;
  PyBuffer_Release(&values->edges);
  return 0;
}

static void release_values(Values *values) {
  PyBuffer_Release(&values->edges);
  PyBuffer_Release(&values->data);
}

/* The value of a row; its size, or -1 where the edges are not those of this data. */
static inline Py_ssize_t value_at(const Values *values, uint64_t row, const u8 **at) {
  int32_t edge[2];
  if (row + 1 >= (uint64_t)(values->edges.len / 4)) return -1;
  memcpy(edge, (const u8 *)values->edges.buf + 4 * row, 8);
  if (edge[0] < 0 || edge[1] < edge[0] || edge[1] > values->data.len) return -1;
  *at = (const u8 *)values->data.buf + edge[0];
  return edge[1] - edge[0];
}

/* The parts of one packet behind its head. */
typedef struct {
  u8 first;
  const u8 *word, *properties, *payload;
  Py_ssize_t word_n, properties_n, payload_n, length;
} Packet;

typedef struct {
  PyObject **words;
  Py_ssize_t words_n;
  Py_buffer topic_ids, firsts, rows;
  Values payload, properties;
  int has_properties;
} Table;

static int packet_of(const Table *table, Py_ssize_t number, Packet *packet) {
  uint64_t row;
  uint32_t topic;
  memcpy(&row, (const u8 *)table->rows.buf + 8 * number, 8);
  if (row >= (uint64_t)table->firsts.len || row >= (uint64_t)(table->topic_ids.len / 4)) return 0;
  memcpy(&topic, (const u8 *)table->topic_ids.buf + 4 * row, 4);
  if (topic >= (uint64_t)table->words_n) return 0;
  packet->first = ((const u8 *)table->firsts.buf)[row];
  packet->word = (const u8 *)PyBytes_AS_STRING(table->words[topic]);
  packet->word_n = PyBytes_GET_SIZE(table->words[topic]);
  packet->properties_n = 0;
  if (table->has_properties) packet->properties_n = value_at(&table->properties, row, &packet->properties);
  packet->payload_n = value_at(&table->payload, row, &packet->payload);
  if (packet->payload_n < 0 || packet->properties_n < 0) return 0;
  packet->length = packet->word_n + (packet->first & 6 ? 2 : 0) + packet->properties_n + packet->payload_n;
  return 1;
}

static u8 *put_packet(u8 *w, const Packet *packet) {
  *w++ = packet->first;
  w = put_length(w, packet->length);
  memcpy(w, packet->word, (size_t)packet->word_n);
  w += packet->word_n;
  if (packet->first & 6) {
    *w++ = 0;
    *w++ = 1;
  }
  if (packet->properties_n) memcpy(w, packet->properties, (size_t)packet->properties_n);
  w += packet->properties_n;
  if (packet->payload_n) memcpy(w, packet->payload, (size_t)packet->payload_n);
  return w + packet->payload_n;
}

static PyObject *pack_table(const Table *table) {
  Py_ssize_t count = table->rows.len / 8, size = 0;
  Packet packet;
  PyObject *edges = PyBytes_FromStringAndSize(NULL, 8 * (count + 1)), *packets = NULL;
  if (!edges) return NULL;
  for (Py_ssize_t n = 0; n <= count; n++) {
    int64_t edge = size;
    memcpy(PyBytes_AS_STRING(edges) + 8 * n, &edge, 8);
    if (n == count) break;
    if (!packet_of(table, n, &packet)) {
      PyErr_SetString(PyExc_ValueError, "a row is not in the columns");
      goto failed;
    }
    if (packet.length > 268435455) {
      PyErr_Format(PyExc_ValueError, "a message of %zd bytes is larger than any MQTT packet", packet.length);
      goto failed;
    }
    size += 1 + length_bytes(packet.length) + packet.length;
  }
  packets = PyBytes_FromStringAndSize(NULL, size);
  if (!packets) goto failed;
  u8 *w = (u8 *)PyBytes_AS_STRING(packets);
  for (Py_ssize_t n = 0; n < count && packet_of(table, n, &packet); n++) w = put_packet(w, &packet);
  PyObject *answer = PyTuple_Pack(2, packets, edges);
  Py_DECREF(packets);
  Py_DECREF(edges);
  return answer;
failed:
  Py_DECREF(edges);
  return NULL;
}

static PyObject *kernel_pack_rows(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 8 || !PyTuple_CheckExact(args[0]))
    return PyErr_Format(PyExc_TypeError, "pack_rows(words: tuple, topic_ids, firsts, payload_edges, payload, "
                                         "properties_edges, properties, rows)");
  Table table = {.words = PySequence_Fast_ITEMS(args[0]), .words_n = PyTuple_GET_SIZE(args[0])};
  for (Py_ssize_t i = 0; i < table.words_n; i++)
    if (!PyBytes_Check(table.words[i])) return PyErr_Format(PyExc_TypeError, "words are bytes");
  PyObject *answer = NULL;
  table.has_properties = args[5] != Py_None;
  if (!get_column(args[1], &table.topic_ids, 4)) return NULL;
  if (!get_column(args[2], &table.firsts, 1)) goto topic_ids;
  if (!get_values(args[3], args[4], &table.payload)) goto firsts;
  if (table.has_properties && !get_values(args[5], args[6], &table.properties)) goto payload;
  if (!get_column(args[7], &table.rows, 8)) goto properties;
  answer = pack_table(&table);
  PyBuffer_Release(&table.rows);
properties:
  if (table.has_properties) release_values(&table.properties);
payload:
  release_values(&table.payload);
firsts:
  PyBuffer_Release(&table.firsts);
topic_ids:
  PyBuffer_Release(&table.topic_ids);
  return answer;
}

/* The slices of `data` from each start to its end, laid end to end, and the edges between them. */
static PyObject *gather_slices(const Py_buffer *data, const Py_buffer *starts, const Py_buffer *ends) {
  Py_ssize_t count = starts->len / 8;
  int64_t size = 0;
  PyObject *edges = PyBytes_FromStringAndSize(NULL, 4 * (count + 1)), *slices = NULL, *answer = NULL;
  if (!edges) return NULL;
  for (Py_ssize_t i = 0; i <= count; i++) {
    int64_t from, to;
    int32_t edge = (int32_t)size;
    memcpy(PyBytes_AS_STRING(edges) + 4 * i, &edge, 4);
    if (i == count) break;
    memcpy(&from, (const u8 *)starts->buf + 8 * i, 8);
    memcpy(&to, (const u8 *)ends->buf + 8 * i, 8);
    if (from < 0 || to < from || to > data->len || (size += to - from) > INT32_MAX) {
      PyErr_SetString(PyExc_ValueError, "a slice is not in the data, or all of them are too much");
      goto done;
    }
  }
  slices = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
  if (!slices) goto done;
  u8 *w = (u8 *)PyBytes_AS_STRING(slices);
  for (Py_ssize_t i = 0; i < count; i++) {
    int64_t from, to;
    memcpy(&from, (const u8 *)starts->buf + 8 * i, 8);
    memcpy(&to, (const u8 *)ends->buf + 8 * i, 8);
    if (to > from) memcpy(w, (const u8 *)data->buf + from, (size_t)(to - from));
    w += to - from;
  }
  answer = PyTuple_Pack(2, edges, slices);
done:
  Py_DECREF(edges);
  Py_XDECREF(slices);
  return answer;
}

static PyObject *kernel_gather(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 3) return PyErr_Format(PyExc_TypeError, "gather(data, starts, ends)");
  Py_buffer data, starts, ends;
  PyObject *answer = NULL;
  if (!get_column(args[0], &data, 1)) return NULL;
  if (!get_column(args[1], &starts, 8)) goto data;
  if (!get_column(args[2], &ends, 8)) goto starts;
  if (starts.len == ends.len) answer = gather_slices(&data, &starts, &ends);
  else PyErr_SetString(PyExc_ValueError, "there are not as many ends as starts");
  PyBuffer_Release(&ends);
starts:
  PyBuffer_Release(&starts);
data:
  PyBuffer_Release(&data);
  return answer;
}

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)(void *)kernel_scan, METH_FASTCALL, "see pure.py"},
    {"ack_run", (PyCFunction)(void *)kernel_ack_run, METH_FASTCALL, "see pure.py"},
    {"packet_ids", (PyCFunction)kernel_packet_ids, METH_O, "see pure.py"},
    {"acks", (PyCFunction)(void *)kernel_acks, METH_FASTCALL, "see pure.py"},
    {"skip", (PyCFunction)(void *)kernel_skip, METH_FASTCALL, "see pure.py"},
    {"reframe", (PyCFunction)(void *)kernel_reframe, METH_FASTCALL, "see pure.py"},
    {"scan_rows", (PyCFunction)(void *)kernel_scan_rows, METH_FASTCALL, "see blocks.py"},
    {"first_bytes", (PyCFunction)(void *)kernel_first_bytes, METH_FASTCALL, "see blocks.py"},
    {"join_body", (PyCFunction)(void *)kernel_join_body, METH_FASTCALL, "see blocks.py"},
    {"pack_rows", (PyCFunction)(void *)kernel_pack_rows, METH_FASTCALL, "see packing.py"},
    {"gather", (PyCFunction)(void *)kernel_gather, METH_FASTCALL, "see packing.py"},
    {"shape_of", (PyCFunction)kernel_shape_of, METH_O, "see filters.py"},
    {"fitting_filters", (PyCFunction)(void *)kernel_fitting_filters, METH_FASTCALL, "see filters.py"},
    {"find_filters", (PyCFunction)(void *)kernel_find_filters, METH_FASTCALL, "see filters.py"},
    {"read_filters", (PyCFunction)(void *)kernel_read_filters, METH_FASTCALL, "see filters.py"},
    {"new_topics", (PyCFunction)(void *)kernel_new_topics, METH_FASTCALL, "see filters.py"},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", "The byte loops of the broker in C.", -1,
                                    methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }
