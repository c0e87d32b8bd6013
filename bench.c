/*: # Measuring

A latency means little without the floor of the same moment. The memory of a shared machine has states: its
read rate can be one figure now and two thirds more a minute later. So decoding is timed in short slices, the
read rate is taken just before and just after each, over the model's own bytes and with the same threads, and a
slice whose two rates disagree is dropped. What is left is sorted by rate, and each state is reported for
itself. :*/
#include "tiles.h"

#include <stdlib.h>
#include <string.h>

enum { STATES = 2 };
static const double PROBE_SECONDS = 0.06, SLICE_SECONDS = 0.35;
static const double AGREE = 0.08; // two rates of one state differ by less
static const double APART = 1.25; // and of two states by more

/*: ## What a token reads

The floor's bytes, as they lie in memory: every matrix but an untied embedding, of which a token reads one
row. The rate is taken over these bytes and no others: pages of the file on a CPU, the uploaded weights on a card. A buffer of our own could lie
better in memory, or in a cache. :*/
//> model_regions
static Region matrix_region(const Matrix *m) {
  return (Region){m->data, matrix_stride(m) * (size_t)m->rows};
}

// out: [7 * layers + 1], a region a matrix.
static size_t model_regions(const Model *m, Region *out) {
  size_t n = 0;
  for (int32_t i = 0; i < m->shape.layers; i++) {
    const Layer *l = &m->layer[i];
    const Matrix *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) out[n++] = matrix_region(all[k]);
  }
  out[n++] = matrix_region(&m->lm_head);
  return n;
}

static double model_read_rate(Decoder *d) {
  if (d->gpu) return gpu_read_rate(d->gpu);
  const Model *m = d->model;
  Region *regions = calloc((size_t)m->shape.layers * 7 + 1, sizeof *regions);
  if (!regions) return 0;
  double rate = read_rate(regions, model_regions(m, regions), cpu_threads(d->cpu), PROBE_SECONDS);
  free(regions);
  return rate;
}

static double token_bytes(const Plan *p, double context) {
  return (double)shape_weight_bytes(&p->shape) + context * (double)shape_kv_bytes(&p->shape);
}
//< model_regions

/*: ## The line at the end

`tiles run` and every chapter's decoder end with the same line. The floor grows with the context, so the line uses the mean number of positions that the timed steps attended
to; `steps` tokens from context c on average c + (steps - 1) / 2. :*/
//> decode_report
void decode_time(DecodeTimes *t, double took_seconds, uint32_t steps, uint32_t context) {
  t->steps += steps;
  t->seconds += took_seconds;
  t->context_sum += (double)steps * (context + (steps - 1) / 2.0);
}

void decode_report(const DecodeTimes *t, Decoder *d, FILE *f) {
  fprintf(f, "%ld tokens", t->tokens);
  if (t->steps) {
    double ms = 1e3 * t->seconds / (double)t->steps, rate = model_read_rate(d);
    double bytes = token_bytes(d->plan, t->context_sum / (double)t->steps);
    fprintf(f, ", %.*f ms/token", ms < 1 ? 4 : 2, ms);
    if (rate > 0)
      fprintf(f, ", %.0f%% of the floor (%.1f GB/s read by %u %s)", 100 * bytes / rate / 1e6 / ms,
              rate, decoder_threads(d),
              d->gpu        ? "blocks"
              : gpu_built() ? "threads; no usable GPU"
                            : "threads");
  }
  fputc('\n', f);
}
//< decode_report

/*: ## Slices and states

A slice on a CPU is about a third of a second of decoding, long beside the scheduler's turns and short beside a change of the memory's state. On a GPU it is one launch. Two read rates frame it; when they differ by
more than [8%]{.fact} the state changed in between, and neither would be the right floor.

The slices are sorted by their rate. Where two neighbours are more than a quarter apart there are two states, and each gets medians of its own: mixing them would describe a machine that
never existed. A share is formed slice by slice, from the slice's own rate, and the median taken afterwards.

A run in which every slice was dropped is an error. There is no number that we would rather print than none. :*/
//> bench_decode
typedef struct Slice {
  double rate, ms; // read rate around it; median ms of its tokens
} Slice;

static int by_rate(const void *a, const void *b) {
  double x = ((const Slice *)a)->rate, y = ((const Slice *)b)->rate;
  return (x > y) - (x < y);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *v, size_t n) {
  qsort(v, n, sizeof *v, by_value);
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void summarize(Slice *slices, uint32_t n, double bytes, double *scratch, BenchState *out) {
  *out = (BenchState){.slices = n};
  if (!n) return;
  for (uint32_t i = 0; i < n; i++) scratch[i] = slices[i].rate;
  out->read_gbs = median(scratch, n);
  for (uint32_t i = 0; i < n; i++) scratch[i] = bytes / slices[i].rate / 1e4 / slices[i].ms;
  out->share_percent = median(scratch, n);
  for (uint32_t i = 0; i < n; i++) scratch[i] = slices[i].ms;
  out->ms = median(scratch, n);
  out->least_ms = scratch[0];
  out->most_ms = scratch[n - 1];
  out->floor_ms = bytes / out->read_gbs / 1e6;
}

// Splits at the widest step between neighbours when that step is wide enough for two states.
static void split_states(Slice *slices, uint32_t n, double bytes, double *scratch,
                         BenchResult *out) {
  qsort(slices, n, sizeof *slices, by_rate);
  uint32_t cut = n;
  double widest = APART;
  for (uint32_t i = 1; i < n; i++)
    if (slices[i].rate / slices[i - 1].rate > widest) {
      widest = slices[i].rate / slices[i - 1].rate;
      cut = i;
    }
  out->states = cut < n ? 2 : 1;
  summarize(slices, cut, bytes, scratch, &out->state[0]);
  if (cut < n) summarize(slices + cut, n - cut, bytes, scratch, &out->state[1]);
}

int bench_decode(Decoder *d, uint32_t context, uint32_t tokens, uint32_t runs,
                 const volatile int *stop, BenchResult *out, Error *e) {
  *out = (BenchResult){.context = context, .tokens = tokens, .threads = decoder_threads(d)};
  size_t all = (size_t)runs * tokens;
  Slice *slices = calloc(all, sizeof *slices);
  double *ms = calloc(all, sizeof *ms);
  if (!slices || !ms) {
    free(slices);
    free(ms);
    return fail(e, EXIT_FAIL, "out of memory for %zu times", all);
  }
  int32_t token[GPU_LAUNCH] = {0};
  uint32_t kept = 0, launch = decoder_launch(d), made;
  bool stopped;
  int bad = decoder_seed_cache(d, context - 1, e);
  // Touches every page once.
  if (!bad) bad = decoder_decode(d, token, 1, context - 1, 1, true, token, &made, &stopped, e);
  for (uint32_t run = 0; run < runs && !bad && !*stop; run++) {
    double before = model_read_rate(d);
    for (uint32_t i = 0; i < tokens && !bad && !*stop;) {
      uint32_t n = 0;
      double begin = seconds();
      while (i < tokens && !bad && (!n || (!d->gpu && seconds() - begin < SLICE_SECONDS))) {
        uint32_t steps = tokens - i < launch ? tokens - i : launch;
        int32_t given = (int32_t)((run * 7919u + i * 104729u) % (uint32_t)d->model->shape.vocab);
        bad = decoder_decode(d, &given, 1, context - 1 + i, steps, true, token, &made, &stopped, e);
        uint32_t ran = made + stopped; // a stop id ends a launch early
        if (!bad) ms[n++] = d->milliseconds / (ran ? ran : 1);
        i += ran ? ran : 1;
      }
      double after = model_read_rate(d);
      double gap = before > after ? before / after - 1 : after / before - 1;
      if (!(gap <= AGREE)) out->dropped++;
      else slices[kept++] = (Slice){(before + after) / 2, median(ms, n)};
      before = after;
    }
  }
  double bytes = token_bytes(d->plan, context + (tokens - 1) / 2.0);
  if (!bad && kept) split_states(slices, kept, bytes, ms, out);
  free(slices);
  free(ms);
  if (bad) return bad;
  if (*stop) return fail(e, EXIT_INTERRUPTED, "interrupted");
  if (!kept)
    return fail(e, EXIT_FAIL, "the read rate changed during each of %u slices: nothing to report",
                out->dropped);
  return 0;
}

void bench_print(const BenchResult *r, bool header, bool tsv, FILE *f) {
  static const char *const columns = "context\tthreads\tstate\tslices\tdropped\tread_gbs\tfloor_"
                                     "ms\tms\tleast_ms\tmost_ms\tshare_percent";
  if (header && tsv) fprintf(f, "%s\n", columns);
  if (header && !tsv)
    fprintf(f, "%8s %7s %6s %7s %9s %9s %9s %17s %7s\n", "context", "threads", "state", "slices",
            "read GB/s", "floor ms", "ms/token", "least to most", "share");
  for (uint32_t i = 0; i < r->states; i++) {
    const BenchState *s = &r->state[i];
    const char *name = r->states == 1 ? "only" : i ? "fast" : "slow";
    fprintf(f,
            tsv ? "%u\t%u\t%s\t%u\t%u\t%.2f\t%.4f\t%.4f\t%.4f\t%.4f\t%.1f\n"
                : "%8u %7u %6s %4u-%-2u %9.1f %9.3f %9.3f %8.3f-%8.3f %6.1f%%\n",
            r->context, r->threads, name, s->slices, r->dropped, s->read_gbs, s->floor_ms, s->ms,
            s->least_ms, s->most_ms, s->share_percent);
  }
}
//< bench_decode
