/*: ## The floor of a model on this machine

First how fast workers read, one alone, then more and more of them: on a card blocks of a kernel that does nothing else, without one threads. The best of these
rates divides the bytes that a token must read. :*/
#include "chapters/chapter.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

//> floor_sweep
// Prints the rates of 1, 2, 4, ... threads; *best is the highest.
static int sweep_threads(double *best, Error *e) {
  const size_t bytes = (size_t)512 << 20; // several times what a cache holds
  uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return fail(e, EXIT_FAIL, "no %zu bytes to read from", bytes);
  memset(data, 1, bytes);
  const Region region = {data, bytes};
  printf("workers\tread_gbs\n");
  for (uint32_t n = 1, all = cpu_count();; n *= 2) {
    if (n > all) n = all;
    double rate = read_rate(&region, 1, n, 0.3);
    printf("%u\t%.1f\n", n, rate);
    if (rate > *best) *best = rate;
    if (n == all) break;
  }
  munmap(data, bytes);
  return 0;
}
//< floor_sweep

//> floor_main
static int floor_of(const char *name, double gbs, Error *e) {
  Source source = {0};
  Model model = {0};
  const Shape *s = shape_find(name); // a known shape needs no weights
  if (!s) {
    if (source_open(name, &source, e) != 0 || model_open(&source, &model, e) != 0) {
      source_close(&source);
      return -1;
    }
    s = &model.shape;
  }
  double weights = (double)shape_weight_bytes(s), kv = (double)shape_kv_bytes(s);
  printf("%s: %.0f bytes of weights a token, %.0f of K/V a position\n", s->name, weights, kv);
  for (int32_t context = 1; context <= 4096 && context <= s->max_context; context *= 64)
    printf("floor at context %d: %.4g ms at %.1f GB/s\n", context,
           (weights + kv * context) / gbs / 1e6, gbs);
  model_close(&model);
  source_close(&source);
  return 0;
}

int main(int argc, char **argv) {
  Error e = {0};
  Target t = {0};
  int bad = argc == 2 ? 0 : fail(&e, EXIT_USAGE, "usage: ch01 MODEL|SHAPE");
  if (!bad) bad = gpu_count() ? gpu_probe(0, 0, stdout, &t, &e) : sweep_threads(&t.read_gbs, &e);
  if (!bad) bad = floor_of(argv[1], t.read_gbs, &e);
  if (bad) fprintf(stderr, "ch01: %s\n", e.text);
  return bad ? e.code : fflush(stdout) != 0;
}
//< floor_main
