/*: ## The bytes that a token reads

Stage by stage: how many there are, and one number that depends on all of them. Then all of them once more, in the manner in which the
workers read, and with the clock running. :*/
#include "chapters/chapter.h"

#include <pthread.h>
#include <stdlib.h>

//> weights_reader
typedef struct Part { // a thread's part of every region
  const Region *region;
  size_t regions;
  uint32_t index, threads;
  uint64_t sum;
} Part;

static void *read_part(void *argument) {
  Part *p = argument;
  const Kernels *k = kernels_find(NULL);
  for (size_t i = 0; i < p->regions; i++) {
    const size_t lines = p->region[i].bytes / 64, from = lines * p->index / p->threads,
                 to = lines * (p->index + 1) / p->threads;
    p->sum ^= k->read(p->region[i].data + from * 64, (to - from) * 64);
  }
  return NULL;
}

// Once, by so many threads; how long that took, or 0.
static double read_once(const Region *region, size_t regions, uint32_t threads) {
  Part *part = calloc(threads, sizeof *part);
  pthread_t *id = calloc(threads, sizeof *id);
  uint32_t started = 0;
  const double begin = seconds();
  for (; part && id && started < threads; started++) {
    part[started] = (Part){region, regions, started, threads, 0};
    if (pthread_create(&id[started], NULL, read_part, &part[started]) != 0) break;
  }
  for (uint32_t i = 0; i < started; i++) pthread_join(id[i], NULL);
  const double took = started == threads ? seconds() - begin : 0;
  free(part);
  free(id);
  return took;
}
//< weights_reader

//> weights_main
static int list_and_read(const Model *m, Error *e) {
  Region *region = calloc((size_t)m->shape.layers * 7 + 1, sizeof *region);
  if (!region) return fail(e, EXIT_FAIL, "out of memory");
  const uint32_t threads = cpu_count();
  const double all = (double)shape_weight_bytes(&m->shape);
  size_t regions = 0;
  double bytes = 0;
  printf("stage\tmatrices\tbytes\tpercent\thash\n");
  for (int s = 0; s < STAGES; s++) {
    const size_t n = stage_regions(m, s, region + regions);
    double stage = 0;
    uint64_t hash = 0;
    for (size_t i = regions; i < regions + n; i++) {
      stage += (double)region[i].bytes;
      hash = hash64(region[i].data, region[i].bytes, hash);
    }
    printf("%s\t%zu\t%.0f\t%.1f\t%016llx\n", stage_names[s], n, stage, 100 * stage / all,
           (unsigned long long)hash);
    regions += n;
    bytes += stage;
  }
  // The floor counts these too: norms, biases, and where it is not lm_head's the embedding's row.
  printf("vectors\t\t%.0f\t%.1f\t\n", all - bytes, 100 * (all - bytes) / all);
  printf("%s: %.0f bytes of weights a token, %.0f of K/V a position\n", m->shape.name, all,
         (double)shape_kv_bytes(&m->shape));
  const double took = read_once(region, regions, threads);
  if (took > 0)
    printf("matrices read once in %.4g ms: %.1f GB/s by %u threads\n", 1e3 * took,
           bytes / took / 1e9, threads);
  free(region);
  return took > 0 ? 0 : fail(e, EXIT_FAIL, "%u threads did not start", threads);
}

int main(int argc, char **argv) {
  Error e = {0};
  Source source = {0};
  Model model = {0};
  int bad = argc == 2 ? 0 : fail(&e, EXIT_USAGE, "usage: ch02 MODEL");
  if (!bad) bad = source_open(argv[1], &source, &e);
  if (!bad) bad = model_open(&source, &model, &e);
  if (!bad) bad = list_and_read(&model, &e);
  model_close(&model);
  source_close(&source);
  if (bad) fprintf(stderr, "ch02: %s\n", e.text);
  return bad ? e.code : fflush(stdout) != 0;
}
//< weights_main
