/* The byte loops of blocks.py in C that read the packets of a block and make its body.
 *
 * See there for what each function promises; tests/unit/kernels compares the two on random input.
 */
#include "_blocks.h"

#include <stdint.h>
#include <string.h>

typedef unsigned char u8;

/* Position after the variable byte integer at p; 0 when it ends neither in four bytes nor in the data. */
static inline Py_ssize_t varint_at(const u8 *d, Py_ssize_t p, Py_ssize_t size, Py_ssize_t *value) {
  *value = 0;
  for (int shift = 0; shift < 28; shift += 7) {
    if (p >= size) return 0;
    u8 byte = d[p++];
    *value |= (Py_ssize_t)(byte & 127) << shift;
    if (byte < 128) return p;
  }
  return 0;
}

/* One message of a block. Positions count from the first byte of its run. */
typedef struct {
  Py_ssize_t end, topic, topic_n, payload;
} Row;

static inline int row_at(const u8 *d, Py_ssize_t pos, Py_ssize_t size, int v5, Row *row) {
  Py_ssize_t n, body = varint_at(d, pos + 1, size, &n);
  if (!body || body + n > size || n < 2 || (d[pos] & 0xF0) != 0x30) return 0;
  row->end = body + n;
  row->topic = body + 2;
  row->topic_n = d[body] << 8 | d[body + 1];
  row->payload = row->topic + row->topic_n + (d[pos] & 6 ? 2 : 0);
  if (v5) {
    if (row->payload >= row->end || !(row->payload = varint_at(d, row->payload, row->end, &n))) return 0;
    row->payload += n;
  }
  return row->payload <= row->end;
}

/* The id of a topic, a new one if it is not in the dictionary yet; -1 with an error set. */
static long topic_id(PyObject *topics, const u8 *text, Py_ssize_t n) {
  if (!n) {
    PyErr_SetString(PyExc_ValueError, "a packet without a topic needs it given");
    return -1;
  }
  PyObject *key = PyBytes_FromStringAndSize((const char *)text, n);
  if (!key) return -1;
  PyObject *found = PyDict_GetItemWithError(topics, key);
  long id = -1;
  if (found) id = PyLong_AsLong(found);
  else if (!PyErr_Occurred()) {
    PyObject *fresh = PyLong_FromSsize_t(PyDict_GET_SIZE(topics));
    if (fresh && PyDict_SetItem(topics, key, fresh) == 0) id = PyLong_AsLong(fresh);
    Py_XDECREF(fresh);
  }
  Py_DECREF(key);
  return id;
}

/* Topics that were met lately, by a mix of their last bytes: a look that costs no object. The text stays where
   the run has it, which outlives the call. */
enum { RECENT = 256 };
typedef struct {
  const u8 *text;
  Py_ssize_t n;
  long id;
} Recent;

static long recent_topic_id(Recent *recent, PyObject *topics, const u8 *text, Py_ssize_t n) {
  uint64_t mix = (uint64_t)n;
  for (Py_ssize_t i = n > 8 ? n - 8 : 0; i < n; i++) mix = (mix ^ text[i]) * 0x9E3779B97F4A7C15u;
  Recent *at = recent + (mix >> 56);
  if (at->n == n && at->text && !memcmp(at->text, text, (size_t)n)) return at->id;
  long id = topic_id(topics, text, n);
  if (id >= 0) *at = (Recent){text, n, id};
  return id;
}

/* A run as blocks.py names it; 0 with an error set when it is not one. */
typedef struct {
  const u8 *data, *topic;
  Py_ssize_t size, topic_n;
  long version;
  uint32_t delta_us;
} Source;

static int read_source(PyObject *run, Source *source) {
  if (!PyTuple_Check(run) || PyTuple_GET_SIZE(run) < 4 || !PyBytes_Check(PyTuple_GET_ITEM(run, 0))) {
    PyErr_SetString(PyExc_TypeError, "a run is a tuple that begins with packets, version, delta_us and topic");
    return 0;
  }
  PyObject *packets = PyTuple_GET_ITEM(run, 0), *topic = PyTuple_GET_ITEM(run, 3);
  source->data = (const u8 *)PyBytes_AS_STRING(packets);
  source->size = PyBytes_GET_SIZE(packets);
  source->topic = PyBytes_Check(topic) ? (const u8 *)PyBytes_AS_STRING(topic) : NULL;
  source->topic_n = source->topic ? PyBytes_GET_SIZE(topic) : 0;
  source->version = PyLong_AsLong(PyTuple_GET_ITEM(run, 1));
  if (source->version == -1 && PyErr_Occurred()) return 0;
  int is_beyond;
  long long delta_us = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(run, 2), &is_beyond);
  if (delta_us == -1 && PyErr_Occurred()) return 0;
  if (is_beyond || delta_us < 0 || delta_us > UINT32_MAX) {
    PyErr_Format(PyExc_ValueError, "a time delta of %S us does not fit its column", PyTuple_GET_ITEM(run, 2));
    return 0;
  }
  source->delta_us = (uint32_t)delta_us;
  return 1;
}

enum { TOPIC_ID, DELTA, PACKET, PACKET_N, PAYLOAD, PAYLOAD_N, FLAGS, COLUMNS };

/* Rows of one run behind the `row` there are; the number of rows then, -1 with an error set. */
static Py_ssize_t add_rows(const Source *source, PyObject *topics, Recent *recent, uint64_t base,
                           uint32_t **columns, u8 *flags, Py_ssize_t row) {
  const u8 *d = source->data, *last = NULL;
  Py_ssize_t last_n = -1;
  long id = 0;
  Row found;
  for (Py_ssize_t pos = 0; pos < source->size; pos = found.end, row++) {
    if (!row_at(d, pos, source->size, source->version == 5, &found)) {
      PyErr_SetString(PyExc_ValueError, "a run is not whole PUBLISH packets laid end to end");
      return -1;
    }
    const u8 *topic = source->topic_n ? source->topic : d + found.topic;
    Py_ssize_t topic_n = source->topic_n ? source->topic_n : found.topic_n;
    /* Neighbours often share their topic. */
    if (topic_n != last_n || memcmp(topic, last, (size_t)topic_n)) {
      id = recent_topic_id(recent, topics, topic, topic_n);
      if (id < 0) return -1;
      last = topic;
      last_n = topic_n;
    }
    columns[TOPIC_ID][row] = (uint32_t)id;
    columns[DELTA][row] = source->delta_us;
    columns[PACKET][row] = (uint32_t)(base + (uint64_t)pos);
    columns[PACKET_N][row] = (uint32_t)(found.end - pos);
    columns[PAYLOAD][row] = (uint32_t)(base + (uint64_t)found.payload);
    columns[PAYLOAD_N][row] = (uint32_t)(found.end - found.payload);
    flags[row] = (u8)((d[pos] >> 1 & 3) | (d[pos] & 1) << 2 | source->version << 4);
  }
  return row;
}

/* How many packets a run has at most: exact where it is whole. */
static Py_ssize_t count_rows(PyObject *run) {
  if (!PyTuple_Check(run) || PyTuple_GET_SIZE(run) < 1 || !PyBytes_Check(PyTuple_GET_ITEM(run, 0))) return 0;
  const u8 *d = (const u8 *)PyBytes_AS_STRING(PyTuple_GET_ITEM(run, 0));
  Py_ssize_t size = PyBytes_GET_SIZE(PyTuple_GET_ITEM(run, 0)), count = 0, n;
  for (Py_ssize_t pos = 0, body; pos < size && (body = varint_at(d, pos + 1, size, &n)); pos = body + n) count++;
  return count;
}

PyObject *kernel_scan_rows(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 2 || !(PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0])) || !PyDict_CheckExact(args[1]))
    return PyErr_Format(PyExc_TypeError, "scan_rows(runs: list | tuple, topics: dict)");
  Py_ssize_t runs_n = PySequence_Fast_GET_SIZE(args[0]), total = 0, row = 0;
  PyObject **runs = PySequence_Fast_ITEMS(args[0]);
  for (Py_ssize_t i = 0; i < runs_n; i++) total += count_rows(runs[i]);
  uint32_t *values[FLAGS];
  Recent recent[RECENT] = {{NULL, 0, 0}};
  u8 *flags = NULL;
  uint64_t base = 0;
  PyObject *counts = PyList_New(runs_n), *columns = PyTuple_New(COLUMNS), *answer = NULL;
  if (!counts || !columns) goto done;
  for (int c = 0; c < COLUMNS; c++) {
    PyObject *column = PyBytes_FromStringAndSize(NULL, c == FLAGS ? total : 4 * total);
    if (!column) goto done;
    PyTuple_SET_ITEM(columns, c, column);
    if (c == FLAGS) flags = (u8 *)PyBytes_AS_STRING(column);
    else values[c] = (uint32_t *)(void *)PyBytes_AS_STRING(column);
  }
  for (Py_ssize_t i = 0; i < runs_n; i++) {
    Source source;
    if (!read_source(runs[i], &source)) goto done;
    Py_ssize_t next = add_rows(&source, args[1], recent, base, values, flags, row);
    if (next < 0) goto done;
    PyObject *count = PyLong_FromSsize_t(next - row);
    if (!count) goto done;
    PyList_SET_ITEM(counts, i, count);
    row = next;
    base += (uint64_t)source.size;
    if (base > UINT32_MAX) {
      PyErr_Format(PyExc_ValueError, "%llu bytes of packets do not fit one block", (unsigned long long)base);
      goto done;
    }
  }
  answer = PyTuple_Pack(2, counts, columns);
done:
  Py_XDECREF(counts);
  Py_XDECREF(columns);
  return answer;
}

/* Which bytes stand at these places of the packets, each once. */
PyObject *kernel_first_bytes(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 2 || !PyBytes_Check(args[0])) return PyErr_Format(PyExc_TypeError, "first_bytes(packets, positions)");
  Py_buffer places;
  if (PyObject_GetBuffer(args[1], &places, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) return NULL;
  const u8 *d = (const u8 *)PyBytes_AS_STRING(args[0]);
  uint64_t size = (uint64_t)PyBytes_GET_SIZE(args[0]);
  u8 seen[256] = {0}, found[256];
  Py_ssize_t found_n = 0, count = places.len / 4;
  int is_fit = places.itemsize == 4 && places.format && !strcmp(places.format, "I");
  if (!is_fit) PyErr_SetString(PyExc_TypeError, "positions are a column of 32 bits");
  for (Py_ssize_t i = 0; is_fit && i < count; i++) {
    uint32_t at;
    memcpy(&at, (const u8 *)places.buf + 4 * i, 4);
    if (at >= size) {
      PyErr_SetString(PyExc_IndexError, "a position is behind the packets");
      is_fit = 0;
    } else seen[d[at]] = 1;
  }
  PyBuffer_Release(&places);
  if (!is_fit) return NULL;
  for (int byte = 0; byte < 256; byte++)
    if (seen[byte]) found[found_n++] = (u8)byte;
  return PyBytes_FromStringAndSize((const char *)found, found_n);
}

/* Words in the order of their ids, as a block has them: where each begins, one end more, and the text. */
static Py_ssize_t aligned(Py_ssize_t size) { return (size + 7) & ~(Py_ssize_t)7; }

static Py_ssize_t text_size(PyObject *words) {
  Py_ssize_t at = 0, size = 0;
  PyObject *word, *id;
  while (PyDict_Next(words, &at, &word, &id)) size += PyBytes_GET_SIZE(word);
  return size;
}

static Py_ssize_t dictionary_size(PyObject *words, Py_ssize_t text_n) {
  return aligned(4 * (PyDict_GET_SIZE(words) + 1)) + aligned(text_n);
}

/* Behind the dictionary, whose padding is written as well. */
static u8 *put_dictionary(u8 *w, PyObject *words, Py_ssize_t text_n) {
  Py_ssize_t at = 0, offsets_n = 4 * (PyDict_GET_SIZE(words) + 1);
  uint32_t text_at = 0;
  u8 *text = w + aligned(offsets_n), *end = text + aligned(text_n);
  PyObject *word, *id;
  memset(w + offsets_n, 0, (size_t)(aligned(offsets_n) - offsets_n));
  memset(text + text_n, 0, (size_t)(aligned(text_n) - text_n));
  memcpy(w, &text_at, 4);
  /* A dict has its words in the order in which they came, which is that of their ids. */
  while (PyDict_Next(words, &at, &word, &id)) {
    memcpy(text + text_at, PyBytes_AS_STRING(word), (size_t)PyBytes_GET_SIZE(word));
    text_at += (uint32_t)PyBytes_GET_SIZE(word);
    memcpy(w += 4, &text_at, 4);
  }
  return end;
}

static u8 *put_padded(u8 *w, const void *data, Py_ssize_t size) {
  memcpy(w, data, (size_t)size);
  memset(w + size, 0, (size_t)(aligned(size) - size));
  return w + aligned(size);
}

/* What the runs of one body say beside their packets. */
typedef struct {
  PyObject *names;
  Py_ssize_t packets_n, rows_max;
  int is_named;
} Runs;

/* The publisher of a run that is a whole `Run`: NULL where there is none. */
static PyObject *publisher_of(PyObject *run) {
  PyObject *publisher = PyTuple_GET_ITEM(run, 4);
  return publisher == Py_None ? NULL : publisher;
}

/* 1: they can be joined here; 0: not, or with an error set. */
static int read_runs(PyObject *const *runs, Py_ssize_t runs_n, Runs *all) {
  for (Py_ssize_t i = 0; i < runs_n; i++) {
    if (!PyTuple_Check(runs[i]) || PyTuple_GET_SIZE(runs[i]) != 7) return 0;
    PyObject *packets = PyTuple_GET_ITEM(runs[i], 0), *publisher = publisher_of(runs[i]);
    if (!PyBytes_Check(packets) || PyTuple_GET_ITEM(runs[i], 5) != Py_None) return 0;
    if (publisher && !PyBytes_Check(publisher)) return 0;
    all->packets_n += PyBytes_GET_SIZE(packets);
    all->rows_max += count_rows(runs[i]);
    all->is_named |= publisher != NULL;
  }
  return all->packets_n <= INT32_MAX;
}

/* Where the columns of so many rows are before it is known how many there are. */
static int get_columns(Py_ssize_t rows, uint32_t **values, u8 **flags) {
  uint32_t *all = PyMem_Malloc((size_t)(rows + 1) * (4 * FLAGS + 4 + 1));
  if (!all) {
    PyErr_NoMemory();
    return 0;
  }
  /* The last of them for the names of publishers. */
  for (int c = 0; c <= FLAGS; c++) values[c] = all + (rows + 1) * c;
  *flags = (u8 *)(all + (rows + 1) * (FLAGS + 1));
  return 1;
}

/* The id of the publisher for so many rows; 0 with an error set. */
static int put_name(PyObject *names, PyObject *publisher, uint32_t *column, Py_ssize_t rows) {
  uint32_t id = UINT32_MAX;
  if (publisher) {
    PyObject *fresh = PyLong_FromSsize_t(PyDict_GET_SIZE(names));
    PyObject *found = fresh ? PyDict_SetDefault(names, publisher, fresh) : NULL;
    Py_XDECREF(fresh);
    if (!found) return 0;
    id = (uint32_t)PyLong_AsLong(found);
  }
  for (Py_ssize_t i = 0; i < rows; i++) column[i] = id;
  return 1;
}

static PyObject *joined(PyObject *const *runs, Py_ssize_t runs_n, PyObject *key, PyObject *topics, const Runs *all,
                        uint32_t **values, const u8 *flags, Py_ssize_t rows) {
  Py_ssize_t topics_n = text_size(topics), names_n = text_size(all->names), key_n = PyBytes_GET_SIZE(key);
  Py_ssize_t plain_n = 24 + dictionary_size(topics, topics_n);
  Py_ssize_t raw_n = FLAGS * aligned(4 * rows) + aligned(rows) + aligned(key_n) + all->packets_n;
  if (all->is_named) raw_n += 2 * aligned(4 * rows) + 8 * rows + dictionary_size(all->names, names_n);
  Py_ssize_t size = plain_n + raw_n;
  PyObject *body = PyBytes_FromStringAndSize(NULL, aligned(size));
  if (!body) return NULL;
  u8 *w = (u8 *)PyBytes_AS_STRING(body);
  uint32_t head[6] = {(uint32_t)topics_n,       (uint32_t)PyDict_GET_SIZE(all->names), (uint32_t)names_n,
                      (uint32_t)all->packets_n, (uint32_t)all->is_named,               (uint32_t)key_n};
  memcpy(w, head, sizeof head);
  w = put_dictionary(w + sizeof head, topics, topics_n);
  for (int c = 0; c < FLAGS; c++) w = put_padded(w, values[c], 4 * rows);
  w = put_padded(w, flags, rows);
  w = put_padded(w, PyBytes_AS_STRING(key), key_n);
  if (all->is_named) {
    w = put_padded(w, values[FLAGS], 4 * rows);
    /* Nobody numbered these messages. */
    memset(w, 0xFF, (size_t)(4 * rows));
    memset(w + 4 * rows, 0, (size_t)(aligned(4 * rows) - 4 * rows + 8 * rows));
    w = put_dictionary(w + aligned(4 * rows) + 8 * rows, all->names, names_n);
  }
  for (Py_ssize_t i = 0; i < runs_n; i++) {
    PyObject *packets = PyTuple_GET_ITEM(runs[i], 0);
    memcpy(w, PyBytes_AS_STRING(packets), (size_t)PyBytes_GET_SIZE(packets));
    w += PyBytes_GET_SIZE(packets);
  }
  memset(w, 0, (size_t)(aligned(size) - size));
  return Py_BuildValue("(Nnnnn)", body, plain_n, raw_n, rows, PyDict_GET_SIZE(topics));
}

/* The body of runs without producers; None for any others, which are left to the twin. */
PyObject *kernel_join_body(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  if (nargs != 2 || !(PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0])) || !PyBytes_Check(args[1]))
    return PyErr_Format(PyExc_TypeError, "join_body(runs: list | tuple, key: bytes)");
  Py_ssize_t runs_n = PySequence_Fast_GET_SIZE(args[0]), row = 0;
  PyObject **runs = PySequence_Fast_ITEMS(args[0]), *topics = NULL, *answer = NULL;
  Runs all = {NULL, 0, 0, 0};
  if (!read_runs(runs, runs_n, &all)) Py_RETURN_NONE;
  uint32_t *values[FLAGS + 1];
  u8 *flags;
  Recent recent[RECENT] = {{NULL, 0, 0}};
  uint64_t base = 0;
  if (!get_columns(all.rows_max, values, &flags)) return NULL;
  topics = PyDict_New();
  all.names = PyDict_New();
  if (!topics || !all.names) goto done;
  for (Py_ssize_t i = 0; i < runs_n; i++) {
    Source source;
    if (!read_source(runs[i], &source)) goto done;
    Py_ssize_t next = add_rows(&source, topics, recent, base, values, flags, row);
    if (next < 0 || !put_name(all.names, publisher_of(runs[i]), values[FLAGS] + row, next - row)) goto done;
    row = next;
    base += (uint64_t)source.size;
  }
  answer = joined(runs, runs_n, args[1], topics, &all, values, flags, row);
done:
  PyMem_Free(values[0]);
  Py_XDECREF(topics);
  Py_XDECREF(all.names);
  return answer;
}
