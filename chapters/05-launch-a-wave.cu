/*: ## A launch a wave

The small operations have gone into the tiles that need them, and a token is the waves of the plan. Each is one launch: every block is a worker and does
its tiles of that wave, with the code of the final kernel. The end of a kernel is the barrier. :*/
#include "chapters/launches.h"

//> wave_kernel
// first: [workers + 1], the wave's tiles in `tile`: those of worker w are tile[first[w]] to tile[first[w + 1]].
template <DType T>
__global__ void __launch_bounds__(BLOCK, 1)
    wave_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks,
                const Tile *tile, const uint32_t *first) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  const Shared s = block_shared(p, bytes);
  const uint32_t position = *here.position, chunks = chunks_in_use(p, position);
  const bool fused = !p.one_pass && position < p.fused_context;
  for (uint32_t at = first[blockIdx.x], end = first[blockIdx.x + 1]; at < end; at++) {
    const Tile t = tile[at];
    const Rows r = tile_rows(p, t);
    Loaded w;
    if (r.units) {
      begin_gains(p, t, s);
      gemv_begin(r, w);
    } else if (t.op == OP_ATTEND || (fused && t.op == OP_SCORES))
      begin_attention(p, t, position, chunks, s);
    if (r.units) gemv_tile<T>(p, t, chunks, r, w, s);
    else small_tile<T>(p, t, p.prompt[0], position, chunks, fused, s);
    __syncthreads(); // shared memory is the next tile's
  }
}
//< wave_kernel

/*: The plan's tiles are sorted by worker; here they are needed by wave. :*/
//> wave_lists
static struct Waves {
  Tile *tile;      // [tiles] by wave, then worker
  uint32_t *first; // [waves, workers + 1]
} waves;

static cudaError_t sort_by_wave(const Plan &plan) {
  std::vector<Tile> tile(plan.tile, plan.tile + plan.tile_count);
  std::stable_sort(tile.begin(), tile.end(),
                   [](const Tile &a, const Tile &b) { return a.wave < b.wave; });
  std::vector<uint32_t> first;
  uint32_t at = 0;
  for (uint32_t wave = 0; wave < plan.wave_count; wave++)
    for (uint32_t worker = 0; worker <= plan.workers; worker++) {
      while (at < plan.tile_count && tile[at].wave == wave && tile[at].worker < worker) at++;
      first.push_back(at);
    }
  LAUNCH(cudaMalloc((void **)&waves.tile, tile.size() * sizeof(Tile)));
  LAUNCH(cudaMalloc((void **)&waves.first, first.size() * sizeof(uint32_t)));
  LAUNCH(cudaMemcpy(waves.tile, tile.data(), tile.size() * sizeof(Tile), cudaMemcpyHostToDevice));
  return cudaMemcpy(waves.first, first.data(), first.size() * sizeof(uint32_t),
                    cudaMemcpyHostToDevice);
}
//< wave_lists

//> wave_schedule
static cudaError_t launch_token(const Token &t, const Plan &plan) {
  const Params &p = t.p;
  Place here = {schedule.position, 0, 0};
  for (uint32_t wave = 0; wave < (t.logits ? p.waves : p.head_wave); wave++) {
    here.kernel = schedule.kernels;
    LAUNCH(launch_kernel(t, t.type == DT_F16 ? wave_kernel<DT_F16> : wave_kernel<DT_BF16>,
                         plan.workers, p, here, schedule.stamp_blocks, waves.tile,
                         waves.first + (size_t)wave * (plan.workers + 1)));
  }
  if (!t.logits) return cudaSuccess; // the middle of a prompt
  here.kernel = schedule.kernels;
  return launch_kernel(t, choose_kernel, 1, p, here, schedule.stamp_blocks);
}

extern "C" {
extern const Chapter chapter = {
    "ch05", 1, SYNC_BARRIER, false, schedule_kernels, schedule_trace, schedule_traced};
}
cudaError_t gpu_schedule(const Plan &plan, DType type, uint32_t shared, cudaStream_t stream,
                         const Params &p) {
  if (!waves.tile) LAUNCH(sort_by_wave(plan));
  return run_schedule(plan, type, shared, stream, p, 0, chapter_graph);
}
//< wave_schedule
