/* mload: single-threaded epoll load generator for MQTT 3.1.1, MQTT 5 and NATS brokers.
 *
 * build: gcc -O2 -Wall -Wextra -o mload mload.c
 * See mload.md beside this file, or run ./mload with no arguments.
 *
 * Payload layout (min 16 bytes): u64 send time ns | u32 publisher | u32 seq.
 * Every received message is parsed and its (publisher, seq) checked per subscriber:
 * "gaps" = skipped seqs, "disorder" = seq <= last seen (duplicates / reordering).
 * Throughput mode is closed-loop: each publisher keeps at most (-o) messages
 * undelivered (and, at QoS 1 and 2, at most -W unacknowledged), so nothing needs to
 * be dropped and no broker queue grows without bound. At QoS 2 a message stays in -o
 * until its PUBREL: a broker that reads a subscriber's answers late (mosquitto, many
 * publishers to one subscriber) would else run out of packet ids.
 * Rate mode (-r) is open-loop: messages are sent at their intended times and
 * latency is measured from the intended time (no coordinated omission).
 *
 * QoS 2: a publisher's message counts as acknowledged at PUBCOMP; a subscriber counts
 * a message as delivered at the first PUBLISH with its packet id, and a second one (DUP)
 * before the PUBREL as "redelivered". A packet id that the protocol does not allow at
 * that point ends the run.
 * MQTT 5: property lists are sent empty (but see -C). Of the broker's properties only
 * CONNACK's Receive Maximum is obeyed, as breaking it ends the connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define die(...) do { fprintf(stderr, "mload: " __VA_ARGS__); fputc('\n', stderr); exit(2); } while (0)
#define count_of(array) ((int)(sizeof(array) / sizeof *(array)))

enum {
  READ_BYTES_MAX = 512 * 1024,  /* one recv; also bounds a packet */
  PAYLOAD_BYTES_MIN = 16,
  PAYLOAD_BYTES_MAX = 256 * 1024,
  NAME_BYTES_MAX = 200,         /* topic prefix, filter, user, password */
  PACKET_ID_MAX = 65535,
  OPEN_LOOP_WINDOW = 60000,     /* rate mode does not wait, but packet ids are finite */
};

/* ---- options ---- */
enum protocol { MQTT, NATS };
static struct {
  enum protocol protocol;
  int mqtt_level;               /* as CONNECT says it: 4 is MQTT 3.1.1, 5 is MQTT 5 */
  const char *host, *user, *password, *label, *pattern, *topic, *filter;
  int ports[16], ports_count, broker_pids[64], broker_pids_count;
  int publishers, subscribers, qos, subscribe_qos;
  int window;                   /* QoS 1 and 2: unacknowledged messages per publisher */
  int undelivered_max;          /* closed loop: undelivered messages per publisher */
  int payload_bytes, vary_payload, topics_per_publisher, chunk_bytes;
  double warm_up_s, measured_s, rate;
  int ack_only, keep_session, nagle, idle_connections, hold_s;
} opt = {
  .mqtt_level = 4, .host = "127.0.0.1", .label = "", .pattern = "pair", .topic = "bench",
  .publishers = 1, .subscribers = 1, .subscribe_qos = -1, .window = 100, .undelivered_max = 4096,
  .payload_bytes = 256, .topics_per_publisher = 1, .chunk_bytes = 65536, .warm_up_s = 1, .measured_s = 3,
};

/* ---- connections ---- */
struct template { char *bytes; int length, packet_id_at, payload_at; };

/* What a packet id waits for at this end of one connection. */
enum id_state { FREE, AWAITS_PUBACK, AWAITS_PUBREC, AWAITS_PUBCOMP, AWAITS_PUBREL };

typedef struct {
  int fd, id, is_publisher, ready, want_writable;
  char *carry; int carry_bytes, carry_capacity;         /* a packet whose rest has not come yet */
  char *out; int out_head, out_tail, out_capacity;      /* bytes the socket has not taken yet */
  uint8_t *id_states;                                   /* by packet id, where QoS asks for it */
  /* publisher */
  struct template *templates; int templates_count, template_bytes_max;    /* sent in turn */
  uint32_t seq;                 /* messages sent; each carries its number, from 1 */
  uint64_t acked, settled;      /* settled: subscribers are done with it (summed over them) */
  int fan;                      /* subscribers that get each message */
  int packet_id, window;        /* the last id used; the smaller of -W and Receive Maximum */
  double next_s;                /* rate mode: when the next message is due */
  uint64_t *sent_ns;            /* -A: by packet id */
  /* subscriber */
  uint32_t *last_seq;           /* by publisher */
  uint32_t *held_publisher;     /* QoS 2: by packet id, whose message awaits PUBREL */
} conn;

static conn *conns; static int conns_count, epoll_fd;
static uint8_t read_buffer[READ_BYTES_MAX];
static int connected_count, ready_count, measuring;
static int receive_max = PACKET_ID_MAX;                 /* the smallest any CONNACK named */
static uint64_t delivered, published, acked, reads, gaps, disorder, redelivered, unreleased;

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static double now_s(void) { return now_ns() * 1e-9; }

/* ---- latency histogram: log-linear in ns, 32 buckets per power of two (3 %) ---- */
static uint64_t histogram[64 * 64], histogram_count, histogram_max_ns;

static void histogram_add(uint64_t ns) {
  if (ns > histogram_max_ns) histogram_max_ns = ns;
  int shift = ns < 64 ? 0 : 63 - __builtin_clzll(ns) - 5;
  histogram[shift * 64 + (ns >> shift & 63)]++;
  histogram_count++;
}
static double histogram_us(double quantile) {
  uint64_t wanted = histogram_count * quantile, seen = 0;
  for (int i = 0; i < count_of(histogram); i++) {
    seen += histogram[i];
    if (seen > wanted) return ((uint64_t)(i % 64) << (i / 64)) / 1000.0;
  }
  return histogram_max_ns / 1000.0;
}

/* ---- process and machine accounting ---- */
static int read_text(const char *path, char *text, int size) {
  FILE *f = fopen(path, "r");
  int n = f ? fread(text, 1, size - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  return n;
}
static double brokers_cpu_s(void) {
  double sum = 0;
  for (int i = 0; i < opt.broker_pids_count; i++) {
    char path[64], text[1024];
    unsigned long user, system;
    snprintf(path, sizeof path, "/proc/%d/stat", opt.broker_pids[i]);
    if (!read_text(path, text, sizeof text)) continue;
    char *fields = strrchr(text, ')');                  /* the name before may hold spaces and brackets */
    if (fields && sscanf(fields + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2)
      sum += (double)(user + system) / sysconf(_SC_CLK_TCK);
  }
  return sum;
}
static long brokers_rss_kb(void) {
  long sum = 0, pages;
  for (int i = 0; i < opt.broker_pids_count; i++) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/statm", opt.broker_pids[i]);
    if (read_text(path, text, sizeof text) && sscanf(text, "%*d %ld", &pages) == 1) sum += pages * (sysconf(_SC_PAGESIZE) / 1024);
  }
  return sum;
}
static double self_cpu_s(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}
static double machine_cpu_s(void) {
  char text[512];
  unsigned long user, nice, system, irq, softirq, steal;        /* all but idle and iowait */
  read_text("/proc/stat", text, sizeof text);
  if (sscanf(text, "cpu %lu %lu %lu %*u %*u %lu %lu %lu", &user, &nice, &system, &irq, &softirq, &steal) != 6) return 0;
  return (double)(user + nice + system + irq + softirq + steal) / sysconf(_SC_CLK_TCK);
}

/* ---- output ---- */
static void watch_writable(conn *c, int want) {
  if (want == c->want_writable) return;
  c->want_writable = want;
  struct epoll_event e = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
}
static void flush_out(conn *c) {
  while (c->out_head < c->out_tail) {
    ssize_t n = send(c->fd, c->out + c->out_head, c->out_tail - c->out_head, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) { watch_writable(c, 1); return; }
    if (n < 0) die("send: %s", strerror(errno));
    c->out_head += n;
  }
  c->out_head = c->out_tail = 0;
  watch_writable(c, 0);
}
static inline char *reserve(conn *c, int bytes) {
  if (c->out_tail + bytes > c->out_capacity && c->out_head) {
    memmove(c->out, c->out + c->out_head, c->out_tail - c->out_head);
    c->out_tail -= c->out_head;
    c->out_head = 0;
  }
  if (c->out_tail + bytes > c->out_capacity) {
    c->out_capacity = (c->out_tail + bytes) * 2;
    c->out = realloc(c->out, c->out_capacity);
  }
  return c->out + c->out_tail;
}
static void put(conn *c, const void *data, int bytes) {
  memcpy(reserve(c, bytes), data, bytes);
  c->out_tail += bytes;
}

/* ---- MQTT packets ---- */
enum { CONNACK = 2, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = 9, DISCONNECT = 14 };
enum { CONNECT_BYTE = 0x10, PUBLISH_BYTE = 0x30, PUBREL_BYTE = 0x62, SUBSCRIBE_BYTE = 0x82 };   /* first bytes */

static inline int read_u16(const uint8_t *p) { return p[0] << 8 | p[1]; }
static inline uint8_t *write_u16(uint8_t *to, int value) { to[0] = value >> 8; to[1] = value; return to + 2; }
static uint8_t *write_string(uint8_t *to, const char *s) {
  return (uint8_t *)stpcpy((char *)write_u16(to, strlen(s)), s);
}
static uint8_t *write_length(uint8_t *to, int value) {
  for (; value > 127; value >>= 7) *to++ = value | 128;
  *to++ = value;
  return to;
}
/* The length of one to four bytes at *at, which moves past it. */
static inline uint32_t read_length(const uint8_t *body, uint32_t *at, uint32_t end) {
  uint32_t value = 0;
  for (int shift = 0; shift < 28 && *at < end; shift += 7) {
    uint8_t byte = body[(*at)++];
    value |= (uint32_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  die("malformed length in a packet");
}
/* Where the MQTT 5 property list that starts at `at` ends; MQTT 3.1.1 has none. */
static inline uint32_t skip_properties(const uint8_t *body, uint32_t at, uint32_t end) {
  if (opt.mqtt_level < 5) return at;
  uint32_t bytes = read_length(body, &at, end);
  if (bytes > end - at) die("properties longer than their packet");
  return at + bytes;
}
static void put_packet(conn *c, int first_byte, const uint8_t *body, int bytes) {
  uint8_t head[5] = {first_byte};
  put(c, head, write_length(head + 1, bytes) - head);
  put(c, body, bytes);
}
/* PUBACK, PUBREC, PUBREL, PUBCOMP. In MQTT 5 this short form means success without properties. */
static inline void put_ack(conn *c, int first_byte, int packet_id) {
  char *to = reserve(c, 4);
  to[0] = first_byte; to[1] = 2; to[2] = packet_id >> 8; to[3] = packet_id;
  c->out_tail += 4;
}

/* ---- what the broker sends ---- */
static void become_ready(conn *c) { ready_count += !c->ready; c->ready = 1; }

/* Returns the index of the connection that published it; for a stranger's, that of the first subscriber. */
static inline uint32_t on_message(conn *c, const uint8_t *payload, uint32_t bytes, uint64_t read_ns) {
  uint64_t sent_ns;
  uint32_t publisher, seq;
  if (!c->last_seq) die("a message for connection %d, which has not subscribed", c->id);
  delivered++;
  if (bytes < PAYLOAD_BYTES_MIN) return opt.publishers;
  memcpy(&sent_ns, payload, 8);
  memcpy(&publisher, payload + 8, 4);
  memcpy(&seq, payload + 12, 4);
  if (publisher >= (uint32_t)opt.publishers) return opt.publishers;
  if (seq <= c->last_seq[publisher]) disorder++;
  else { gaps += seq - c->last_seq[publisher] - 1; c->last_seq[publisher] = seq; }
  if (read_ns && measuring && !opt.ack_only) histogram_add(read_ns > sent_ns ? read_ns - sent_ns : 0);
  return publisher;
}
static inline void on_publish(conn *c, int first_byte, const uint8_t *body, uint32_t length, uint64_t read_ns) {
  int qos = first_byte >> 1 & 3, duplicate = first_byte >> 3 & 1, packet_id = 0;
  uint32_t at = length < 2 ? 2 : 2 + read_u16(body);
  if (at + (qos ? 2 : 0) > length) die("PUBLISH shorter than its topic");
  if (qos) {
    packet_id = read_u16(body + at);
    at += 2;
    put_ack(c, (qos == 1 ? PUBACK : PUBREC) << 4, packet_id);
  }
  at = skip_properties(body, at, length);
  if (qos < 2) {
    conns[on_message(c, body + at, length - at, read_ns)].settled++;
    return;
  }
  if (!c->id_states || qos > 2) die("PUBLISH of QoS %d for a subscription of QoS %d", qos, opt.subscribe_qos);
  if (c->id_states[packet_id] == FREE) {
    c->held_publisher[packet_id] = on_message(c, body + at, length - at, read_ns);
    c->id_states[packet_id] = AWAITS_PUBREL;
    unreleased++;
  } else if (duplicate) {
    redelivered++;
  } else {
    die("PUBLISH with packet id %d again before its PUBREL", packet_id);
  }
}
static inline void on_acknowledged(conn *c, int packet_id) {
  if (c->sent_ns && measuring) histogram_add(now_ns() - c->sent_ns[packet_id]);
  c->acked++;
  acked++;
}
/* What the packet id must have waited for, what it waits for next, and the answer's first byte. */
static const struct { const char *name; uint8_t from, to, answer; } ACKS[] = {
  [PUBACK] = {"PUBACK", AWAITS_PUBACK, FREE, 0},
  [PUBREC] = {"PUBREC", AWAITS_PUBREC, AWAITS_PUBCOMP, PUBREL_BYTE},
  [PUBREL] = {"PUBREL", AWAITS_PUBREL, FREE, PUBCOMP << 4},
  [PUBCOMP] = {"PUBCOMP", AWAITS_PUBCOMP, FREE, 0},
};
static inline void on_ack(conn *c, int type, const uint8_t *body, uint32_t length) {
  const char *name = ACKS[type].name;
  if (length < 2) die("%s without a packet id", name);
  int packet_id = read_u16(body), reason = length > 2 ? body[2] : 0;    /* MQTT 5 may leave it out */
  if (reason >= 0x80) die("%s for packet id %d: reason 0x%02x", name, packet_id, reason);
  if (!c->id_states || c->id_states[packet_id] != ACKS[type].from) die("%s for packet id %d, which awaits none", name, packet_id);
  c->id_states[packet_id] = ACKS[type].to;
  if (ACKS[type].answer) put_ack(c, ACKS[type].answer, packet_id);
  if (type == PUBACK || type == PUBCOMP) on_acknowledged(c, packet_id);
  if (type == PUBREL) {
    conns[c->held_publisher[packet_id]].settled++;
    unreleased--;
  }
}
/* Looks for Receive Maximum among CONNACK's properties. */
static void on_connack_properties(conn *c, const uint8_t *body, uint32_t length) {
  enum { RECEIVE_MAXIMUM = 0x21, USER_PROPERTY = 0x26, STRING = 9 };
  static const uint8_t value_bytes[] = {                /* MQTT 5, 2.2.2.2 */
    [0x11] = 4, [0x12] = STRING, [0x13] = 2, [0x15] = STRING, [0x16] = STRING, [0x1a] = STRING, [0x1c] = STRING, [0x1f] = STRING,
    [0x21] = 2, [0x22] = 2, [0x24] = 1, [0x25] = 1, [0x26] = STRING, [0x27] = 4, [0x28] = 1, [0x29] = 1, [0x2a] = 1,
  };
  uint32_t at = 2, end = skip_properties(body, at, length);
  read_length(body, &at, length);
  while (at < end) {
    int property = body[at++], strings = property == USER_PROPERTY ? 2 : 1;
    uint32_t bytes = property < count_of(value_bytes) ? value_bytes[property] : 0;
    if (!bytes) die("CONNACK with unknown property 0x%02x", property);
    for (; strings && bytes == STRING; strings--) at += 2 + (at + 2 <= end ? read_u16(body + at) : 0);
    at += bytes == STRING ? 0 : bytes;
    if (at > end) die("CONNACK property 0x%02x cut short", property);
    if (property == RECEIVE_MAXIMUM) {
      int broker_max = read_u16(body + at - 2);
      if (broker_max < c->window) c->window = broker_max;
      if (broker_max < receive_max) receive_max = broker_max;
    }
  }
}
static void on_connack(conn *c, const uint8_t *body, uint32_t length) {
  if (length < 2) die("CONNACK too short");
  if (body[1]) die("CONNACK refused 0x%02x", body[1]);
  if (opt.mqtt_level == 5) on_connack_properties(c, body, length);
  connected_count++;
  if (c->is_publisher) become_ready(c);
}
static void on_suback(conn *c, const uint8_t *body, uint32_t length) {
  uint32_t at = skip_properties(body, 2, length);
  if (at >= length) die("SUBACK too short");
  if (body[at] != opt.subscribe_qos) die("SUBACK 0x%02x to a subscription of QoS %d", body[at], opt.subscribe_qos);
  become_ready(c);
}

/* Both parsers return how many bytes they used; the rest is the start of an unfinished packet. */
static int parse_mqtt(conn *c, const uint8_t *buffer, int n, uint64_t read_ns) {
  int at = 0;
  while (n - at >= 2) {
    uint32_t length = 0;
    int header = 1, shift = 0;
    uint8_t byte;
    do {
      if (at + header >= n) return at;
      byte = buffer[at + header++];
      length |= (uint32_t)(byte & 127) << shift;
      shift += 7;
    } while (byte & 128 && header < 5);
    if (length > READ_BYTES_MAX - 5) die("a packet of %u bytes", length);
    if (n - at - header < (int)length) return at;
    const uint8_t *body = buffer + at + header;
    int type = buffer[at] >> 4;
    switch (type) {
    case PUBLISH: on_publish(c, buffer[at], body, length, read_ns); break;
    case PUBACK: case PUBREC: case PUBREL: case PUBCOMP: on_ack(c, type, body, length); break;
    case CONNACK: on_connack(c, body, length); break;
    case SUBACK: on_suback(c, body, length); break;
    case DISCONNECT: die("the broker disconnects connection %d, reason 0x%02x", c->id, length ? body[0] : 0);
    default: die("unexpected packet %02x", buffer[at]);
    }
    at += header + length;
  }
  return at;
}
static int parse_nats(conn *c, const uint8_t *buffer, int n, uint64_t read_ns) {
  int at = 0;
  while (at < n) {
    const char *line = (const char *)buffer + at, *newline = memchr(line, '\n', n - at);
    if (!newline) return at;
    int bytes = newline - line + 1;
    if (line[0] == 'M' && line[1] == 'S') {             /* MSG subject sid [reply] size */
      const char *size = newline - 1;
      while (size > line && size[-1] != ' ') size--;
      int payload_bytes = atoi(size);
      if (payload_bytes < 0 || payload_bytes > PAYLOAD_BYTES_MAX * 3 / 2) die("nats: %.*s", bytes, line);
      const uint8_t *payload = buffer + at + bytes;
      bytes += payload_bytes + 2;
      if (n - at < bytes) return at;
      if (!c->is_publisher) conns[on_message(c, payload, payload_bytes, read_ns)].settled++;
      else if (memmem(payload, payload_bytes, "\"error\"", 7)) die("JetStream refuses: %.*s", payload_bytes, payload);
      else on_acknowledged(c, c->acked % PACKET_ID_MAX + 1);    /* replies come in order: the oldest */
    } else if (line[0] == 'P' && line[1] == 'I') {
      put(c, "PONG\r\n", 6);
    } else if (line[0] == 'P' && line[1] == 'O') {
      become_ready(c);
    } else if (line[0] == '-') {
      die("nats: %.*s", bytes, line);
    }
    at += bytes;
  }
  return at;
}
static void on_readable(conn *c) {
  if (c->carry_bytes) memcpy(read_buffer, c->carry, c->carry_bytes);
  ssize_t n = recv(c->fd, read_buffer + c->carry_bytes, READ_BYTES_MAX - c->carry_bytes, MSG_DONTWAIT);
  reads++;
  if (n == 0) die("peer closed connection %d (%s)", c->id, c->is_publisher ? "pub" : "sub");
  if (n < 0 && errno == EAGAIN) return;
  if (n < 0) die("recv: %s", strerror(errno));
  n += c->carry_bytes;
  uint64_t read_ns = opt.rate > 0 ? now_ns() : 0;
  int used = opt.protocol == MQTT ? parse_mqtt(c, read_buffer, n, read_ns) : parse_nats(c, read_buffer, n, read_ns);
  c->carry_bytes = n - used;
  if (c->carry_bytes > c->carry_capacity) {
    c->carry_capacity = c->carry_bytes * 2;
    c->carry = realloc(c->carry, c->carry_capacity);
  }
  if (c->carry_bytes) memcpy(c->carry, read_buffer + used, c->carry_bytes);
  if (c->out_tail > c->out_head && !c->want_writable) flush_out(c);     /* this read's acknowledgements */
}
static int poll_once(double timeout_s) {
  struct epoll_event events[512];
  struct timespec timeout = {.tv_nsec = timeout_s > 0 ? timeout_s * 1e9 : 0};
  int n = epoll_pwait2(epoll_fd, events, count_of(events), &timeout, NULL);
  if (n < 0 && errno != EINTR) die("epoll_pwait2: %s", strerror(errno));
  for (int i = 0; i < n; i++) {
    conn *c = events[i].data.ptr;
    if (events[i].events & EPOLLOUT) flush_out(c);
    if (events[i].events & ~EPOLLOUT) on_readable(c);
  }
  return n;
}

/* ---- publish ---- */
static void build_template(conn *c, struct template *m, const char *topic, int payload_bytes) {
  m->bytes = malloc(strlen(topic) + payload_bytes + 128);
  if (opt.protocol == MQTT) {
    uint8_t *start = (uint8_t *)m->bytes, *to = start;
    int id_bytes = opt.qos ? 2 : 0, property_bytes = opt.mqtt_level == 5 ? 1 : 0;
    *to++ = PUBLISH_BYTE | opt.qos << 1;
    to = write_length(to, 2 + strlen(topic) + id_bytes + property_bytes + payload_bytes);
    to = write_string(to, topic);
    m->packet_id_at = to - start;
    to += id_bytes;
    if (property_bytes) *to++ = 0;
    m->payload_at = to - start;
    m->length = m->payload_at + payload_bytes;
  } else {
    m->payload_at = opt.qos ? sprintf(m->bytes, "PUB %s _IB.%d.%d %d\r\n", topic, getpid(), c->id, payload_bytes)
                            : sprintf(m->bytes, "PUB %s %d\r\n", topic, payload_bytes);
    m->length = m->payload_at + payload_bytes + 2;
    memcpy(m->bytes + m->length - 2, "\r\n", 2);
  }
  for (int i = 0; i < payload_bytes; i++) m->bytes[m->payload_at + i] = 'a' + i % 26;
  memcpy(m->bytes + m->payload_at + 8, &c->id, 4);
  if (m->length > c->template_bytes_max) c->template_bytes_max = m->length;
}
/* Topics in turn; with -v in 61 sizes each (a prime, so that topics and sizes mix). */
static void build_templates(conn *c, const char *topic) {
  uint32_t random = 12345 + c->id;
  c->templates_count = (opt.vary_payload ? 61 : 1) * opt.topics_per_publisher;
  c->templates = calloc(c->templates_count, sizeof *c->templates);
  for (int i = 0; i < c->templates_count; i++) {
    char name[NAME_BYTES_MAX + 64];
    int payload_bytes = opt.payload_bytes, n = snprintf(name, sizeof name, "%s", topic);
    if (opt.topics_per_publisher > 1)
      snprintf(name + n, sizeof name - n, "%c%d", opt.protocol == MQTT ? '/' : '.', i % opt.topics_per_publisher);
    if (opt.vary_payload) {
      random = random * 1664525 + 1013904223;
      payload_bytes = opt.payload_bytes / 2 + (random >> 8) % (opt.payload_bytes + 1);
      if (payload_bytes < PAYLOAD_BYTES_MIN) payload_bytes = PAYLOAD_BYTES_MIN;
    }
    build_template(c, &c->templates[i], name, payload_bytes);
  }
}
static inline void emit(conn *c, uint64_t due_ns) {
  struct template *m = &c->templates[c->templates_count == 1 ? 0 : c->seq % c->templates_count];
  char *to = reserve(c, m->length);
  memcpy(to, m->bytes, m->length);
  c->seq++;
  memcpy(to + m->payload_at, &due_ns, 8);
  memcpy(to + m->payload_at + 12, &c->seq, 4);
  if (opt.qos) {
    do c->packet_id = c->packet_id % PACKET_ID_MAX + 1; while (c->id_states[c->packet_id] != FREE);
    if (c->sent_ns) c->sent_ns[c->packet_id] = due_ns ? due_ns : now_ns();
    if (opt.protocol == MQTT) {
      write_u16((uint8_t *)to + m->packet_id_at, c->packet_id);
      c->id_states[c->packet_id] = opt.qos == 1 ? AWAITS_PUBACK : AWAITS_PUBREC;
    }
  }
  c->out_tail += m->length;
  published++;
}
/* How many messages QoS lets this publisher send now. */
static long window_left(conn *c) { return opt.qos ? c->window - (long)(c->seq - c->acked) : PACKET_ID_MAX; }

static void closed_loop_publish(conn *c) {
  if (c->want_writable) return;
  long count = window_left(c), chunk = opt.chunk_bytes / c->template_bytes_max;
  if (!opt.ack_only) {
    long undelivered_left = opt.undelivered_max - (long)(c->seq - c->settled / c->fan);
    if (undelivered_left < count) count = undelivered_left;
  }
  if (chunk < 1) chunk = 1;
  if (!opt.qos && count < chunk && count < opt.undelivered_max / 4) return;     /* wait for a worthwhile send */
  if (count > chunk) count = chunk;
  if (count < 1) return;
  while (count--) emit(c, 0);
  flush_out(c);
}
static void closed_loop_step(void) {
  static int first;                                     /* changes, so that none is always served first */
  uint64_t before = published;
  for (int i = 0; i < opt.publishers; i++) closed_loop_publish(&conns[(i + first) % opt.publishers]);
  first = (first + 1) % opt.publishers;
  poll_once(published != before ? 0 : 0.02);
}
static void open_loop_step(double t) {
  double soonest_s = t + 0.01;
  for (int i = 0; i < opt.publishers; i++) {
    conn *c = &conns[i];
    uint32_t before = c->seq;
    while (c->next_s <= t && c->out_tail - c->out_head < opt.chunk_bytes && window_left(c) > 0) {
      emit(c, c->next_s * 1e9);
      c->next_s += opt.publishers / opt.rate;
    }
    if (c->seq != before && !c->want_writable) flush_out(c);
    int blocked = c->want_writable || window_left(c) < 1;       /* then an event wakes it */
    if (!blocked && c->next_s < soonest_s) soonest_s = c->next_s;
  }
  poll_once(soonest_s - now_s());
}

/* ---- set-up ---- */
static void put_connect(conn *c) {
  uint8_t body[3 * NAME_BYTES_MAX], *to = body;
  char client_id[64];
  int keep_session = opt.keep_session && !c->is_publisher;
  snprintf(client_id, sizeof client_id, "m%d%c%d", getpid(), c->is_publisher ? 'p' : 's', c->id);
  to = write_string(to, "MQTT");
  *to++ = opt.mqtt_level;
  *to++ = (keep_session ? 0 : 2) | (opt.user ? 0x80 : 0) | (opt.password ? 0x40 : 0);
  to = write_u16(to, 0);                                /* no keep alive */
  if (opt.mqtt_level == 5) {
    /* Without an expiry interval (here an hour) MQTT 5 ends the session with the connection. */
    int bytes = keep_session ? 5 : 0;
    *to++ = bytes;
    memcpy(to, "\x11\0\0\x0e\x10", bytes);
    to += bytes;
  }
  to = write_string(to, client_id);
  if (opt.user) to = write_string(to, opt.user);
  if (opt.password) to = write_string(to, opt.password);
  put_packet(c, CONNECT_BYTE, body, to - body);
}
static void open_connection(conn *c, int id, int is_publisher) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(opt.ports[id % opt.ports_count])};
  if (inet_pton(AF_INET, opt.host, &address.sin_addr) != 1) die("-H wants an IPv4 address");
  c->id = id;
  c->is_publisher = is_publisher;
  c->window = opt.rate > 0 ? OPEN_LOOP_WINDOW : opt.window;
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  for (int tries = 0; connect(c->fd, (void *)&address, sizeof address); tries++) {
    if (tries > 50) die("connect: %s", strerror(errno));
    close(c->fd);
    usleep(100000);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
  }
  int one = 1;
  if (!opt.nagle) setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e)) die("epoll_ctl: %s", strerror(errno));
  if (opt.protocol == MQTT) {
    put_connect(c);
  } else {
    const char *hello = "CONNECT {\"verbose\":false,\"pedantic\":false,\"name\":\"mload\"}\r\n";
    put(c, hello, strlen(hello));
    if (is_publisher) put(c, "PING\r\n", 6);
  }
  flush_out(c);
}
static void subscribe(conn *c, const char *filter) {
  uint8_t body[2 * NAME_BYTES_MAX], *to = body;
  if (opt.protocol == MQTT) {
    to = write_u16(to, 1);
    if (opt.mqtt_level == 5) *to++ = 0;                 /* no properties */
    to = write_string(to, filter);
    *to++ = opt.subscribe_qos;
    put_packet(c, SUBSCRIBE_BYTE, body, to - body);
  } else {
    put(c, body, snprintf((char *)body, sizeof body, "SUB %s 1\r\nPING\r\n", filter));
  }
  flush_out(c);
}
/* Connections 0 .. publishers-1 publish, the others subscribe. */
static void prepare(conn *c) {
  int one_topic = strcmp(opt.pattern, "pair") != 0, index = c->is_publisher ? c->id : c->id - opt.publishers;
  char separator = opt.protocol == MQTT ? '/' : '.', topic[NAME_BYTES_MAX + 32];
  if (one_topic) index = 0;
  else if (opt.subscribers) index %= opt.subscribers;
  int n = snprintf(topic, sizeof topic, "%s%c%d", opt.topic, separator, index);
  if (c->is_publisher ? opt.qos > 0 : opt.subscribe_qos == 2) c->id_states = calloc(PACKET_ID_MAX + 1, 1);
  if (c->is_publisher) {
    c->fan = one_topic && opt.subscribers ? opt.subscribers : 1;
    build_templates(c, topic);
    if (opt.ack_only) c->sent_ns = calloc(PACKET_ID_MAX + 1, sizeof *c->sent_ns);
    if (opt.protocol == NATS && opt.qos) {              /* where JetStream's replies come */
      char line[64];
      put(c, line, snprintf(line, sizeof line, "SUB _IB.%d.%d 9\r\n", getpid(), c->id));
      flush_out(c);
    }
  } else {
    c->last_seq = calloc(opt.publishers, sizeof *c->last_seq);
    if (opt.subscribe_qos == 2) c->held_publisher = calloc(PACKET_ID_MAX + 1, sizeof *c->held_publisher);
    if (opt.topics_per_publisher > 1) snprintf(topic + n, sizeof topic - n, "%c%c", separator, opt.protocol == MQTT ? '+' : '*');
    subscribe(c, opt.filter ? opt.filter : topic);
  }
}
static void wait_for_all(const int *count, const char *what) {
  double deadline_s = now_s() + 10;
  while (*count < conns_count) {
    if (now_s() > deadline_s) die("only %d of %d connections %s", *count, conns_count, what);
    poll_once(0.1);
  }
}
static void connect_all(void) {
  conns_count = opt.publishers + opt.subscribers;
  conns = calloc(conns_count, sizeof *conns);
  for (int i = 0; i < conns_count; i++) open_connection(&conns[i], i, i < opt.publishers);
  if (opt.protocol == MQTT) wait_for_all(&connected_count, "connected");
  /* Silence before SUBSCRIBE. Linux takes a quick answer for a dialogue and delays that socket's ACKs from
   * then on; a broker that leaves Nagle on (mosquitto) would send it only full segments: another regime. */
  while (poll_once(0.15) > 0) {}
  for (int i = 0; i < conns_count; i++) prepare(&conns[i]);
  wait_for_all(&ready_count, "ready");
}

/* ---- runs ---- */
struct snapshot { double at_s, broker_cpu_s, self_cpu_s, machine_cpu_s, delivered, published, acked, reads; };

static struct snapshot take_snapshot(void) {
  return (struct snapshot){now_s(), brokers_cpu_s(), self_cpu_s(), machine_cpu_s(), delivered, published, acked, reads};
}
/* Warms up, then returns what happened in the measured time. */
static struct snapshot measure(void) {
  struct snapshot from = {0};
  double start_s = now_s(), t;
  for (int i = 0; i < opt.publishers && opt.rate > 0; i++) conns[i].next_s = start_s + i / opt.rate;
  while (t = now_s(), !measuring || t - from.at_s < opt.measured_s) {
    if (!measuring && t - start_s >= opt.warm_up_s) {
      from = take_snapshot();
      measuring = 1;
    }
    if (opt.rate > 0) open_loop_step(t); else closed_loop_step();
  }
  measuring = 0;
  struct snapshot to = take_snapshot();
  return (struct snapshot){to.at_s - from.at_s, to.broker_cpu_s - from.broker_cpu_s, to.self_cpu_s - from.self_cpu_s,
    to.machine_cpu_s - from.machine_cpu_s, to.delivered - from.delivered, to.published - from.published,
    to.acked - from.acked, to.reads - from.reads};
}
static int under_way(uint64_t expected) { return delivered < expected || (opt.qos && acked < published) || unreleased; }

/* Publishes nothing more; waits for what is under way, until nothing moved for 10 s or 20 s passed: a
 * machine that stands still for some seconds has lost nothing. */
static void drain(uint64_t expected) {
  double start_s = now_s(), moved_s = start_s, t;
  uint64_t seen = 0;
  while (under_way(expected)) {
    uint64_t progress = delivered + acked - unreleased;
    t = now_s();
    if (progress != seen) { seen = progress; moved_s = t; }
    if (t - moved_s > 10 || t - start_s > 20) break;
    poll_once(0.05);
  }
}
static const char *protocol_name(void) { return opt.protocol == NATS ? "nats" : opt.mqtt_level == 5 ? "mqtt5" : "mqtt3"; }
static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

/* The field names are an interface: mload.md lists them. */
static void report(struct snapshot d, uint64_t expected) {
  double got = opt.subscribers ? d.delivered : d.acked, other_cpu_s = d.machine_cpu_s - d.broker_cpu_s - d.self_cpu_s;
  printf("{\"label\":\"%s\",\"pat\":\"%s\",\"topics\":%d,\"vary\":%d", opt.label, opt.pattern, opt.topics_per_publisher, opt.vary_payload);
  printf(",\"P\":%d,\"S\":%d,\"qos\":%d,\"size\":%d", opt.publishers, opt.subscribers, opt.qos, opt.payload_bytes);
  printf(",\"win\":%d,\"rate\":%.0f", opt.qos ? opt.window : opt.undelivered_max, opt.rate);
  printf(",\"delivered_s\":%.0f,\"published_s\":%.0f,\"acked_s\":%.0f", got / d.at_s, d.published / d.at_s, d.acked / d.at_s);
  printf(",\"broker_cpu_pct\":%.0f,\"cpu_us_per_delivered\":%.3f,\"cpu_us_per_published\":%.3f",
         d.broker_cpu_s * 100 / d.at_s, ratio(d.broker_cpu_s * 1e6, got), ratio(d.broker_cpu_s * 1e6, d.published));
  printf(",\"gen_cpu_pct\":%.0f,\"other_cpu_pct\":%.0f", d.self_cpu_s * 100 / d.at_s, other_cpu_s * 100 / d.at_s);
  printf(",\"lost\":%ld,\"gaps\":%lu,\"disorder\":%lu", expected ? (long)(expected - delivered) : 0, gaps, disorder);
  printf(",\"unacked\":%ld,\"rss_kb\":%ld", opt.qos ? (long)(published - acked) : 0, brokers_rss_kb());
  printf(",\"msgs_per_recv\":%.2f", ratio(got, d.reads));
  printf(",\"proto\":\"%s\",\"sub_qos\":%d,\"seconds\":%.3f", protocol_name(), opt.subscribe_qos, d.at_s);
  printf(",\"unreleased\":%lu,\"redelivered\":%lu,\"receive_max\":%d", unreleased, redelivered, receive_max);
  if (histogram_count) {
    printf(",\"lat_p50_us\":%.1f,\"lat_p99_us\":%.1f", histogram_us(.5), histogram_us(.99));
    printf(",\"lat_p999_us\":%.1f,\"lat_max_us\":%.1f", histogram_us(.999), histogram_max_ns / 1000.0);
  }
  puts("}");
}
static int run_load(void) {
  uint64_t expected = 0;
  connect_all();
  struct snapshot measured = measure();
  for (int i = 0; i < opt.publishers && opt.subscribers; i++) expected += (uint64_t)conns[i].seq * conns[i].fan;
  drain(expected);
  report(measured, expected);
  return under_way(expected) ? 3 : 0;
}
static int run_idle(void) {
  long rss_before_kb = brokers_rss_kb();
  double start_s = now_s(), cpu_before_s = brokers_cpu_s();
  conns = calloc(opt.idle_connections, sizeof *conns);
  while (conns_count < opt.idle_connections) {
    open_connection(&conns[conns_count], conns_count, 1);
    if (++conns_count % 64 && conns_count < opt.idle_connections) continue;
    while (ready_count < conns_count && now_s() - start_s < 90) poll_once(0.1);         /* accept queues are short */
  }
  double connect_s = now_s() - start_s, connect_cpu_s = brokers_cpu_s() - cpu_before_s;
  usleep(500000);
  long rss_after_kb = brokers_rss_kb();
  double kb_per_conn = (double)(rss_after_kb - rss_before_kb) / conns_count;
  printf("{\"label\":\"%s\",\"mode\":\"idle\",\"conns\":%d,\"ready\":%d", opt.label, conns_count, ready_count);
  printf(",\"rss0_kb\":%ld,\"rss1_kb\":%ld,\"kb_per_conn\":%.2f", rss_before_kb, rss_after_kb, kb_per_conn);
  printf(",\"connect_s\":%.2f,\"broker_cpu_us_per_connect\":%.1f", connect_s, connect_cpu_s * 1e6 / conns_count);
  printf(",\"proto\":\"%s\"}\n", protocol_name());
  if (!opt.hold_s) return 0;
  double hold_start_s = now_s(), hold_cpu_s = brokers_cpu_s();
  while (now_s() - hold_start_s < opt.hold_s) poll_once(0.1);
  hold_cpu_s = brokers_cpu_s() - hold_cpu_s;
  printf("{\"label\":\"%s\",\"mode\":\"idle-hold\",\"broker_cpu_pct\":%.2f}\n", opt.label, hold_cpu_s * 100 / opt.hold_s);
  return 0;
}

/* ---- command line ---- */
static void usage(void) {
  puts("mload [-x mqtt|nats] [-V 3|5] [-H ip] [-p port[,port..]] -P pubs -S subs -m pair|fanin|fanout\n"
       "  -V MQTT version: 3 (3.1.1, default) or 5\n"
       "  -q pub qos 0|1|2 (NATS: 1 = JetStream ack)  -Q sub qos (default = pub qos)  -W unacked window per pub (QoS 1, 2)\n"
       "  -s payload bytes (>=16)  -o undelivered window per pub  -c send chunk bytes  -w warm-up s  -t measured s\n"
       "  -r total rate msg/s (open-loop, latency)  -A ack-only: do not wait for delivery (S may be 0)\n"
       "  -I n: open n idle connections, report broker RSS per connection; -D s: then hold them\n"
       "  -v vary payload size uniformly in [s/2, 3s/2]\n"
       "  -K k: each publisher rotates over k topics (subscribers use a one-level wildcard)\n"
       "  -B pid[,pid]: broker pids for CPU and RSS  -u user -k password  -T topic prefix  -F subscribe filter  -L label\n"
       "  -C: subscribers keep their session (clean session 0; MQTT 5: for an hour)  -n: leave Nagle on\n"
       "  --json: accepted; the output is always JSON");
  exit(1);
}
static int number_list(char *text, int *into, int max) {
  int n = 0;
  for (char *s = strtok(text, ","); s; s = strtok(NULL, ",")) {
    if (n == max) die("more than %d numbers in a list", max);
    into[n++] = atoi(s);
  }
  return n;
}
static void parse_options(int argc, char **argv) {
  static const struct option long_options[] = {{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
  static const struct { char letter; int *value; } numbers[] = {
    {'P', &opt.publishers}, {'S', &opt.subscribers}, {'q', &opt.qos}, {'Q', &opt.subscribe_qos}, {'W', &opt.window},
    {'o', &opt.undelivered_max}, {'s', &opt.payload_bytes}, {'K', &opt.topics_per_publisher}, {'c', &opt.chunk_bytes},
    {'I', &opt.idle_connections}, {'D', &opt.hold_s},
  }, switches[] = {{'A', &opt.ack_only}, {'C', &opt.keep_session}, {'n', &opt.nagle}, {'v', &opt.vary_payload}};
  static const struct { char letter; double *value; } reals[] = {{'w', &opt.warm_up_s}, {'t', &opt.measured_s}, {'r', &opt.rate}};
  static const struct { char letter; const char **value; } texts[] = {
    {'H', &opt.host}, {'m', &opt.pattern}, {'u', &opt.user}, {'k', &opt.password}, {'T', &opt.topic}, {'F', &opt.filter}, {'L', &opt.label},
  };
  for (int o; (o = getopt_long(argc, argv, "x:V:H:p:P:S:m:q:Q:W:s:o:c:w:t:r:AI:D:B:u:k:T:F:L:nvK:Ch", long_options, NULL)) != -1;) {
    for (int i = 0; i < count_of(numbers); i++) if (numbers[i].letter == o) *numbers[i].value = atoi(optarg);
    for (int i = 0; i < count_of(switches); i++) if (switches[i].letter == o) *switches[i].value = 1;
    for (int i = 0; i < count_of(reals); i++) if (reals[i].letter == o) *reals[i].value = atof(optarg);
    for (int i = 0; i < count_of(texts); i++) if (texts[i].letter == o) {
      if (strlen(optarg) > NAME_BYTES_MAX) die("-%c is longer than %d bytes", o, NAME_BYTES_MAX);
      *texts[i].value = optarg;
    }
    if (o == 'x') opt.protocol = !strcmp(optarg, "nats") ? NATS : MQTT;
    if (o == 'V') opt.mqtt_level = !strcmp(optarg, "5") ? 5 : !strcmp(optarg, "3") ? 4 : 0;
    if (o == 'p') opt.ports_count = number_list(optarg, opt.ports, count_of(opt.ports));
    if (o == 'B') opt.broker_pids_count = number_list(optarg, opt.broker_pids, count_of(opt.broker_pids));
    if (o == 'h' || o == '?') usage();
  }
  if (!opt.ports_count) opt.ports[opt.ports_count++] = opt.protocol == MQTT ? 1883 : 4222;
  if (opt.subscribe_qos < 0) opt.subscribe_qos = opt.qos;
}
static void check_options(void) {
  if (!opt.mqtt_level) die("-V is 3 or 5");
  if (opt.qos < 0 || opt.qos > 2 || opt.subscribe_qos > 2) die("-q and -Q are 0, 1 or 2");
  if (opt.protocol == NATS && opt.qos > 1) die("NATS has no QoS 2");
  if (strcmp(opt.pattern, "pair") && strcmp(opt.pattern, "fanin") && strcmp(opt.pattern, "fanout"))
    die("-m is pair, fanin or fanout");
  if (opt.publishers < 1 || opt.subscribers < 0 || opt.topics_per_publisher < 1) die("-P and -K are at least 1, -S at least 0");
  if (opt.window < 1 || opt.window > PACKET_ID_MAX || opt.undelivered_max < 1) die("-W is 1 to %d, -o at least 1", PACKET_ID_MAX);
  if (opt.payload_bytes < PAYLOAD_BYTES_MIN || opt.payload_bytes > PAYLOAD_BYTES_MAX)
    die("-s is %d to %d", PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX);
  if (!opt.subscribers && !opt.ack_only) die("-S 0 needs -A");
  if (opt.ack_only && !opt.qos) die("-A needs -q 1 or 2");
  if (opt.topic[strspn(opt.topic, "0123456789.")] == 0) die("-T is the topic prefix; the measured seconds are -t");
}
int main(int argc, char **argv) {
  if (argc < 2) usage();
  setvbuf(stdout, NULL, _IOLBF, 0);
  parse_options(argc, argv);
  check_options();
  signal(SIGPIPE, SIG_IGN);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  epoll_fd = epoll_create1(0);
  return opt.idle_connections ? run_idle() : run_load();
}
