/*: # One decoder

A plan says what it was made for, and that decides who plays it: threads or a GPU's blocks. This file is the one face of
both. It speaks in *launches*, as the GPU does: some given tokens, then greedy ones. A CPU's launch is a loop over steps. :*/
#include "tiles.h"

#include <stdlib.h>
#include <string.h>

/*: ## Built without CUDA

Then there is no card, whatever the machine holds, and the program says why. These are weak definitions: a program that is linked with
`gpu.cu` has its own. :*/
//> gpu_absent
#define WEAK __attribute__((weak))
static const char absent[] = "this program was built without CUDA";
static int none(Error *e) { return fail(e, EXIT_FAIL, "no GPU: %s", absent); }

WEAK bool gpu_built(void) { return false; }
WEAK int gpu_count(void) { return 0; }
WEAK const char *gpu_why_none(void) { return absent; }
WEAK const char *kernel_fingerprint(void) { return ""; }
WEAK int gpu_target(int device, uint32_t workers, Target *out, Error *e) {
  (void)device, (void)workers, (void)out;
  return none(e);
}
WEAK int gpu_probe(int device, uint32_t workers, FILE *sweep, Target *out, Error *e) {
  (void)device, (void)workers, (void)sweep, (void)out;
  return none(e);
}
WEAK int gpu_open(const Model *m, const Plan *p, uint32_t context, int device, Gpu **out,
                  Error *e) {
  (void)m, (void)p, (void)context, (void)device;
  *out = NULL;
  return none(e);
}
WEAK void gpu_close(Gpu *g) { (void)g; }
WEAK int gpu_decode(Gpu *g, const int32_t *given, uint32_t n, uint32_t position, uint32_t steps,
                    bool logits, int32_t *out, uint32_t *made, bool *stopped, Error *e) {
  (void)g, (void)given, (void)n, (void)position, (void)steps, (void)logits, (void)out;
  (void)made, (void)stopped;
  return none(e);
}
WEAK double gpu_milliseconds(const Gpu *g) {
  (void)g;
  return 0;
}
WEAK int gpu_logits(Gpu *g, float *out, Error *e) {
  (void)g, (void)out;
  return none(e);
}
WEAK int gpu_seed_cache(Gpu *g, uint32_t positions, Error *e) {
  (void)g, (void)positions;
  return none(e);
}
WEAK double gpu_read_rate(Gpu *g) {
  (void)g;
  return 0;
}
WEAK int gpu_trace(Gpu *g, uint32_t step, Error *e) {
  (void)g, (void)step;
  return none(e);
}
WEAK int gpu_trace_read(Gpu *g, uint64_t *ns, Error *e) {
  (void)g, (void)ns;
  return none(e);
}
WEAK void gpu_plant_failure(Gpu *g, double patience_seconds, uint32_t lost_worker) {
  (void)g, (void)patience_seconds, (void)lost_worker;
}
//< gpu_absent

/*: ## Threads or blocks

`device` decides once, and after that every call asks which of the two is there. A CPU is best given one token at a time; a card up to 64, because a launch
costs the same for one as for all. The loop below is the CPU's token loop, and the text of what the kernel does on the card: a given token or the last one
in, logits only from the last given one on, and an end at any of the model's stop ids. :*/
//> decoder
int decoder_open(const Model *m, const Plan *p, uint32_t context, int device, Decoder *out,
                 Error *e) {
  *out = (Decoder){.model = m, .plan = p};
  if (device >= 0) {
    out->logits = malloc((size_t)m->shape.vocab * sizeof(float));
    if (!out->logits) return fail(e, EXIT_FAIL, "out of memory");
    return gpu_open(m, p, context, device, &out->gpu, e);
  }
  return cpu_open(m, p, context, 0, &out->cpu, e);
}

void decoder_close(Decoder *d) {
  cpu_close(d->cpu);
  gpu_close(d->gpu);
  free(d->logits);
  *d = (Decoder){0};
}

uint32_t decoder_launch(const Decoder *d) { return d->gpu ? GPU_LAUNCH : 1; }

static bool stops(const Model *m, int32_t id) {
  for (int32_t i = 0; i < m->stop_count; i++)
    if (m->stop_ids[i] == id) return true;
  return false;
}

int decoder_decode(Decoder *d, const int32_t *given, uint32_t n, uint32_t position, uint32_t steps,
                   bool logits, int32_t *out, uint32_t *made, bool *stopped, Error *e) {
  if (d->gpu) {
    int bad = gpu_decode(d->gpu, given, n, position, steps, logits, out, made, stopped, e);
    d->milliseconds = gpu_milliseconds(d->gpu);
    return bad;
  }
  *made = 0;
  *stopped = false;
  int32_t next = 0;
  int bad = 0;
  double begin = seconds();
  for (uint32_t i = 0; i < steps && !bad && !*stopped; i++) {
    bool wanted = logits && i + 1 >= n;
    bad = cpu_step(d->cpu, i < n ? given[i] : next, position + i, wanted, &next, e);
    if (bad || !wanted) continue;
    *stopped = stops(d->model, next);
    if (!*stopped) out[(*made)++] = next;
  }
  d->milliseconds = 1e3 * (seconds() - begin);
  return bad;
}

const float *decoder_logits(Decoder *d, Error *e) {
  if (!d->gpu) return cpu_logits(d->cpu);
  return gpu_logits(d->gpu, d->logits, e) == 0 ? d->logits : NULL;
}

int decoder_seed_cache(Decoder *d, uint32_t positions, Error *e) {
  if (d->gpu) return gpu_seed_cache(d->gpu, positions, e);
  cpu_seed_cache(d->cpu, positions);
  return 0;
}

uint32_t decoder_threads(const Decoder *d) {
  return d->gpu ? d->plan->workers : cpu_threads(d->cpu);
}
//< decoder
