/*: # The kernels on a CPU

`gpu.cu` as it is, compiled by an ordinary compiler with `fiber.h` in place of CUDA, beside the CPU workers that play the same plan. The kernels run in
order, in reverse, and in random orders: what they compute may not depend on it, to the bit. :*/
#include "tiles.h"

#define KERNEL_FINGERPRINT "fibers"
#include "gpu.cu"

#include <algorithm>
#include <unistd.h>

static int tests, failures;
static bool failed; // the test that runs

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition);                                     \
      failed = true;                                                                               \
    }                                                                                              \
  } while (0)
#define OK(call)                                                                                   \
  do {                                                                                             \
    Error e_ = {};                                                                                 \
    Error &e = e_;                                                                                 \
    if ((call) != 0) {                                                                             \
      printf("# %s:%d: %s: %s\n", __FILE__, __LINE__, #call, e.text);                              \
      failed = true;                                                                               \
    }                                                                                              \
  } while (0)

static void run(const char *name, void (*test)()) {
  fiber::settings = fiber::Settings{};
  failed = false;
  test();
  failures += failed;
  printf("%s %d - %s\n", failed ? "not ok" : "ok", ++tests, name);
  fflush(stdout);
}

/*: ## A checkpoint in a temporary folder, and what both kinds of workers make of it :*/
//> test_kernels_fixture
enum { TOKENS = 10 };
static const int32_t prompt[] = {7, 42, 3, 19, 100};
enum { PROMPT = sizeof prompt / sizeof *prompt };

struct Checkpoint {
  std::string folder;
  Source source = {};
  Model model = {};
  explicit Checkpoint(const Shape &shape) {
    char name[] = "/tmp/tiles-kernels-XXXXXX";
    folder = mkdtemp(name);
    OK(synth_write(&shape, folder.c_str(), 5, &e));
    OK(source_open(folder.c_str(), &source, &e));
    OK(model_open(&source, &model, &e));
  }
  ~Checkpoint() {
    model_close(&model);
    source_close(&source);
    for (const char *file : {"config.json", "generation_config.json", "model.safetensors"})
      unlink((folder + "/" + file).c_str());
    rmdir(folder.c_str());
  }
};

struct Settings {
  uint32_t workers, fused_context;
  FfnKind ffn;
  AttentionKind attention;
  SyncKind sync = SYNC_BARRIER;
};

static bool make_plan(const Model &m, const Settings &s, Plan *plan) {
  Error e = {};
  Target t;
  if (fiber::settings.sms < s.workers) fiber::settings.sms = s.workers;
  if (gpu_target(0, s.workers, &t, &e) == 0) {
    t.ffn = s.ffn;
    t.attention = s.attention;
    t.sync = s.sync;
    t.fused_context = s.fused_context;
    Shape shape = m.shape;
    if (plan_make(&shape, &t, plan, &e) == 0) return true;
  }
  printf("# plan: %s\n", e.text);
  failed = true;
  return false;
}

struct Result {
  std::vector<int32_t> ids;
  std::vector<float> logits; // of the last step
};

// Hand-offs of data need a GPU; the CPU workers then play a plan of their own, which gives the same tokens.
static Result on_cpu(const Model &m, const Plan &any) {
  Result r;
  Cpu *cpu = nullptr;
  Plan own = {}, plan = any;
  if (any.sync == SYNC_DATA) {
    Target t = any.target;
    t.sync = SYNC_BARRIER;
    OK(plan_make(&any.shape, &t, &own, &e));
    plan = own;
  }
  OK(cpu_open(&m, &plan, 64, 1, &cpu, &e));
  if (!cpu) return r;
  int32_t next = 0;
  for (uint32_t at = 0; at + 1 < PROMPT + TOKENS; at++) {
    OK(cpu_step(cpu, at < PROMPT ? prompt[at] : next, at, at + 1 >= PROMPT, &next, &e));
    if (at + 1 >= PROMPT) r.ids.push_back(next);
  }
  r.logits.assign(cpu_logits(cpu), cpu_logits(cpu) + m.shape.vocab);
  cpu_close(cpu);
  plan_free(&own);
  return r;
}

// The prompt's beginning in one launch, its end and all new tokens in another.
static Result on_fibers(const Model &m, const Plan &plan) {
  Result r;
  Gpu *gpu = nullptr;
  int32_t out[GPU_LAUNCH];
  uint32_t made;
  bool stopped;
  OK(gpu_open(&m, &plan, 64, 0, &gpu, &e));
  if (!gpu) return r;
  OK(gpu_decode(gpu, prompt, 2, 0, 2, false, out, &made, &stopped, &e));
  OK(gpu_decode(gpu, prompt + 2, PROMPT - 2, 2, PROMPT - 3 + TOKENS, true, out, &made, &stopped,
                &e));
  r.ids.assign(out, out + made);
  r.logits.resize((size_t)m.shape.vocab);
  OK(gpu_logits(gpu, r.logits.data(), &e));
  gpu_close(gpu);
  return r;
}

static double distance(const std::vector<float> &a, const std::vector<float> &b) {
  double d = 0, n = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); i++) {
    d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    n += (double)b[i] * b[i];
  }
  return a.size() == b.size() ? sqrt(d / n) : INFINITY;
}

static void same_as_cpu(const Shape &shape, const std::vector<Settings> &all) {
  Checkpoint c(shape);
  for (const Settings &s : all) {
    Plan plan = {};
    if (!make_plan(c.model, s, &plan)) continue;
    Result cpu = on_cpu(c.model, plan), gpu = on_fibers(c.model, plan);
    double far = distance(gpu.logits, cpu.logits);
    // Both round the cache to two bytes; where the last bit falls on the other side, that is 2^-9 of one value.
    if (cpu.ids != gpu.ids || !(far <= 2e-3))
      printf("# %s, %u workers, ffn %d, attention %d: sync %d: logits differ by %.1e\n", shape.name,
             s.workers, (int)s.ffn, (int)s.attention, (int)s.sync, far);
    CHECK(cpu.ids == gpu.ids);
    CHECK(far <= 2e-3);
    plan_free(&plan);
  }
}
static void same_as_cpu(const char *shape, const std::vector<Settings> &all) {
  same_as_cpu(*shape_find(shape), all);
}
//< test_kernels_fixture

//> test_kernels_families
static const std::vector<Settings> few = {{1, 4, FFN_SPLIT, ATTENTION_ONE_PASS},
                                          {3, 4, FFN_FUSED, ATTENTION_TWO_PASS},
                                          {7, 4, FFN_SPLIT, ATTENTION_ONE_PASS}};

// AddressSanitizer multiplies the time by ten, so there every case has one representative.
#ifdef FIBER_ASAN
static const std::vector<uint32_t> worker_counts = {3};
enum { ORDERS = 2 };
#else
static const std::vector<uint32_t> worker_counts = {1, 3, 8};
enum { ORDERS = 6 };
#endif

static void llama() {
  std::vector<Settings> all;
  for (uint32_t workers : worker_counts)
    for (FfnKind ffn : {FFN_FUSED, FFN_SPLIT})
      for (AttentionKind attention : {ATTENTION_ONE_PASS, ATTENTION_TWO_PASS})
        all.push_back({workers, 4, ffn, attention});
  all.push_back({4, 1000, FFN_FUSED, ATTENTION_TWO_PASS}); // the fused form of two passes
  same_as_cpu("tiny-llama", all);
}
static void llama_f16() { same_as_cpu("tiny-llama:f16", few); }
static void qwen2() { same_as_cpu("tiny-qwen2", few); }
static void qwen2_f16() { same_as_cpu("tiny-qwen2:f16", few); }
static void qwen3() { same_as_cpu("tiny-qwen3", few); }
static void qwen3_f16() { same_as_cpu("tiny-qwen3:f16", few); }
//< test_kernels_families

//> test_kernels_tapes
#ifdef FIBER_ASAN
static const std::vector<const char *> tape_shapes = {"tiny-llama:f16", "tiny-qwen2"};
static const std::vector<uint32_t> tape_chunks = {4};
#else
static const std::vector<const char *> tape_shapes = {"tiny-llama", "tiny-llama:f16", "tiny-qwen2",
                                                      "tiny-qwen3"};
static const std::vector<uint32_t> tape_chunks = {4, 1000};
#endif

static void tapes() {
  for (const char *shape : tape_shapes) {
    std::vector<Settings> all;
    for (uint32_t workers : worker_counts)
      for (uint32_t chunk : tape_chunks)
        all.push_back({workers, chunk, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA});
    same_as_cpu(shape, all);
  }
}
//< test_kernels_tapes

//> test_kernels_orders
// Also of copies that land early or late: with a tape, the order decides that too.
static void every_order(const Settings &settings) {
  Checkpoint c(*shape_find("tiny-qwen3"));
  Plan plan = {};
  if (!make_plan(c.model, settings, &plan)) return;
  Result first = on_fibers(c.model, plan);
  for (uint64_t seed = 0; seed < ORDERS; seed++) {
    fiber::settings.order = seed ? fiber::RANDOM : fiber::REVERSE;
    fiber::settings.seed = seed;
    Result again = on_fibers(c.model, plan);
    CHECK(again.ids == first.ids);
    CHECK(again.logits.size() == first.logits.size() &&
          memcmp(again.logits.data(), first.logits.data(), first.logits.size() * sizeof(float)) ==
              0);
  }
  fiber::settings.order = fiber::FORWARD;
  plan_free(&plan);
}
static void every_order_gives_the_same_bits() {
  every_order({4, 4, FFN_SPLIT, ATTENTION_ONE_PASS});
}
static void every_order_of_a_tape() {
  every_order({3, 4, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA});
}
//< test_kernels_orders

//> test_kernels_refusals
static void a_lost_worker_is_an_error() {
  Checkpoint c(*shape_find("tiny-llama"));
  for (SyncKind sync : {SYNC_BARRIER, SYNC_DATA}) {
    Plan plan = {};
    if (!make_plan(c.model, {3, 4, FFN_SPLIT, ATTENTION_ONE_PASS, sync}, &plan)) return;
    const char *words = sync == SYNC_DATA ? "hand-off timed out at step 0, wave"
                                          : "barrier timed out at step 0, wave";
    for (uint32_t lost : {0u, 2u}) {
      Gpu *gpu = nullptr;
      Error e = {};
      int32_t out[GPU_LAUNCH];
      uint32_t made;
      bool stopped;
      CHECK(gpu_open(&c.model, &plan, 16, 0, &gpu, &e) == 0);
      if (!gpu) continue;
      gpu_plant_failure(gpu, 0.01, lost);
      CHECK(gpu_decode(gpu, prompt, 1, 0, 4, true, out, &made, &stopped, &e) != 0);
      CHECK(e.code == EXIT_FAIL && strstr(e.text, words));
      gpu_close(gpu);
    }
    plan_free(&plan);
  }
}

static bool refused(const Model &m, const Plan &p, uint32_t context, int code, const char *words) {
  Gpu *gpu = nullptr;
  Error e = {};
  bool right =
      gpu_open(&m, &p, context, 0, &gpu, &e) != 0 && e.code == code && strstr(e.text, words);
  if (!right) printf("# wanted \"%s\", got %d \"%s\"\n", words, e.code, e.text);
  gpu_close(gpu);
  return right;
}

static void foreign_plans_are_refused() {
  Checkpoint c(*shape_find("tiny-llama"));
  Plan plan = {};
  if (!make_plan(c.model, {4, 4, FFN_SPLIT, ATTENTION_ONE_PASS}, &plan)) return;
  const Target right = plan.target;
  snprintf(plan.target.name, sizeof plan.target.name, "rtx-3050");
  CHECK(refused(c.model, plan, 16, EXIT_PLAN, "plan is for the GPU rtx-3050"));
  plan.target = right;
  snprintf(plan.target.fingerprint, sizeof plan.target.fingerprint, "another");
  CHECK(refused(c.model, plan, 16, EXIT_PLAN, "plan is for the kernel another"));
  plan.target = right;
  snprintf(plan.target.kind, sizeof plan.target.kind, "cpu");
  CHECK(refused(c.model, plan, 16, EXIT_PLAN, "a cpu target"));
  plan.target = right;
  fiber::settings.sms = 2;
  CHECK(refused(c.model, plan, 16, EXIT_PLAN, "the plan has 4 workers, this GPU holds 2"));
  fiber::settings.sms = 4;
  fiber::settings.memory = 1 << 20;
  CHECK(refused(c.model, plan, 4096, EXIT_FAIL, "try a smaller --ctx"));
  plan_free(&plan);
  Error e = {};
  Target t;
  CHECK(gpu_target(0, 5, &t, &e) != 0 && strstr(e.text, "5 blocks"));
  CHECK(gpu_target(9, 1, &t, &e) != 0 && strstr(e.text, "cuda:9"));
}

static void stops_and_non_finite(SyncKind sync) {
  Checkpoint c(*shape_find("tiny-llama"));
  Plan plan = {};
  if (!make_plan(c.model, {3, 4, FFN_SPLIT, ATTENTION_ONE_PASS, sync}, &plan)) return;
  Result all = on_fibers(c.model, plan);
  CHECK(all.ids.size() == TOKENS);
  Model m = c.model;
  // The first id that did not come before: the request ends there, and it is not among what was made.
  size_t place = 1;
  while (place < all.ids.size() && std::find(all.ids.begin(), all.ids.begin() + (long)place,
                                             all.ids[place]) != all.ids.begin() + (long)place)
    place++;
  CHECK(place < all.ids.size());
  int32_t stop = place < all.ids.size() ? all.ids[place] : 0;
  m.stop_ids = &stop;
  m.stop_count = 1;
  Result cut = on_fibers(m, plan);
  CHECK(cut.ids == std::vector<int32_t>(all.ids.begin(), all.ids.begin() + (long)place));
  std::vector<float> norm(c.model.final_norm, c.model.final_norm + c.model.shape.hidden);
  norm[3] = NAN;
  m = c.model;
  m.final_norm = norm.data();
  Gpu *gpu = nullptr;
  Error e = {};
  int32_t out[GPU_LAUNCH];
  uint32_t made;
  bool stopped;
  CHECK(gpu_open(&m, &plan, 16, 0, &gpu, &e) == 0);
  CHECK(gpu_decode(gpu, prompt, 2, 0, 4, true, out, &made, &stopped, &e) != 0);
  CHECK(e.code == EXIT_NUMBER && strstr(e.text, "non-finite logits at step 1") && made == 0);
  gpu_close(gpu);
  plan_free(&plan);
}

static void stops_and_non_finite_logits() {
  stops_and_non_finite(SYNC_BARRIER);
  stops_and_non_finite(SYNC_DATA);
}

static void little_shared_memory() { // as cards with 99 KB have it
  fiber::settings.shared = 101376;
  same_as_cpu("tiny-qwen2", {{4, 4, FFN_SPLIT, ATTENTION_ONE_PASS},
                             {4, 4, FFN_FUSED, ATTENTION_TWO_PASS},
                             {4, 4, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA}});
  Shape wide =
      *shape_find("tiny-llama"); // a row of 1,088 columns is two blocks, also of the embedding
  wide.hidden = 1088, wide.layers = 2;
  same_as_cpu(wide, {{3, 4, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA}});
  Shape deep = *shape_find(
      "tiny-llama"); // a row of down and what it makes of it take 64 KB, and leave little for K and V
  deep.inter = 8192, deep.head_dim = 64, deep.layers = 2;
  same_as_cpu(deep, {{3, 4, FFN_SPLIT, ATTENTION_ONE_PASS}});
}
//< test_kernels_refusals

int main() {
  run("llama: the CPU workers' tokens", llama);
  run("llama in FP16", llama_f16);
  run("qwen2", qwen2);
  run("qwen2 in FP16", qwen2_f16);
  run("qwen3", qwen3);
  run("qwen3 in FP16", qwen3_f16);
  run("tapes: the CPU workers' tokens", tapes);
  run("every order gives the same bits", every_order_gives_the_same_bits);
  run("every order of a tape gives the same bits", every_order_of_a_tape);
  run("a lost worker is an error", a_lost_worker_is_an_error);
  run("foreign plans are refused", foreign_plans_are_refused);
  run("stop ids and non-finite logits", stops_and_non_finite_logits);
  run("little shared memory", little_shared_memory);
  printf("1..%d\n# %d passed, %d failed\n", tests, tests - failures, failures);
  return failures > 0;
}
