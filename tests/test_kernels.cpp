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
        if (chunk == 4 || shape == tape_shapes[0])
          all.push_back({workers, chunk, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA});
    same_as_cpu(shape, all);
  }
}
//< test_kernels_tapes

/*: ## A tape at the edges

Where rounds of 32 positions, slots, chunks and heads end. Late positions begin with a cache of made-up numbers, the same for both kinds of workers; what lies behind the newest position is NaN. :*/
//> test_kernels_edges
static void twists() {
  for (uint32_t at = 0; at < 64; at++) {
    CHECK((twist_of(at) ^ twist_of(at + 1)) & 4); // neighbours: different 64 bytes of 128
    uint32_t seen = 0;
    for (uint32_t k = 0; k < 8; k++) seen |= 1u << twist_of(at + k);
    CHECK(seen == 0xff); // eight neighbours: all 16 bytes of 128
    for (uint32_t vectors : {1u, 3u, 8u, 9u, 16u})
      for (uint32_t j = 0; j < vectors; j++) {
        const uint32_t place = chunk_at(j, at, vectors);
        CHECK(chunk_at(place, at, vectors) == j && place / 8 == j / 8);
        CHECK(vectors % 8 == 0 || place == j);
      }
  }
}

// What the planner reserves holds what the kernel takes, with little to spare, and nothing of it lies in the way of another thing.
static void rooms_of_tapes() {
  alignas(128) static unsigned char room[232448];
  char names[1024];
  snprintf(names, sizeof names, "%s", shape_names());
  uint32_t made = 0, large = 0; // large: heads
  for (char *rest = names, *name; (name = strtok_r(rest, " ", &rest));)
    for (uint32_t workers : {1u, 3u, 20u, 64u, 131u, 132u})
      for (uint32_t shared : {101376u, 232448u}) {
        const Shape &shape = *shape_find(name);
        Target t = {};
        snprintf(t.kind, sizeof t.kind, "cuda");
        t.workers = workers, t.threads = 1, t.sync = SYNC_DATA, t.shared_bytes = shared;
        Plan plan;
        Error e = {};
        if (plan_make(&shape, &t, &plan, &e) != 0) continue;
        Model m = {};
        m.shape = shape;
        Gpu g = {};
        g.model = &m, g.plan = &plan;
        fill_params(&g);
        lay_out(&g);
        const uint32_t bytes = tape_shared_bytes(&g);
        const Params &p = g.params;
        const uint64_t reserved = tape_reserve(&shape, workers, p.tile_room);
        if (p.ring_at > reserved || reserved - p.ring_at >= 384 || bytes > shared)
          printf("# %s, %u workers: %u bytes before the ring, %llu reserved; %u of %u\n", name,
                 workers, p.ring_at, (unsigned long long)reserved, bytes, shared);
        CHECK(p.ring_at <= reserved && reserved - p.ring_at < 384);
        CHECK(bytes <= shared && bytes == p.ring_at + p.ring_slots * p.slot_bytes);
        const TapeShared s = tape_shared(p, room);
        const uint32_t size = p.head_dim;
        CHECK((unsigned char *)s.parts == room + TAPE_FIXED && TAPE_FIXED % 16 == 0);
        CHECK(s.parts + WARPS * PARTS * PART_STRIDE <= s.zeros);
        CHECK((float *)s.zeros >= s.attention.sums + WARPS * TAPE_HEADS * (size + SUMS_GAP));
        CHECK((float *)s.zeros + WARP * 4 <= (float *)s.attention.rotation);
        CHECK(s.attention.rotation + size / 2 <= (float2 *)s.own);
        CHECK((uintptr_t)s.zeros % 16 == 0 && (uintptr_t)s.partial % 16 == 0);
        CHECK((unsigned char *)(s.tiles + p.tile_room) <= s.ring.bytes && p.ring_at % 128 == 0);
        plan_free(&plan);
        made++;
        large += size > 64;
      }
  CHECK(made > 60 && large > 20);
}

// As cpu_seed_cache.
static void seed_cache(Gpu *g, uint32_t positions) {
  const Params &p = g->params;
  uint32_t state = 1;
  auto number = [&] {
    state = state * 1664525u + 1013904223u;
    const float x = (float)(state >> 8) * 0x1p-23f - 1.0f;
    return g->dtype == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
  };
  const size_t bytes = (size_t)p.layers * p.kv_heads * p.context * p.head_dim * 2;
  memset(p.keys, 0xff, bytes);
  memset(p.values, 0xff, bytes);
  for (uint32_t layer = 0; layer < p.layers; layer++)
    for (uint32_t kv = 0; kv < p.kv_heads; kv++)
      for (uint32_t at = 0; at < positions; at++)
        for (uint32_t d = 0; d < p.head_dim; d++) {
          const uint64_t e =
              cache_row(p, layer, kv, at) + chunk_at(d / 8, at, p.head_dim / 8) * 8 + d % 8;
          p.keys[e] = number();
          p.values[e] = number();
        }
}

// All K/V heads of a chunk become one tile, of whoever had the first.
static void join_heads(Plan *p) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->tile_count; i++) {
    Tile t = p->tile[i];
    if (t.op == OP_ATTEND && t.row0) continue;
    if (t.op == OP_ATTEND) t.row1 = (uint32_t)p->shape.kv_heads;
    p->tile[n++] = t;
  }
  p->tile_count = n;
  OK(plan_index(p, &e));
}

struct Edge {
  int32_t heads, kv_heads, head_dim;
  uint32_t workers, chunk;         // chunk: positions
  uint32_t ring_slots, slot_bytes; // 0: as planned
  bool joined;
  std::vector<uint32_t> positions; // attended to by the first token, the newest included
  uint32_t steps = 2;
};

static void at_the_edges(Shape shape, const std::vector<Edge> &edges) {
  enum { CONTEXT = 320 };
  for (const Edge &edge : edges) {
#ifdef FIBER_ASAN
    if (&edge != &edges.front()) break;
#endif
    shape.heads = edge.heads, shape.kv_heads = edge.kv_heads, shape.head_dim = edge.head_dim;
    Checkpoint c(shape);
    Plan plan = {}, waves = {};
    if (!make_plan(c.model, {edge.workers, edge.chunk, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA},
                   &plan))
      continue;
    Target t = plan.target;
    t.sync = SYNC_BARRIER;
    OK(plan_make(&plan.shape, &t, &waves, &e));
    if (edge.ring_slots) plan.ring_slots = edge.ring_slots, plan.slot_bytes = edge.slot_bytes;
    if (edge.joined) join_heads(&plan);
    plan.target.read_gbs = 1000; // else it would be measured with the larger of these models
    OK(plan_validate(&plan, &e));
    Cpu *cpu = nullptr;
    Gpu *gpu = nullptr;
    OK(cpu_open(&c.model, &waves, CONTEXT, 1, &cpu, &e));
    OK(gpu_open(&c.model, &plan, CONTEXT, 0, &gpu, &e));
    for (uint32_t n : edge.positions) {
      if (!cpu || !gpu) break;
      std::vector<int32_t> ids, out(GPU_LAUNCH);
      std::vector<float> logits((size_t)shape.vocab);
      int32_t next = 42;
      cpu_seed_cache(cpu, n - 1);
      for (uint32_t i = 0; i < edge.steps; i++) {
        OK(cpu_step(cpu, next, n - 1 + i, true, &next, &e));
        ids.push_back(next);
      }
      uint32_t made = 0;
      bool stopped = false;
      seed_cache(gpu, n - 1);
      OK(gpu_decode(gpu, prompt + 1, 1, n - 1, edge.steps, true, out.data(), &made, &stopped, &e));
      OK(gpu_logits(gpu, logits.data(), &e));
      out.resize(made);
      const std::vector<float> want(cpu_logits(cpu), cpu_logits(cpu) + shape.vocab);
      const double far = distance(logits, want);
      if (out != ids || !(far <= 1e-3))
        printf(
            "# %d heads of %d, %d K/V heads, %u workers, %u chunks, slots of %u: at %u positions "
            "logits differ by %.1e\n",
            edge.heads, edge.head_dim, edge.kv_heads, edge.workers, plan.chunks, plan.slot_bytes, n,
            far);
      CHECK(out == ids);
      CHECK(far <= 1e-3);
    }
    cpu_close(cpu);
    gpu_close(gpu);
    plan_free(&plan);
    plan_free(&waves);
  }
}

static void edges_of_a_tape() {
  Shape shape = *shape_find("tiny-llama");
  shape.layers = 1;
  // One chunk in use. A slot holds 32 rows of 64, of 128 and of 72; 85 of 24; 128 of 16.
  at_the_edges(shape, {{4, 2, 64, 3, 1000, 2, 4096, false, {1, 2, 31, 32, 33, 34, 63, 64, 65}},
                       {4, 2, 128, 1, 1000, 3, 8192, false, {31, 32, 33, 65}},
                       {4, 2, 72, 3, 1000, 2, 4608, false, {31, 32, 33, 65}},
                       {4, 2, 24, 3, 1000, 2, 4096, false, {32, 33, 84, 85, 86}},
                       {4, 2, 16, 3, 1000, 5, 4096, false, {127, 128, 129}}});
  // A slot of 256 rows is a round of all eight warps, or two of four where heads are more than four.
  at_the_edges(shape, {{4, 2, 64, 3, 1000, 0, 0, false, {255, 256, 257, 290}},
                       {6, 1, 64, 2, 1000, 0, 0, false, {33, 127, 128, 129, 257}},
                       {8, 1, 128, 2, 1000, 0, 0, false, {32, 33, 128, 129, 130}}});
  // Several chunks: of a slot's rows in each, a row more, and one or two positions in each; of 20 more than 16 lanes take at once.
  at_the_edges(shape, {{4, 2, 64, 4, 8, 2, 4096, false, {8, 9, 62, 63, 64, 65, 66, 67}},
                       {4, 2, 16, 3, 3, 0, 0, false, {3, 4, 7, 33}}, // two tiles a worker
                       {5, 1, 24, 20, 2, 0, 0, false, {31, 33, 39, 64}}});
  // Several K/V heads in a tile, and several tiles of a worker.
  at_the_edges(shape, {{4, 2, 64, 4, 16, 2, 4096, true, {16, 17, 33, 65}},
                       {6, 3, 16, 1, 1000, 0, 0, true, {1, 32, 33}},
                       {6, 3, 40, 1, 1000, 2, 4096, false, {1, 32, 33, 52, 53}}});
  shape.dtype = DT_F16;
  at_the_edges(shape, {{6, 1, 64, 2, 16, 2, 4096, false, {31, 33, 65}},
                       {4, 2, 72, 4, 1000, 2, 4608, true, {32, 33}}});
  shape = *shape_find("tiny-qwen3");
  shape.layers = 1;
  at_the_edges(shape, {{5, 1, 64, 4, 16, 2, 4096, false, {31, 33, 65}}});
#ifndef FIBER_ASAN // sizes that are constants: rows of one and of two blocks of 2,048 columns
  shape = *shape_find("tiny-llama");
  shape.hidden = 2048, shape.inter = 4096, shape.layers = 2;
  at_the_edges(shape, {{32, 8, 64, 7, 16, 0, 0, false, {33}, 1}});
#endif
}

static void a_tapes_pace() {
  Checkpoint c(*shape_find("tiny-llama"));
  Plan plan = {};
  if (!make_plan(c.model, {3, 4, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA}, &plan)) return;
  const Result first = on_fibers(c.model, plan);
  const struct {
    double read_gbs;
    uint32_t pace_ns;
  } paces[] = {{98304, 1}, {0.99, 99296}}; // three workers' slots of 32 KB
  Gpu g = {};
  g.plan = &plan;
  for (const auto &pace : paces) {
    plan.target.read_gbs = pace.read_gbs;
    CHECK(pace_of(&g) == pace.pace_ns);
    const Result again = on_fibers(c.model, plan);
    CHECK(again.ids == first.ids && again.logits == first.logits);
  }
  for (double read_gbs : {0.0, 1e-300, 0.98}) { // unknown, absurd, and 100 us or more: none
    plan.target.read_gbs = read_gbs;
    CHECK(pace_of(&g) == 0);
  }
  plan_free(&plan);
}
//< test_kernels_edges

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
  Shape wide = *shape_find("tiny-llama");
  wide.hidden = 1088, wide.layers = 2;
  // Where only small slots fit, a row of 1,088 columns is two blocks, also of the embedding.
  const Settings narrow = {3, 4, FFN_SPLIT, ATTENTION_ONE_PASS, SYNC_DATA};
  fiber::settings.shared = 65536;
  Model shape_only = {};
  shape_only.shape = wide;
  Plan plan = {};
  if (make_plan(shape_only, narrow, &plan))
    CHECK(plan.slot_bytes == 16384 && tape_cut(1088, plan.slot_bytes).blocks == 2);
  plan_free(&plan);
  same_as_cpu(wide, {narrow});
  fiber::settings.shared = 101376;
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
  run("rows of the cache are twisted apart", twists);
  run("a tape's shared memory is what was reserved", rooms_of_tapes);
  run("edges of rounds, slots, chunks and heads", edges_of_a_tape);
  run("a pace changes no bit", a_tapes_pace);
  run("every order gives the same bits", every_order_gives_the_same_bits);
  run("every order of a tape gives the same bits", every_order_of_a_tape);
  run("a lost worker is an error", a_lost_worker_is_an_error);
  run("foreign plans are refused", foreign_plans_are_refused);
  run("stop ids and non-finite logits", stops_and_non_finite_logits);
  run("little shared memory", little_shared_memory);
  printf("1..%d\n# %d passed, %d failed\n", tests, tests - failures, failures);
  return failures > 0;
}
