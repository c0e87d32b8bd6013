/*: # The target

A plan is made for a machine that was measured, not for one that was assumed. A **target** is a small text
file of keys and values: published constants for a card that we do not have, or what `tiles probe` found
here. On a CPU three numbers matter: how many threads may really run, how fast they read memory together and
alone, and what a barrier costs. :*/
#include "tiles.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*: ## The file

One table names every key, so that reading and writing cannot disagree. Zero and an absent key are the same:
unknown. :*/
//> target_fields
enum FieldKind { TEXT, COUNT, RATE, FFN, ATTENTION, SYNC };
typedef struct Field {
  const char *key;
  enum FieldKind kind;
  size_t offset, size;
} Field;
#define FIELD(kind, name)                                                                          \
  { #name, kind, offsetof(Target, name), sizeof(((Target *)0)->name) }
static const Field fields[] = {
    FIELD(TEXT, name),           FIELD(TEXT, kind),         FIELD(COUNT, workers),
    FIELD(COUNT, threads),       FIELD(COUNT, registers),   FIELD(COUNT, shared_bytes),
    FIELD(COUNT, fused_context), FIELD(RATE, read_gbs),     FIELD(RATE, worker_gbs),
    FIELD(RATE, kv_worker_gbs),  FIELD(RATE, barrier_us),   FIELD(RATE, handoff_us),
    FIELD(RATE, ramp_us),        FIELD(RATE, attention_us), FIELD(FFN, ffn),
    FIELD(ATTENTION, attention), FIELD(SYNC, sync),         FIELD(TEXT, fingerprint),
};
enum { FIELDS = sizeof fields / sizeof *fields };
static const char *const ffn_words[] = {"auto", "fused", "split"};
static const char *const attention_words[] = {"auto", "two-pass", "one-pass"};
static const char *const sync_words[] = {"auto", "barrier", "data"};
//< target_fields

static int set_field(Target *t, const Field *f, const char *value) {
  char *at = (char *)t + f->offset, *end;
  errno = 0;
  if (f->kind == TEXT) {
    if (strlen(value) >= f->size) return -1;
    memcpy(at, value, strlen(value) + 1);
  } else if (f->kind == COUNT) {
    unsigned long v = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || v > UINT32_MAX) return -1;
    *(uint32_t *)(void *)at = (uint32_t)v;
  } else if (f->kind == RATE) {
    double v = strtod(value, &end);
    if (end == value || *end || !(v >= 0 && v <= 1e9)) return -1;
    *(double *)(void *)at = v;
  } else {
    const char *const *words = f->kind == FFN         ? ffn_words
                               : f->kind == ATTENTION ? attention_words
                                                      : sync_words;
    int i = 0;
    while (i < 3 && strcmp(value, words[i]) != 0) i++;
    if (i == 3) return -1;
    if (f->kind == FFN) t->ffn = (FfnKind)i;
    else if (f->kind == ATTENTION) t->attention = (AttentionKind)i;
    else t->sync = (SyncKind)i;
  }
  return 0;
}

static int parse_line(const char *file, int number, char *line, Target *t, bool seen[FIELDS],
                      Error *e) {
  char *hash = strchr(line, '#');
  if (hash) *hash = 0;
  size_t n = strlen(line);
  while (n && strchr(" \t\r\n", line[n - 1])) line[--n] = 0;
  if (!n) return 0;
  char *tab = strchr(line, '\t');
  if (!tab) return fail(e, EXIT_INPUT, "%s:%d: no tab between key and value", file, number);
  *tab++ = 0;
  tab += strspn(tab, " \t");
  for (int i = 0; i < FIELDS; i++) {
    if (strcmp(fields[i].key, line) != 0) continue;
    if (seen[i]) return fail(e, EXIT_INPUT, "%s:%d: key %s stands here twice", file, number, line);
    seen[i] = true;
    if (set_field(t, &fields[i], tab) != 0)
      return fail(e, EXIT_INPUT, "%s:%d: key %s: cannot use the value \"%s\"", file, number, line,
                  tab);
    return 0;
  }
  return fail(e, EXIT_INPUT, "%s:%d: unknown key %s", file, number, line);
}

int target_read(const char *name_or_file, Target *out, Error *e) {
  *out = (Target){0};
  char path[512];
  bool plain = !strchr(name_or_file, '/') && !strchr(name_or_file, '.');
  int n = plain ? snprintf(path, sizeof path, "targets/%s.tsv", name_or_file)
                : snprintf(path, sizeof path, "%s", name_or_file);
  if (n < 0 || (size_t)n >= sizeof path)
    return fail(e, EXIT_INPUT, "target: a name of %d bytes, at most %zu", n, sizeof path - 1);
  FILE *f = fopen(path, "r");
  if (!f && plain) {
    // Run from elsewhere: the targets lie beside the program.
    char self[400];
    ssize_t k = readlink("/proc/self/exe", self, sizeof self - 1);
    for (int up = 0; !f && k > 0 && up < 2; up++) {
      self[k] = 0;
      char *slash = strrchr(self, '/');
      if (!slash) break;
      *slash = 0;
      k = slash - self;
      snprintf(path, sizeof path, "%.380s/targets/%.100s.tsv", self, name_or_file);
      f = fopen(path, "r");
    }
  }
  if (!f) return fail(e, EXIT_INPUT, "%s: no such target: %s", name_or_file, strerror(errno));
  bool seen[FIELDS] = {false};
  char line[512];
  int number = 0, status = 0;
  while (status == 0 && fgets(line, sizeof line, f)) {
    if (!strchr(line, '\n') && !feof(f))
      status = fail(e, EXIT_INPUT, "%s:%d: a line of more than %zu bytes", path, number + 1,
                    sizeof line - 1);
    else status = parse_line(path, ++number, line, out, seen, e);
  }
  if (status == 0 && ferror(f)) status = fail(e, EXIT_INPUT, "%s: %s", path, strerror(errno));
  fclose(f);
  if (status != 0) return status;
  if (!out->workers) return fail(e, EXIT_INPUT, "%s: key workers: missing or 0", path);
  if (strcmp(out->kind, "cpu") != 0 && strcmp(out->kind, "cuda") != 0)
    return fail(e, EXIT_INPUT, "%s: key kind: \"%s\" is neither cpu nor cuda", path, out->kind);
  return 0;
}

int target_write(const Target *t, FILE *f) {
  for (int i = 0; i < FIELDS; i++) {
    const char *at = (const char *)t + fields[i].offset;
    const char *key = fields[i].key;
    switch (fields[i].kind) {
    case TEXT:
      if (*at) fprintf(f, "%s\t%s\n", key, at);
      break;
    case COUNT: fprintf(f, "%s\t%u\n", key, *(const uint32_t *)(const void *)at); break;
    case RATE: fprintf(f, "%s\t%.4g\n", key, *(const double *)(const void *)at); break;
    case FFN: fprintf(f, "%s\t%s\n", key, ffn_words[t->ffn]); break;
    case ATTENTION: fprintf(f, "%s\t%s\n", key, attention_words[t->attention]); break;
    case SYNC: fprintf(f, "%s\t%s\n", key, sync_words[t->sync]); break;
    }
  }
  return ferror(f) ? -1 : 0;
}

/*: ## How many threads may run

The machine's cores, unless this process is bound to fewer, unless a control group grants it only a share of
time. A container that may use two cores of sixty-four must not start sixty-four threads: they would
wait for each other at every barrier. :*/
//> cpu_count
static double cgroup_limit(void) {
  double quota = 0, period = 0;
  FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r"); // version 2: "max 100000" or "200000 100000"
  if (f) {
    if (fscanf(f, "%lf %lf", &quota, &period) != 2) quota = 0;
    fclose(f);
    return quota > 0 && period > 0 ? quota / period : 0;
  }
  FILE *q = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r");
  FILE *p = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
  if (!q || !p || fscanf(q, "%lf", &quota) != 1 || fscanf(p, "%lf", &period) != 1) quota = 0;
  if (q) fclose(q);
  if (p) fclose(p);
  return quota > 0 && period > 0 ? quota / period : 0;
}

uint32_t cpu_count(void) {
  uint32_t n = 1;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) n = (uint32_t)CPU_COUNT(&set);
  double limit = cgroup_limit();
  if (limit > 0 && limit < n) n = limit < 1 ? 1 : (uint32_t)limit;
  return n ? n : 1;
}
//< cpu_count

/*: ## How fast they read

The floor is bytes over this rate, so it must be the best rate that the threads can read at, in the
manner in which a tile reads: front to back, each thread its own part. :*/
//> read_rate
typedef struct Reader {
  const Region *regions;
  size_t count;
  uint32_t index, threads;
  const Kernels *kernels;
  atomic_int *gate; // 0 wait, 1 go, -1 give up
  double least, bytes, took;
  uint64_t sink;
} Reader;

enum { READ_STEP = 1 << 20 }; // bytes between two looks at the clock

static void *read_thread(void *argument) {
  Reader *r = argument;
  int go;
  while ((go = atomic_load(r->gate)) == 0) sched_yield();
  if (go < 0) return NULL;
  double begin = seconds();
  for (;;)
    for (size_t i = 0; i < r->count; i++) {
      size_t lines = r->regions[i].bytes / 64;
      size_t at = lines * r->index / r->threads * 64,
             end = lines * (r->index + 1) / r->threads * 64;
      for (; at < end; at += READ_STEP) {
        size_t n = end - at < READ_STEP ? end - at : READ_STEP;
        r->sink ^= r->kernels->read(r->regions[i].data + at, n);
        r->bytes += (double)n;
        r->took = seconds() - begin;
        if (r->took >= r->least) return NULL;
      }
      r->took = seconds() - begin;
      if (r->took >= r->least) return NULL;
    }
}

double read_rate(const Region *regions, size_t count, uint32_t threads, double least_seconds) {
  Reader *reader = calloc(threads, sizeof *reader);
  pthread_t *id = calloc(threads, sizeof *id);
  atomic_int gate = 0;
  uint32_t started = 1;
  for (uint32_t i = 0; reader && i < threads; i++)
    reader[i] = (Reader){.regions = regions,
                         .count = count,
                         .index = i,
                         .threads = threads,
                         .kernels = kernels_find(NULL),
                         .gate = &gate,
                         .least = least_seconds};
  if (reader && id)
    for (; started < threads; started++)
      if (pthread_create(&id[started], NULL, read_thread, &reader[started]) != 0) break;
  bool all = reader && id && count && started == threads;
  atomic_store(&gate, all ? 1 : -1);
  if (all) read_thread(&reader[0]);
  for (uint32_t i = 1; id && i < started; i++) pthread_join(id[i], NULL);
  double rate = 0;
  for (uint32_t i = 0; all && i < threads; i++)
    if (reader[i].took > 0) rate += reader[i].bytes / reader[i].took / 1e9;
  free(reader);
  free(id);
  return rate;
}
//< read_rate

/*: ## What a barrier costs

A plan without rows cannot exist, so we time the smallest that does: a model so small that the waves hold
almost nothing, and divide by its waves. What is left is the barrier. :*/
//> barrier_cost
static double barrier_cost(uint32_t workers) {
  Shape s = {.family = "llama",
             .vocab = 16,
             .hidden = 16,
             .inter = 16,
             .layers = 8,
             .heads = 2,
             .kv_heads = 2,
             .head_dim = 2,
             .max_context = 8,
             .rms_eps = 1e-5f,
             .dtype = DT_F32,
             .rope = {.theta = 10000},
             .tied = true};
  static const float zeros[16 * 16];
  Matrix square = {(const uint8_t *)zeros, DT_F32, 16, 16, 0};
  Matrix head = {(const uint8_t *)zeros, DT_F32, 4, 16, 0},
         out = {(const uint8_t *)zeros, DT_F32, 16, 4, 0};
  Layer layer[8];
  for (int i = 0; i < 8; i++)
    layer[i] = (Layer){.attn_norm = zeros,
                       .ffn_norm = zeros,
                       .q = head,
                       .k = head,
                       .v = head,
                       .o = out,
                       .gate = square,
                       .up = square,
                       .down = square};
  Model m = {
      .shape = s, .embedding = square, .lm_head = square, .final_norm = zeros, .layer = layer};
  Target t = {.kind = "cpu", .workers = workers, .threads = 1};
  Plan p;
  Cpu *c;
  Error e;
  if (plan_make(&s, &t, &p, &e) != 0) return 0;
  double best = 0;
  if (cpu_open(&m, &p, 4, workers, &c, &e) == 0) {
    for (int run = 0; run < 200; run++) {
      int32_t next;
      double begin = seconds();
      if (cpu_step(c, 0, 0, true, &next, &e) != 0) break;
      double us = 1e6 * (seconds() - begin) / p.wave_count;
      if (!best || us < best) best = us;
    }
    cpu_close(c);
  }
  plan_free(&p);
  return best;
}
//< barrier_cost

int target_probe(uint32_t workers, Target *out, Error *e) {
  if (!workers) workers = cpu_count();
  *out = (Target){
      .name = "this-cpu", .kind = "cpu", .workers = workers, .threads = 1, .fused_context = 256};
  const size_t bytes = (size_t)512 << 20; // several times what a cache holds
  uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return fail(e, EXIT_FAIL, "probe: no %zu bytes to read from: %s", bytes, strerror(errno));
  memset(data, 1, bytes);
  const Region region = {data, bytes};
  for (int run = 0; run < 3; run++) {
    double together = read_rate(&region, 1, workers, 0.1), alone = read_rate(&region, 1, 1, 0.1);
    if (together > out->read_gbs) out->read_gbs = together;
    if (alone > out->worker_gbs) out->worker_gbs = alone;
  }
  munmap(data, bytes);
  if (!(out->read_gbs > 0))
    return fail(e, EXIT_FAIL, "probe: could not read %zu bytes with %u threads", bytes, workers);
  out->kv_worker_gbs = out->worker_gbs;
  out->barrier_us = barrier_cost(workers);
  return 0;
}
