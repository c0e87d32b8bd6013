/*: A token reads every matrix once but an untied embedding, of which it reads a row. :*/
#include "chapters/chapter.h"

#include <stdlib.h>

//> stages_regions
const char *const stage_names[STAGES] = {"qkv", "wo", "gate_up", "down", "lm_head"};

size_t stage_regions(const Model *m, int stage, Region *out) {
  size_t n = 0;
  for (int32_t i = 0; i < (stage == STAGE_LM_HEAD ? 1 : m->shape.layers); i++) {
    const Layer *l = &m->layer[i];
    const Matrix *all[STAGES][3] = {
        {&l->q, &l->k, &l->v}, {&l->o}, {&l->gate, &l->up}, {&l->down}, {&m->lm_head}};
    for (int k = 0; k < 3 && all[stage][k]; k++, n++)
      if (out)
        out[n] = (Region){all[stage][k]->data,
                          matrix_stride(all[stage][k]) * (size_t)all[stage][k]->rows};
  }
  return n;
}

double model_read_gbs(const Model *m, uint32_t threads, double least_seconds) {
  Region *regions = calloc((size_t)m->shape.layers * 7 + 1, sizeof *regions);
  size_t n = 0;
  for (int s = 0; regions && s < STAGES; s++) n += stage_regions(m, s, regions + n);
  double rate = regions ? read_rate(regions, n, threads, least_seconds) : 0;
  free(regions);
  return rate;
}
//< stages_regions
