// Every tile of a plan as a table, for the figures that are drawn from one: what `tiles plan` counts, one line each.
// usage: plan_tiles SHAPE TARGET CONTEXT [barrier|data]
#include "../tiles.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void print_plan(const Plan *p, uint32_t context, const PlanCost *cost) {
  const Shape *s = &p->shape;
  const Target *t = &p->target;
  printf("key\tshape\t%s\nkey\ttarget\t%s\nkey\tcontext\t%u\n", s->name, t->name, context);
  printf("key\tlayers\t%d\nkey\thidden\t%d\nkey\tinter\t%d\nkey\tvocab\t%d\n", s->layers, s->hidden,
         s->inter, s->vocab);
  printf("key\theads\t%d\nkey\tkv_heads\t%d\nkey\thead_dim\t%d\nkey\tdtype_bytes\t%zu\n", s->heads,
         s->kv_heads, s->head_dim, dtype_size(s->dtype));
  printf("key\tworkers\t%u\nkey\tthreads\t%u\nkey\twaves\t%u\nkey\ttiles\t%u\nkey\topcodes\t%u\n",
         p->workers, t->threads, p->wave_count, p->tile_count, cost->opcodes);
  printf("key\tslots\t%u\nkey\tchunks\t%u\nkey\tfused_context\t%u\n", p->slots, p->chunks,
         p->fused_context);
  printf("key\tring_slots\t%u\nkey\tslot_bytes\t%u\n", p->ring_slots, p->slot_bytes);
  printf("key\tread_gbs\t%g\nkey\tworker_gbs\t%g\nkey\tbarrier_us\t%g\nkey\thandoff_us\t%g\n",
         t->read_gbs, t->worker_gbs, t->barrier_us, t->handoff_us);
  printf("key\tattention_us\t%g\nkey\tfloor_ms\t%.4f\nkey\tpredicted_ms\t%.4f\n", t->attention_us,
         cost->floor_ms, cost->predicted_ms);
  printf("key\tweight_bytes\t%" PRIu64 "\nkey\tkv_bytes\t%" PRIu64
         "\nkey\tkv_bytes_per_position\t%" PRIu64 "\n",
         cost->weight_bytes, cost->kv_bytes, shape_kv_bytes(s));
}

int main(int argc, char **argv) {
  Error e = {0};
  Target t;
  Plan p;
  const Shape *s = argc >= 4 ? shape_find(argv[1]) : NULL;
  if (!s) {
    fprintf(stderr, "usage: plan_tiles SHAPE TARGET CONTEXT [barrier|data]; shapes: %s\n",
            shape_names());
    return EXIT_USAGE;
  }
  uint32_t context = (uint32_t)strtoul(argv[3], NULL, 10);
  int bad = target_read(argv[2], &t, &e);
  if (!bad && argc > 4) t.sync = strcmp(argv[4], "data") == 0 ? SYNC_DATA : SYNC_BARRIER;
  if (bad || plan_make(s, &t, &p, &e) != 0) {
    fprintf(stderr, "plan_tiles: %s\n", e.text);
    return e.code;
  }
  PlanCost cost;
  WaveCost *wave = calloc(p.wave_count, sizeof *wave);
  if (!wave) return EXIT_FAIL;
  plan_cost(&p, context, &cost, wave);
  print_plan(&p, context, &cost);
  // wave: number, op, layer, tiles, bytes, bytes of the busiest worker, predicted us, whether everybody waits after it:
  // always, split (not up to fused_context), data (never)
  static const char *const waits[] = {"always", "split", "data"};
  for (uint32_t w = 0; w < p.wave_count; w++)
    printf("wave\t%u\t%s\t%u\t%u\t%" PRIu64 "\t%" PRIu64 "\t%.3f\t%s\n", w,
           op_name((int)wave[w].op), wave[w].layer, wave[w].tiles, wave[w].bytes,
           wave[w].worker_bytes, wave[w].us, waits[p.barrier[w]]);
  // tile: worker, wave, op, layer, first row, end row, part, bytes
  for (uint32_t i = 0; i < p.tile_count; i++) {
    const Tile *q = &p.tile[i];
    printf("tile\t%u\t%u\t%s\t%u\t%u\t%u\t%u\t%" PRIu64 "\n", q->worker, q->wave, op_name(q->op),
           q->layer, q->row0, q->row1, q->part, tile_bytes(&p, q, context));
  }
  free(wave);
  plan_free(&p);
  return EXIT_OK;
}
