/*: ## The chapters' main

It opens a model, plans, decodes the same tokens several times, and says what a token took. A chapter's time counts from the host's first call to
the last id on the host, because that is what somebody who waits for the token waits for. All chapters that need a plan take the same: the FFN in
two waves, attention in one pass. :*/
#include "chapters/chapter.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

bool chapter_graph;
__attribute__((weak)) double gpu_host_milliseconds(const Gpu *g) { // where there is no gpu.cu
  (void)g;
  return 0;
}

//> chapter_options
typedef struct Options {
  const char *model;
  int32_t id[GPU_LAUNCH]; // the prompt
  uint32_t ids;
  long tokens, context, workers, runs;
  bool tsv;
} Options;

static int number(const char *what, const char *text, long least, long most, long *out, Error *e) {
  char *end;
  errno = 0;
  *out = strtol(text, &end, 10);
  if (errno || end == text || *end || *out < least || *out > most)
    return fail(e, EXIT_USAGE, "%s: \"%s\" is not a number from %ld to %ld", what, text, least,
                most);
  return 0;
}

static int parse_ids(char *list, Options *o, Error *e) {
  o->ids = 0;
  for (char *word = strtok(list, ", "); word; word = strtok(NULL, ", ")) {
    long id;
    if (o->ids == GPU_LAUNCH) return fail(e, EXIT_USAGE, "--ids: at most %d", GPU_LAUNCH);
    if (number("--ids", word, 0, INT32_MAX, &id, e) != 0) return -1;
    o->id[o->ids++] = (int32_t)id;
  }
  return o->ids ? 0 : fail(e, EXIT_USAGE, "--ids: no ids");
}

static int parse(int argc, char **argv, Options *o, Error *e) {
  static const struct option names[] = {
      {"ids", 1, 0, 'i'}, {"ctx", 1, 0, 'x'},   {"runs", 1, 0, 'r'}, {"workers", 1, 0, 'w'},
      {"tsv", 0, 0, 'v'}, {"graph", 0, 0, 'g'}, {0, 0, 0, 0}};
  *o = (Options){.id = {1}, .ids = 1, .tokens = 64, .runs = 1};
  int c, bad = 0;
  opterr = 0;
  while (!bad && (c = getopt_long(argc, argv, "n:", names, NULL)) != -1) switch (c) {
    case 'i': bad = parse_ids(optarg, o, e); break;
    case 'n': bad = number("-n", optarg, 1, 1 << 20, &o->tokens, e); break;
    case 'x': bad = number("--ctx", optarg, 1, 1 << 24, &o->context, e); break;
    case 'r': bad = number("--runs", optarg, 1, 1000, &o->runs, e); break;
    case 'w': bad = number("--workers", optarg, 1, 65536, &o->workers, e); break;
    case 'v': o->tsv = true; break;
    case 'g': chapter_graph = true; break;
    default: bad = -1; break;
    }
  if (!bad && optind + 1 == argc) o->model = argv[optind];
  if (!o->model && !(bad && e->code))
    return fail(e, EXIT_USAGE,
                "usage: %s MODEL [--ids LIST] [-n TOKENS] [--ctx CONTEXT] [--workers N] "
                "[--runs N] [--tsv]%s",
                chapter.name, chapter.kernels ? " [--graph]" : "");
  return bad;
}
//< chapter_options

/*: The first token decoded sees `--ctx` positions. Where the prompt is shorter, positions before it hold seeded numbers. :*/
//> chapter_open
typedef struct Session {
  Source source;
  Model model;
  Plan plan;
  Decoder decoder;
  uint32_t first; // the prompt's first position
} Session;

static int open_session(const Options *o, Session *s, Error *e) {
  *s = (Session){0};
  if (source_open(o->model, &s->source, e) != 0 || model_open(&s->source, &s->model, e) != 0)
    return -1;
  Shape shape = s->model.shape;
  uint32_t context = (uint32_t)o->context > o->ids ? (uint32_t)o->context : o->ids;
  uint32_t positions = context + (uint32_t)o->tokens - 1;
  if (positions > (uint32_t)shape.max_context)
    return fail(e, EXIT_USAGE, "%u positions, the model knows %d", positions, shape.max_context);
  s->first = context - o->ids;
  int device = chapter.cpu || gpu_count() == 0 ? -1 : 0;
  if (device < 0 && !chapter.cpu)
    return fail(e, EXIT_FAIL, "%s; make B=build/fibers CUDA=no %s runs the kernels without a card",
                gpu_why_none(), chapter.name);
  Target t = {.name = "this-cpu", .kind = "cpu", .threads = 1, .fused_context = 256};
  t.workers = o->workers ? (uint32_t)o->workers : cpu_count();
  if (device >= 0 && gpu_target(device, (uint32_t)o->workers, &t, e) != 0) return -1;
  t.ffn = FFN_SPLIT;
  t.attention = ATTENTION_ONE_PASS;
  t.sync = chapter.sync;
  if (device >= 0 && shape.dtype == DT_F32) shape.dtype = DT_BF16;
  if (plan_make(&shape, &t, &s->plan, e) != 0) return -1;
  if (decoder_open(&s->model, &s->plan, positions, device, &s->decoder, e) != 0) return -1;
  return s->first ? decoder_seed_cache(&s->decoder, s->first, e) : 0;
}

static void close_session(Session *s) {
  decoder_close(&s->decoder);
  plan_free(&s->plan);
  model_close(&s->model);
  source_close(&s->source);
}
//< chapter_open

/*: A run is the prompt, token by token without logits, and then what is timed: launches until there are enough tokens. :*/
//> chapter_decode
typedef struct Run {
  int32_t *id;                               // [tokens]
  uint32_t tokens, steps, launches, kernels; // steps: tokens, and the stop id where one ended it
  double seconds, device_ms, host_ms;        // host: its work before it waits
} Run;

static int decode(Session *s, const Options *o, uint32_t tokens, Run *r, Error *e) {
  Decoder *d = &s->decoder;
  int32_t out[GPU_LAUNCH], last = o->id[o->ids - 1];
  uint32_t made;
  bool stopped = false;
  *r = (Run){.id = r->id};
  for (uint32_t i = 0; i + 1 < o->ids; i++)
    if (decoder_decode(d, &o->id[i], 1, s->first + i, 1, false, out, &made, &stopped, e) != 0)
      return -1;
  double begin = seconds();
  while (r->tokens < tokens && !stopped) {
    uint32_t steps = tokens - r->tokens, at = s->first + o->ids - 1 + r->tokens;
    if (steps > chapter.launch) steps = chapter.launch;
    if (decoder_decode(d, &last, 1, at, steps, true, out, &made, &stopped, e) != 0) return -1;
    memcpy(r->id + r->tokens, out, made * sizeof *out);
    if (made) last = out[made - 1];
    r->tokens += made;
    r->steps += made + stopped;
    r->launches++;
    r->kernels += d->cpu ? 0 : chapter.kernels ? chapter.kernels() : 1;
    r->device_ms += d->milliseconds;
    r->host_ms += d->gpu ? gpu_host_milliseconds(d->gpu) : 0;
  }
  r->seconds = seconds() - begin;
  return 0;
}
//< chapter_decode

//> chapter_measure
typedef struct Times { // a token's
  double ms, least_ms, most_ms;
  double kernels, device_ms, host_us,
      turn_us; // turn: from one launch's end to the next one's begin
  double busy_us, idle_us;
  double read_gbs, floor_ms;
  uint64_t ids_hash, logits_hash; // the latter of the last step
} Times;

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *v, size_t n) {
  qsort(v, n, sizeof *v, ascending);
  return n ? v[n / 2] : 0;
}

// Each traced token is read back before the next, so these are other runs than the timed ones.
static int trace(Session *s, const Options *o, Run *scratch, Times *t, Error *e) {
  enum { TRACED = 9 };
  double busy[TRACED], idle[TRACED];
  int bad = 0;
  chapter.trace(true);
  for (int i = 0; i < TRACED && !bad; i++) {
    bad = decode(s, o, 1, scratch, e);
    if (!bad) bad = chapter.traced(&busy[i], &idle[i], e);
  }
  chapter.trace(false);
  if (bad) return bad;
  t->busy_us = median(busy, TRACED);
  t->idle_us = median(idle, TRACED);
  return 0;
}

static double read_gbs(Session *s) {
  if (s->decoder.gpu) return gpu_read_rate(s->decoder.gpu);
  return model_read_gbs(&s->model, decoder_threads(&s->decoder), 0.1);
}

// ms: [runs]
static int measure(Session *s, const Options *o, Run *r, Run *again, double *ms, Times *t,
                   Error *e) {
  // The first token touches every page, captures graphs and loads kernels.
  if (decode(s, o, 1, again, e) != 0) return -1;
  double before = read_gbs(s);
  for (long i = 0; i < o->runs; i++) {
    Run *now = i ? again : r;
    if (decode(s, o, (uint32_t)o->tokens, now, e) != 0) return -1;
    if (i && (r->tokens != now->tokens || memcmp(r->id, now->id, r->tokens * sizeof *r->id) != 0))
      return fail(e, EXIT_FAIL, "run %ld: other tokens than the first run's", i + 1);
    ms[i] = 1e3 * now->seconds / now->steps;
    const Run *n = now;
    t->device_ms += n->device_ms / n->steps / (double)o->runs;
    t->host_us += 1e3 * n->host_ms / n->steps / (double)o->runs;
    t->turn_us += 1e3 * (1e3 * n->seconds - n->device_ms) / n->steps / (double)o->runs;
  }
  t->read_gbs = (before + read_gbs(s)) / 2;
  t->ms = median(ms, (size_t)o->runs);
  t->least_ms = ms[0], t->most_ms = ms[o->runs - 1];
  t->kernels = (double)r->kernels / r->steps;
  t->ids_hash = hash64(r->id, r->tokens * sizeof *r->id, r->tokens);
  const float *logits = decoder_logits(&s->decoder, e);
  if (!logits) return -1;
  t->logits_hash = hash64(logits, (size_t)s->model.shape.vocab * sizeof *logits, 0);
  double context = s->first + o->ids + (r->steps - 1) / 2.0;
  double bytes =
      (double)shape_weight_bytes(&s->plan.shape) + context * (double)shape_kv_bytes(&s->plan.shape);
  t->floor_ms = t->read_gbs > 0 ? bytes / t->read_gbs / 1e6 : 0;
  t->busy_us = 1e3 * t->device_ms; // of a single kernel all of it
  return chapter.traced ? trace(s, o, again, t, e) : 0;
}
//< chapter_measure

//> chapter_print
// Fibers have no clock of a card.
static bool on_card(const Session *s) {
  return s->decoder.gpu && strcmp(s->plan.target.name, "fibers") != 0;
}

static void print_tsv(const Session *s, const Options *o, const Run *r, const Times *t) {
  printf("chapter\tcontext\ttokens\truns\tkernels\tread_gbs\tfloor_ms\tms\tleast_ms\tmost_ms\t"
         "share_percent\tdevice_ms\tbusy_us\tidle_us\thost_us\tturn_us\tids_hash\tlogits_hash\n");
  printf("%s%s\t%u\t%u\t%ld\t%.6g\t%.2f\t%.4f\t%.4f\t%.4f\t%.4f\t%.1f\t%.4f\t", chapter.name,
         chapter_graph ? "-graph" : "", s->first + o->ids, r->tokens, o->runs, t->kernels,
         t->read_gbs, t->floor_ms, t->ms, t->least_ms, t->most_ms, 100 * t->floor_ms / t->ms,
         t->device_ms);
  if (on_card(s))
    printf("%.2f\t%.2f\t%.2f\t%.2f\t", t->busy_us, t->idle_us, t->host_us, t->turn_us);
  else printf("\t\t\t\t");
  printf("%016llx\t%016llx\n", (unsigned long long)t->ids_hash, (unsigned long long)t->logits_hash);
}

static void print_line(const Session *s, const Times *t) {
  const Decoder *d = &s->decoder;
  printf("%s: ", chapter.name);
  if (d->gpu) printf("%.4g kernels a token, ", t->kernels);
  printf("%.*f ms/token", t->ms < 10 ? 4 : 2, t->ms);
  if (t->floor_ms > 0)
    printf(", %.1f%% of the floor (%.3g ms, %.1f GB/s read by %u %s)", 100 * t->floor_ms / t->ms,
           t->floor_ms, t->read_gbs, decoder_threads(d), d->gpu ? "blocks" : "threads");
  if (d->gpu && !on_card(s)) printf("; fibers on a CPU core, so the times are not a card's");
  if (on_card(s) && chapter.traced) printf("; %.1f us between kernels", t->idle_us);
  if (on_card(s))
    printf("; the host: %.1f us to launch, %.1f us of its turn", t->host_us, t->turn_us);
  putchar('\n');
}

int main(int argc, char **argv) {
  Options o;
  Error e = {0};
  Session s = {0};
  Times t = {0};
  Run run = {0}, again = {0};
  double *ms = NULL;
  int bad = parse(argc, argv, &o, &e);
  if (!bad) {
    run.id = calloc((size_t)o.tokens, sizeof *run.id);
    again.id = calloc((size_t)o.tokens, sizeof *again.id);
    ms = calloc((size_t)o.runs, sizeof *ms);
    if (!run.id || !again.id || !ms) bad = fail(&e, EXIT_FAIL, "out of memory");
  }
  if (!bad) bad = open_session(&o, &s, &e);
  if (!bad) bad = measure(&s, &o, &run, &again, ms, &t, &e);
  for (uint32_t i = 0; !bad && i < run.tokens; i++) printf(i ? " %d" : "%d", run.id[i]);
  if (!bad) putchar('\n');
  if (!bad && o.tsv) print_tsv(&s, &o, &run, &t);
  else if (!bad) print_line(&s, &t);
  close_session(&s);
  free(run.id);
  free(again.id);
  free(ms);
  if (bad) fprintf(stderr, "%s: %s\n", chapter.name, e.text);
  return bad ? e.code ? e.code : EXIT_FAIL : fflush(stdout) != 0;
}
//< chapter_print
