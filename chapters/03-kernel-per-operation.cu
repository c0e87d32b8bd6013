/*: ## A kernel for every operation

The decoder as a framework would run it: one launch an operation, results handed on through memory. The arithmetic is that of the tiles, line by line the same
functions, and so are the bits of every logit. A GEMV's kernel is as many blocks as there are SMs, with as many rows each as a tile has. :*/
#include "chapters/launches.h"

/*: A block's shared memory is laid out as in the final kernel. What it needs of it is at most what a tile of the same rows needs. :*/
//> operations_embed
template <DType T>
__global__ void __launch_bounds__(BLOCK, 1)
    embed_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  Tile t = {};
  t.op = OP_EMBED;
  t.row0 = p.hidden * blockIdx.x / gridDim.x;
  t.row1 = p.hidden * (blockIdx.x + 1) / gridDim.x;
  small_tile<T>(p, t, p.prompt[0], *here.position, 1, false, block_shared(p, bytes));
}
//< operations_embed

//> operations_norm
// residual: [hidden] -> normed: [hidden]. One block: everybody needs the sum of all squares.
static __global__ void __launch_bounds__(BLOCK, 1)
    norm_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks,
                const float *gains) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  const Shared s = block_shared(p, bytes);
  const uint32_t columns = p.qkv.columns;
  ask_vector(gains, columns, s.gains);
  ask_vector(p.residual, columns, s.room + columns);
  copy_async_wait();
  stage_normed(s.room + columns, s.gains, p.hidden, columns, p.rms_eps, s.room, s.reduce);
  for (uint32_t r = threadIdx.x; r < p.hidden; r += BLOCK)
    store_l2(p.normed + r, s.room[plane_index(r, columns / 2)]);
}
//< operations_norm

/*: Seven matrices of a layer and `lm_head`, all through the GEMV of the tiles; only `emit` is simpler, because nothing is folded into it. :*/
//> operations_gemv
struct Product { // y = matrix x
  DeviceMatrix matrix;
  uint32_t rows;
  const float *x; // [columns], zeros where the columns are padding
  float *y;       // [rows]
};

template <DType T>
__global__ void __launch_bounds__(BLOCK, 1)
    gemv_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks,
                const __grid_constant__ Product g) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  const Shared s = block_shared(p, bytes);
  const uint32_t row0 = (uint32_t)((uint64_t)g.rows * blockIdx.x / gridDim.x),
                 row1 = (uint32_t)((uint64_t)g.rows * (blockIdx.x + 1) / gridDim.x),
                 columns = g.matrix.columns;
  const Rows r = matrix_rows(p, g.matrix, here.layer, row0, row1);
  Loaded w;
  gemv_begin(r, w);
  ask_vector(g.x, columns, s.room + columns);
  copy_async_wait();
  stage_plain(s.room + columns, columns, s.room);
  gemv<T>(r, s.room, s.room + columns, w, [&](uint32_t unit, float a, float b) {
    const uint32_t row = row0 + 2 * unit;
    store_l2(g.y + row, a);
    if (row + 1 < row1) store_l2(g.y + row + 1, b);
  });
}
//< operations_gemv

//> operations_elements
static __global__ void __launch_bounds__(BLOCK, 1)
    add_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks, float *to,
               const float *what, uint32_t n) { // the residual, or a bias
  const Stamp stamp(p, here, blocks);
  for (uint32_t i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK)
    store_l2(to + i, load_l2(to + i) + load_l2(what + i));
}

static __global__ void __launch_bounds__(BLOCK, 1)
    silu_mul_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks,
                    const float *gate, const float *up) {
  const Stamp stamp(p, here, blocks);
  for (uint32_t i = blockIdx.x * BLOCK + threadIdx.x; i < p.inter; i += gridDim.x * BLOCK) {
    const float a = load_l2(gate + i), b = load_l2(up + i);
    store_l2(p.activation + i, a / (1.0f + __expf(-a)) * b);
  }
}
//< operations_elements

/*: Attention is three kernels. The first turns queries and key and writes key and value into the cache. The second is the attention tile's loop; to
it the newest position is one like the others, since its rows are in the cache by now. The third brings the chunks together. :*/
//> operations_attention
// A block a K/V head.
template <DType T>
__global__ void __launch_bounds__(BLOCK, 1)
    rope_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  const Shared s = block_shared(p, bytes);
  const uint32_t position = *here.position, kv = blockIdx.x, queries = p.group * p.head_dim;
  AttentionShared a = attention_shared(p, s.room, s.ahead);
  a.rotation = (float2 *)p.rotation + (uint64_t)position * (p.head_dim / 2);
  make_heads<T>(p, here.layer, kv, position, true, a, load_pair);
  for (uint32_t i = threadIdx.x; i < queries; i += BLOCK)
    store_l2(p.qkv_out + kv * queries + i, a.heads[i]);
}

// A block a K/V head and chunk. Which chunks have work is known on the card only.
template <DType T>
__global__ void __launch_bounds__(BLOCK, 1)
    attention_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  const Shared s = block_shared(p, bytes);
  const AttentionShared a = attention_shared(p, s.room, s.ahead);
  const uint32_t after = *here.position + 1, chunks = chunks_in_use(p, after - 1),
                 kv = blockIdx.x / p.chunks, part = blockIdx.x % p.chunks,
                 queries = p.group * p.head_dim;
  if (part < chunks) {
    uint32_t p0, p1;
    chunk_range(after, part, chunks, &p0, &p1);
    for (uint32_t i = threadIdx.x; i < queries; i += BLOCK)
      a.heads[i] = load_l2(p.qkv_out + kv * queries + i);
    for (uint32_t h0 = 0; h0 < p.group; h0 += HEADS_AT_ONCE) {
      if (h0) sync_block(); // the last heads' rows and sums have been read
      stage_rows(p, here.layer, kv, after, p0, min(p1 - p0, p.kv_rows), a.rows);
      copy_async_wait();
      sync_block();
      attend_heads<T, HEADS_AT_ONCE>(p, here.layer, kv, part, chunks, h0, after, p0, p1, a);
    }
  }
}

static __global__ void __launch_bounds__(BLOCK, 1)
    merge_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  const Shared s = block_shared(p, bytes);
  const uint32_t chunks = chunks_in_use(p, *here.position), columns = p.o.columns,
                 width = p.heads * p.head_dim;
  if (chunks > 1) stage_attention(p, chunks, columns, s.room, s.room + columns);
  for (uint32_t i = threadIdx.x; i < width; i += BLOCK)
    store_l2(p.merged + i,
             chunks > 1 ? s.room[plane_index(i, columns / 2)] : load_l2(p.attention + i));
}
//< operations_attention

//> operations_argmax
static __global__ void __launch_bounds__(BLOCK, 1)
    argmax_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  Candidate best = no_candidate();
  for (uint32_t i = blockIdx.x * BLOCK + threadIdx.x; i < p.vocab; i += gridDim.x * BLOCK)
    best = better(best, candidate(load_l2(p.logits + i), (int32_t)i));
  best = block_best(best, block_shared(p, bytes).candidate);
  if (threadIdx.x == 0) p.candidate[blockIdx.x] = best;
}
//< operations_argmax

/*: ### A token

The operations in the order of the model's own definition. A layer is thirteen launches, and one more for every bias that the model has. :*/
//> operations_token
template <DType T> static cudaError_t launch_operations(const Token &t, const Plan &plan) {
  const Params &p = t.p;
  const uint32_t sms = plan.workers, queries = p.heads * p.head_dim,
                 qkv_rows = queries + 2 * p.kv_heads * p.head_dim;
  Place here = {schedule.position, 0, 0};
  auto launch = [&](auto kernel, uint32_t blocks, auto... arguments) {
    here.kernel = schedule.kernels;
    return launch_kernel(t, kernel, blocks, p, here, schedule.stamp_blocks, arguments...);
  };
  auto over = [&](uint32_t n) { return std::min((n + BLOCK - 1) / BLOCK, sms); };
  auto vector = [&](uint32_t at) { return p.vectors + (uint64_t)here.layer * p.layer_floats + at; };
  auto bias = [&](uint32_t at, float *to, uint32_t n) { // where the model has it
    return at == NO_VECTOR ? cudaSuccess : launch(add_kernel, over(n), to, vector(at), n);
  };
  auto gemv_of = [&](const DeviceMatrix &m, uint32_t rows, const float *x, float *y) {
    return launch(gemv_kernel<T>, sms, Product{m, rows, x, y});
  };
  float *gate = p.activations, *up = gate + p.down.columns;

  LAUNCH(launch(embed_kernel<T>, sms));
  for (; here.layer < p.layers; here.layer++) {
    LAUNCH(launch(norm_kernel, 1, vector(p.attn_norm)));
    LAUNCH(gemv_of(p.qkv, qkv_rows, p.normed, p.qkv_out));
    LAUNCH(bias(p.qkv_bias, p.qkv_out, qkv_rows));
    LAUNCH(launch(rope_kernel<T>, p.kv_heads));
    LAUNCH(launch(attention_kernel<T>, p.kv_heads * p.chunks));
    LAUNCH(launch(merge_kernel, 1));
    LAUNCH(gemv_of(p.o, p.hidden, p.merged, p.after_wo));
    LAUNCH(launch(add_kernel, over(p.hidden), p.residual, p.after_wo, p.hidden));
    LAUNCH(bias(p.o_bias, p.residual, p.hidden));

    LAUNCH(launch(norm_kernel, 1, vector(p.ffn_norm)));
    LAUNCH(gemv_of(p.gate, p.inter, p.normed, gate));
    LAUNCH(bias(p.gate_bias, gate, p.inter));
    LAUNCH(gemv_of(p.up, p.inter, p.normed, up));
    LAUNCH(bias(p.up_bias, up, p.inter));
    LAUNCH(launch(silu_mul_kernel, over(p.inter), gate, up));
    LAUNCH(gemv_of(p.down, p.hidden, p.activation, p.after_down));
    LAUNCH(launch(add_kernel, over(p.hidden), p.residual, p.after_down, p.hidden));
    LAUNCH(bias(p.down_bias, p.residual, p.hidden));
  }
  if (!t.logits) return cudaSuccess; // the middle of a prompt
  here.layer = 0;
  LAUNCH(launch(norm_kernel, 1, p.final_norm));
  LAUNCH(gemv_of(p.lm_head, p.vocab, p.normed, p.logits));
  LAUNCH(launch(argmax_kernel, p.slots));
  return launch(choose_kernel, 1);
}
//< operations_token

/*: The results that a tile would keep to itself need memory here. The launch's arguments have places for such vectors: hand-offs of data use them, and no
such plan runs here. :*/
//> operations_buffers
static uint64_t operation_floats(const Params &p) {
  return p.o.columns + 2 * (uint64_t)p.qkv.columns + 2 * (uint64_t)p.down.columns;
}
static cudaError_t launch_token(const Token &t, const Plan &plan) {
  Params p = t.p;
  p.merged = schedule.buffers;
  p.after_wo = p.merged + p.o.columns;
  p.after_down = p.after_wo + p.qkv.columns;
  p.activations = p.after_down + p.qkv.columns;
  const Token with = {p, t.type, t.shared, t.stream, t.logits};
  return t.type == DT_F16 ? launch_operations<DT_F16>(with, plan)
                          : launch_operations<DT_BF16>(with, plan);
}
//< operations_buffers

#ifndef OPERATIONS_AS_GRAPH
//> operations_plain
extern "C" {
extern const Chapter chapter = {
    "ch03", 1, SYNC_BARRIER, false, schedule_kernels, schedule_trace, schedule_traced};
}
cudaError_t gpu_schedule(const Plan &plan, DType type, uint32_t shared, cudaStream_t stream,
                         const Params &p) {
  return run_schedule(plan, type, shared, stream, p, operation_floats(p), chapter_graph);
}
//< operations_plain
#endif
