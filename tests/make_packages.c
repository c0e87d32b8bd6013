// Writes the packages from which the fuzzer of the package loader starts: every kind of plan, with and
// without weights, each as small as a model can be. To be run again when the format changes.
// usage: build/make_packages FOLDER (as tests/corpus/package)
#include "testing.h"

static int make(const char *folder, const char *name, const char *shape, bool weights,
                const Target *t) {
  Error e = {0};
  Shape s = *shape_find(shape);
  s.vocab = 6, s.hidden = 4, s.inter = 5, s.layers = 1;
  s.heads = 2, s.kv_heads = 1, s.head_dim = t->sync == SYNC_DATA ? 8 : 2;
  if (!s.qk_norm)
    s.qkv_bias = s.o_bias = s.mlp_bias = true, s.tied = false; // every vector there is
  char *work = temp_folder();
  Source source = {0};
  Model model = {0};
  Plan plan = {0};
  int rc = weights && (synth_write(&s, path_in(work, "model"), 1, &e) != 0 ||
                       source_open(path_in(work, "model"), &source, &e) != 0 ||
                       model_open(&source, &model, &e) != 0);
  if (rc == 0) rc = plan_make(weights ? &model.shape : &s, t, &plan, &e);
  if (rc == 0)
    rc = package_write(path_in(folder, name), &plan, weights ? &model : NULL,
                       weights ? &source : NULL, &e);
  if (rc != 0) fprintf(stderr, "make_packages: %s: %s\n", name, e.text);
  plan_free(&plan);
  model_close(&model);
  source_close(&source);
  remove_tree(work);
  return rc;
}

int main(int count, char **arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: make_packages FOLDER\n");
    return 2;
  }
  const struct {
    const char *name, *shape;
    bool weights;
    uint32_t workers;
    FfnKind ffn;
    AttentionKind attention;
    SyncKind sync;
  } seeds[] = {
      {"plan_fused.package", "tiny-llama", false, 2, FFN_FUSED, ATTENTION_TWO_PASS, SYNC_BARRIER},
      {"plan_chunks.package", "tiny-llama", false, 3, FFN_SPLIT, ATTENTION_TWO_PASS, SYNC_BARRIER},
      {"plan_one_pass.package", "tiny-llama", false, 3, FFN_FUSED, ATTENTION_ONE_PASS,
       SYNC_BARRIER},
      {"llama.package", "tiny-llama", true, 1, FFN_FUSED, ATTENTION_TWO_PASS, SYNC_BARRIER},
      {"qwen3.package", "tiny-qwen3", true, 2, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_BARRIER},
      {"plan_data.package", "tiny-llama", false, 2, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA},
  };
  int rc = 0;
  for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
    Target t = {.name = "t",
                .kind = "cpu", // or cuda, below
                .workers = seeds[i].workers,
                .threads = 1,
                .fused_context = 8,
                .read_gbs = 40,
                .ffn = seeds[i].ffn,
                .attention = seeds[i].attention,
                .sync = seeds[i].sync};
    if (seeds[i].sync == SYNC_DATA) memcpy(t.kind, "cuda", 5);
    rc |= make(arguments[1], seeds[i].name, seeds[i].shape, seeds[i].weights, &t);
  }
  return rc != 0;
}
