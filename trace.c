/*: # One token on the clock

Every worker notes when it begins and when it ends each wave. Beside the plan, which knows each wave's bytes, that is an account of
where a token's time went: what streaming alone would take, how far the GEMVs stayed below it, what waiting for each other cost, and
what the rest did. The parts add up to the measured time, because each is a difference between two neighbouring moments: nothing is estimated, and nothing is
left over. :*/
#include "tiles.h"

#include <stdlib.h>
#include <string.h>

/*: ## The moments of a wave

A wave begins when the first worker leaves the barrier before it and ends when the last has done its tiles; what lies between that and
the next beginning is the barrier. In between, the wave's bytes at the streaming rate are its ideal, and the rest is loss.

So a worker that is late counts against its wave, and not against the barrier: the wave ends when the *last* has done its tiles. What the barrier is charged is only the time from there
until the first worker moves again.

With hand-offs of data nobody waits for everybody. A worker begins a tile when its part of the vector has arrived (a merge tile, when the worker comes to it), and the first may begin before
the last has ended the wave before. Such an overlap belongs to the wave before: a wave's time begins with its first worker, but not before all earlier waves have ended. What is left between
the two is the **hand-off**: the last worker's values on their way to the first that uses them. It is never negative, and the parts still add up. Workers without a tile leave zeros, and those
whose chunk is not in use begin and end a tile without waiting for anybody; neither says anything about a wave. :*/
//> trace_waves
typedef struct WaveTime {
  double begin, end, next; // us from the token's begin
  double busy, work;       // longest and mean work of a worker
  uint32_t workers;        // that had something to do
} WaveTime;

// Of a worker in a wave, when it began and when it ended. ns: [workers, waves + 1, 2]
static const uint64_t *moments(const Plan *p, const uint64_t *ns, uint32_t worker, uint32_t wave) {
  return ns + 2 * (worker * ((size_t)p->wave_count + 1) + wave);
}

static uint64_t token_begin(const Plan *p, const uint64_t *ns) {
  uint64_t zero = UINT64_MAX;
  for (uint32_t w = 0; w < p->workers; w++)
    for (uint32_t i = 0; i < p->wave_count; i++) {
      uint64_t at = moments(p, ns, w, i)[0];
      if (at && at < zero) zero = at;
    }
  return zero;
}

// With hand-offs of data and so many chunks in use.
static bool idle(const Tile *t, uint32_t chunks) {
  return (t->op == OP_ATTEND && t->part >= chunks) || (t->op == OP_MERGE && chunks == 1);
}

// out: [waves + 1] of zeros; the last is the end of the token.
static void wave_times(const Plan *p, uint32_t context, const uint64_t *ns, WaveTime *out) {
  const uint32_t waves = p->wave_count, chunks = plan_chunks_in_use(p, context);
  const bool data = p->sync == SYNC_DATA;
  const uint64_t zero = token_begin(p, ns);
  for (uint32_t w = 0; w < p->workers; w++) {
    uint32_t k = p->first[w];
    for (uint32_t i = 0; i <= waves; i++) {
      bool works = !data || i == waves;
      for (; k < p->first[w + 1] && p->tile[k].wave == i; k++)
        works = works || !idle(&p->tile[k], chunks);
      const uint64_t *at = moments(p, ns, w, i);
      if (!works || !at[0]) continue;
      WaveTime *t = &out[i];
      double begin = (double)(at[0] - zero) / 1e3;
      if (!t->workers++ || begin < t->begin) t->begin = begin;
      if (i == waves) continue;
      double us = (double)(at[1] - at[0]) / 1e3, end = (double)(at[1] - zero) / 1e3;
      if (end > t->end) t->end = end;
      if (us > t->busy) t->busy = us;
      t->work += us / p->workers;
    }
  }
  double done = 0; // the end of all waves so far
  for (uint32_t i = 0; i <= waves; i++) {
    WaveTime *t = &out[i];
    if ((data && t->begin < done) || (i == waves && !t->workers)) t->begin = done;
    if (data && t->end < t->begin) t->end = t->begin;
    if (t->workers) done = t->end;
  }
  for (uint32_t i = waves; i-- > 0;) {
    if (!out[i].workers) out[i].begin = out[i].end = out[i + 1].begin; // takes no time
    out[i].next = out[i + 1].begin;
  }
}
//< trace_waves

/*: ## The account

Two sums over the same waves. By opcode: time, ideal, and the barriers that followed, or the hand-offs. By kind of loss: the ideal; what the waves of weights took beyond it; the
barriers or hand-offs; attention with the merging of its chunks, which reads little or at a low rate; and the small operations, whose bytes are below [64 KB]{.fact} a wave. A GEMV that streams at half the rate and one that waits for half its
time look alike here; the plan says which waves have the bytes, and the Chrome trace below which workers were late. :*/
//> trace_account
void trace_account(const Plan *p, uint32_t context, double read_gbs, const uint64_t *ns, FILE *f) {
  WaveTime *t = calloc(p->wave_count + 1, sizeof *t);
  WaveCost *cost = calloc(p->wave_count, sizeof *cost);
  if (!t || !cost) {
    free(t);
    free(cost);
    return;
  }
  PlanCost all;
  plan_cost(p, context, &all, cost);
  wave_times(p, context, ns, t);
  struct {
    uint32_t waves;
    double bytes, us, ideal, barrier;
  } op[OP_COUNT] = {{0}};
  double total = t[p->wave_count - 1].next, ideal = 0, gemv = 0, barrier = 0, attention = 0,
         small = 0;
  for (uint32_t i = 0; i < p->wave_count; i++) {
    uint32_t k = cost[i].op;
    double us = t[i].end - t[i].begin, best = (double)cost[i].bytes / read_gbs / 1e3;
    op[k].waves++;
    op[k].bytes += (double)cost[i].bytes;
    op[k].us += us;
    op[k].ideal += best;
    op[k].barrier += t[i].next - t[i].end;
    ideal += best;
    barrier += t[i].next - t[i].end;
    if (k == OP_SCORES || k == OP_VALUES || k == OP_ATTEND || k == OP_MERGE) attention += us - best;
    else if (cost[i].bytes > 65536) gemv += us - best;
    else small += us - best;
  }
  fprintf(f, "part\twaves\tbytes\tus\tideal_us\tgbs\tbarrier_us\n");
  for (int k = 0; k < OP_COUNT; k++)
    if (op[k].waves)
      fprintf(f, "%s\t%u\t%.0f\t%.2f\t%.2f\t%.0f\t%.2f\n", op_name(k), op[k].waves, op[k].bytes,
              op[k].us, op[k].ideal, op[k].us > 0 ? op[k].bytes / op[k].us / 1e3 : 0,
              op[k].barrier);
  fprintf(f, "ideal streaming\t\t\t%.2f\nGEMV below it\t\t\t%.2f\n%s\t\t\t%.2f\n", ideal, gemv,
          p->sync == SYNC_DATA ? "hand-offs" : "barriers", barrier);
  fprintf(f, "attention\t\t\t%.2f\nsmall operations\t\t\t%.2f\ntoken\t\t\t%.2f\n", attention, small,
          total);
  free(t);
  free(cost);
}
//< trace_account

/*: ## For a viewer

The trace-event format of Chrome and Perfetto: a process for the card, a thread for each worker, a slice for each wave's work. A wave in which a worker
has no tile is no slice. :*/
//> trace_chrome
void trace_chrome(const Plan *p, uint32_t context, const uint64_t *ns, FILE *f) {
  WaveCost *cost = calloc(p->wave_count, sizeof *cost);
  if (!cost) return;
  PlanCost all;
  plan_cost(p, context, &all, cost);
  const uint64_t zero = token_begin(p, ns);
  const char *comma = "";
  fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", f);
  for (uint32_t w = 0; w < p->workers; w++)
    for (uint32_t i = 0; i < p->wave_count; i++) {
      const uint64_t *t = moments(p, ns, w, i);
      if (!t[0]) continue;
      fprintf(f,
              "%s{\"name\":\"%s\",\"cat\":\"wave\",\"ph\":\"X\",\"pid\":0,\"tid\":%u,\"ts\":%.3f,"
              "\"dur\":%.3f,\"args\":{\"wave\":%u,\"layer\":%u}}",
              comma, op_name((int)cost[i].op), w, (double)(t[0] - zero) / 1e3,
              (double)(t[1] - t[0]) / 1e3, i, cost[i].layer);
      comma = ",\n";
    }
  fputs("\n]}\n", f);
  free(cost);
}
//< trace_chrome
