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

With hand-offs of data nobody waits for everybody. A worker then begins a wave when its part of the vector has arrived, and the first may begin before the last has ended the
wave before: the difference is negative where waves overlap, and the parts still add up. A worker without a tile leaves zeros. :*/
//> trace_waves
typedef struct WaveTime {
  double begin, end, next; // us from the token's begin
  double busy, work;       // longest and mean work of a worker
} WaveTime;

// ns: [workers, waves + 1, 2]
static void wave_times(const Plan *p, const uint64_t *ns, WaveTime *out) {
  size_t row = 2 * ((size_t)p->wave_count + 1);
  uint64_t zero = UINT64_MAX;
  for (uint32_t w = 0; w < p->workers; w++)
    if (ns[w * row] && ns[w * row] < zero) zero = ns[w * row];
  for (uint32_t i = 0; i <= p->wave_count; i++) {
    uint64_t begin = UINT64_MAX, end = 0;
    double work = 0, busy = 0;
    for (uint32_t w = 0; w < p->workers; w++) {
      const uint64_t *t = ns + w * row + 2 * (size_t)i;
      if (!t[0]) continue; // without a tile, with hand-offs of data
      if (t[0] < begin) begin = t[0];
      if (i == p->wave_count) continue;
      if (t[1] > end) end = t[1];
      double us = (double)(t[1] - t[0]) / 1e3;
      work += us / p->workers;
      if (us > busy) busy = us;
    }
    // A wave in which nobody had anything to do takes no time.
    double at = begin != UINT64_MAX ? (double)(begin - zero) / 1e3 : i ? out[i - 1].end : 0;
    if (begin == UINT64_MAX) end = 0;
    if (i) out[i - 1].next = at;
    if (i < p->wave_count)
      out[i] = (WaveTime){
          .begin = at, .end = end ? (double)(end - zero) / 1e3 : at, .busy = busy, .work = work};
  }
}
//< trace_waves

/*: ## The account

Two sums over the same waves. By opcode: time, ideal, and the barriers that followed. By kind of loss: the ideal; what the waves of weights took beyond it; the
barriers; attention, which reads little or at a low rate; and the small operations, whose bytes are below [64 KB]{.fact} a wave. A GEMV that streams at half the rate and one that waits for half its
time look alike here; the plan says which waves have the bytes, and the Chrome trace below which workers were late. :*/
//> trace_account
void trace_account(const Plan *p, uint32_t context, double read_gbs, const uint64_t *ns, FILE *f) {
  WaveTime *t = calloc(p->wave_count, sizeof *t);
  WaveCost *cost = calloc(p->wave_count, sizeof *cost);
  if (!t || !cost) {
    free(t);
    free(cost);
    return;
  }
  PlanCost all;
  plan_cost(p, context, &all, cost);
  wave_times(p, ns, t);
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
    if (k == OP_SCORES || k == OP_VALUES || k == OP_ATTEND) attention += us - best;
    else if (cost[i].bytes > 65536) gemv += us - best;
    else small += us - best;
  }
  fprintf(f, "part\twaves\tbytes\tus\tideal_us\tgbs\tbarrier_us\n");
  for (int k = 0; k < OP_COUNT; k++)
    if (op[k].waves)
      fprintf(f, "%s\t%u\t%.0f\t%.2f\t%.2f\t%.0f\t%.2f\n", op_name(k), op[k].waves, op[k].bytes,
              op[k].us, op[k].ideal, op[k].bytes / op[k].us / 1e3, op[k].barrier);
  fprintf(f, "ideal streaming\t\t\t%.2f\nGEMV below it\t\t\t%.2f\nbarriers\t\t\t%.2f\n", ideal,
          gemv, barrier);
  fprintf(f, "attention\t\t\t%.2f\nsmall operations\t\t\t%.2f\ntoken\t\t\t%.2f\n", attention, small,
          total);
  free(t);
  free(cost);
}
//< trace_account

/*: ## For a viewer

The trace-event format of Chrome and Perfetto: a process for the card, a thread for each worker, a slice for each wave's work. :*/
//> trace_chrome
void trace_chrome(const Plan *p, uint32_t context, const uint64_t *ns, FILE *f) {
  WaveCost *cost = calloc(p->wave_count, sizeof *cost);
  if (!cost) return;
  PlanCost all;
  plan_cost(p, context, &all, cost);
  size_t row = 2 * ((size_t)p->wave_count + 1);
  uint64_t zero = UINT64_MAX;
  for (uint32_t w = 0; w < p->workers; w++)
    if (ns[w * row] < zero) zero = ns[w * row];
  fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", f);
  for (uint32_t w = 0; w < p->workers; w++)
    for (uint32_t i = 0; i < p->wave_count; i++) {
      const uint64_t *t = ns + w * row + 2 * (size_t)i;
      fprintf(f,
              "%s{\"name\":\"%s\",\"cat\":\"wave\",\"ph\":\"X\",\"pid\":0,\"tid\":%u,\"ts\":%.3f,"
              "\"dur\":%.3f,\"args\":{\"wave\":%u,\"layer\":%u}}",
              w || i ? ",\n" : "", op_name((int)cost[i].op), w, (double)(t[0] - zero) / 1e3,
              (double)(t[1] - t[0]) / 1e3, i, cost[i].layer);
    }
  fputs("\n]}\n", f);
  free(cost);
}
//< trace_chrome
